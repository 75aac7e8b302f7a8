"""Loaders, storage and checkpoints."""

from __future__ import annotations

import numpy as np

from benchmarks.retold_incidents.exporters import Exporters
from benchmarks.retold_incidents.incident import Expected, Retold, between, exactly, incident, slow, whole
from benchmarks.retold_incidents.jobs import Job

READING = "storage_degradation data_loader_stall"
STEP = {"data_loading": 0.012, "forward": 0.55, "backward": 1.1, "transfer": 0.2, "optimizer": 0.06}


@incident("nfs-slow", "Machine Learning Engineering Open Book: one file server for all nodes", "rich", "poor")
def nfs_slow(rng: np.random.Generator, variant: str) -> Retold:
    """From a third of the window on the file server is overloaded: all ranks read 1 to 2.5 s per step."""
    job = Job(rng, 32, 230, STEP)
    since = 80
    job.phase["data_loading"][:, since:] += rng.gamma(6, 0.28, (32, 150))
    played = job.play()
    if variant == "poor":
        window = played.window("nfs-slow", ("data_loading",), waiting="untimed")
        return Retold(window, slow(f"{READING} unknown", whole(32)).or_abstains())
    seen = Exporters(played, gpu="A100")
    span = slice(seen.since(since), None)
    everyone = slice(None)
    seen.set("node_nfs_rpc_retransmissions_total", 0.0, node=everyone)
    seen.set("node_nfs_rpc_retransmissions_total", 14.0, node=everyone, span=span, noise=0.4)
    seen.set("node_pressure_io_waiting_seconds_total", 0.78, node=everyone, span=span, noise=0.06)
    seen.set("node_cpu_seconds_total", 19, node=everyone, device="iowait", span=span, noise=0.2)
    window = played.window("nfs-slow", metrics=seen.table())
    return Retold(window, slow(READING, whole(32)))


@incident(
    "loader-stalls",
    "BLOOM chronicles and DataLoader issues: workers of one rank stall",
    "rich",
    "poor",
    "overlapped",
)
def loader_stalls(rng: np.random.Generator, variant: str) -> Retold:
    """One rank waits 1.9 s for each batch in the second half; pressure of its node stays normal."""
    job = Job(rng, 16, 260, STEP)
    since = 130
    job.phase["data_loading"][9, since:] += rng.gamma(9, 0.21, 260 - since)
    played = job.play()
    if variant == "overlapped":
        window = played.window("loader-stalls", ("data_loading", "forward", "backward"), waiting="backward")
        return Retold(window, slow(f"{READING} unknown", exactly(9)))
    if variant == "poor":
        window = played.window("loader-stalls", ("data_loading", "forward"), waiting="untimed")
        return Retold(window, slow(f"{READING} unknown", exactly(9)))
    seen = Exporters(played, gpu="A100", every=10, processes=True)
    window = played.window("loader-stalls", metrics=seen.table())
    return Retold(window, slow("data_loader_stall", exactly(9)))


@incident(
    "rollouts-awaited", "prime-rl issue 956: a trainer waits 21.7 of 22.8 s for its batch", "rich", "poor"
)
def rollouts_awaited(rng: np.random.Generator, variant: str) -> Retold:
    """Each step waits for rollouts on all ranks, from the first to the last: 95 % of the time."""
    seconds = {"data_loading": 21.7, "forward": 0.32, "backward": 0.6, "transfer": 0.12, "optimizer": 0.08}
    job = Job(rng, 32, 70, seconds, noise=0.008)
    shared = job.phase["data_loading"].mean(axis=0) * rng.lognormal(0, 0.05, 70)
    job.phase["data_loading"] = shared + np.abs(rng.normal(0, 0.02, (32, 70)))
    played = job.play()
    expected = slow(f"data_loader_stall unknown {READING}", whole(32))
    if variant == "poor":
        return Retold(played.window("rollouts-awaited", ("data_loading",), waiting="untimed"), expected)
    return Retold(played.window("rollouts-awaited", metrics=Exporters(played, every=30).table()), expected)


@incident("evicted-dataset", "SmolLM3 playbook: shards evicted from the cached file system", "rich")
def evicted_dataset(rng: np.random.Generator, _: str) -> Retold:
    """Throughput dips for stretches of twenty steps, on all nodes alike, while shards are read anew."""
    job = Job(rng, 48, 300, STEP)
    dips = np.zeros(300, dtype=bool)
    for first in (40, 95, 150, 190, 225, 270):
        dips[first : first + 20] = True
    job.phase["data_loading"][:, dips] += rng.gamma(4, 0.3, (48, int(dips.sum())))
    played = job.play()
    seen = Exporters(played, every=10)
    for first in (40, 95, 150, 190, 225, 270):
        span = slice(seen.since(first), seen.since(first + 20))
        seen.set("node_pressure_io_waiting_seconds_total", 0.55, node=slice(None), span=span, noise=0.1)
        seen.set(
            "node_network_receive_bytes_total", 9e8, node=slice(None), device="eth0", span=span, noise=0.1
        )
    window = played.window("evicted-dataset", metrics=seen.table())
    return Retold(window, slow(READING, whole(48)))


@incident("worn-disk", "ByteRobust: faults of local disks; one NVMe drive with long reads", "rich")
def worn_disk(rng: np.random.Generator, _: str) -> Retold:
    """Reads of one node's drive take 40 ms; all of its ranks wait for data, the drive is always busy."""
    job = Job(rng, 24, 280, STEP)
    since = 100
    ranks = job.of_node(2)
    job.phase["data_loading"][ranks, since:] += rng.gamma(5, 0.17, (8, 180))
    played = job.play()
    seen = Exporters(played, gpu="A100", every=10)
    span = slice(seen.since(since), None)
    disk = {"node": [2], "device": "nvme0n1", "span": span}
    seen.set("node_disk_io_time_seconds_total", 0.99, noise=0.005, **disk)
    seen.set("node_disk_read_time_seconds_total", 14.0, noise=0.1, **disk)
    seen.set("node_disk_read_bytes_total", 2.1e7, noise=0.1, **disk)
    seen.set("node_pressure_io_waiting_seconds_total", 0.83, node=[2], span=span, noise=0.05)
    seen.set("node_cpu_seconds_total", 9, node=[2], device="iowait", span=span, noise=0.2)
    window = played.window("worn-disk", metrics=seen.table())
    return Retold(window, slow("storage_degradation", between(ranks[:1], ranks)))


@incident("decoding", "PyTorch forum: image decoding takes all of the loaders' CPUs", "rich", "poor")
def decoding(rng: np.random.Generator, variant: str) -> Retold:
    """Loaders decode at full CPU use and still fall behind: 72 % of a 0.5 s step is loading, on all ranks."""
    seconds = {"data_loading": 0.37, "forward": 0.04, "backward": 0.07, "transfer": 0.02, "optimizer": 0.01}
    job = Job(rng, 4, 700, seconds, per_node=4, noise=0.012)
    played = job.play()
    expected = slow("data_loader_stall cpu_contention", whole(4))
    if variant == "poor":
        window = played.window("decoding", ("data_loading", "forward", "backward"), waiting="joint")
        return Retold(window, slow(f"{READING} cpu_contention unknown", whole(4)))
    seen = Exporters(played, gpu="L4", every=5, processes=True)
    seen.set("process_cpu_seconds_total", 7.9, rank=slice(None), device="loader/user", noise=0.01)
    return Retold(played.window("decoding", metrics=seen.table()), expected)


@incident("timed-saves", "BLOOM chronicles: 2.3 TB per checkpoint; here saved far too often", "rich", "poor")
def timed_saves(rng: np.random.Generator, variant: str) -> Retold:
    """Every 25 steps of 6 s all ranks write for 95 s: a third of the time is saving."""
    seconds = {"data_loading": 0.02, "forward": 1.8, "backward": 3.5, "transfer": 0.5, "optimizer": 0.2}
    job = Job(rng, 48, 200, seconds, framework="megatron", parallelism={"data": 6, "tensor": 8})
    job.phase["checkpoint"] = np.zeros((48, 200))
    job.phase["checkpoint"][:, 24::25] = 95 * rng.lognormal(0, 0.05, (1, 8)) * rng.lognormal(0, 0.01, (48, 8))
    played = job.play()
    expected = slow("checkpoint_stall", whole(48))
    if variant == "poor":
        return Retold(played.window("timed-saves", ("checkpoint",), waiting="untimed"), expected)
    seen = Exporters(played, gpu="A100", every=30)
    return Retold(played.window("timed-saves", metrics=seen.table()), expected)


@incident("saves-in-steps", "OPT-175B logbook: checkpoints to remote storage take minutes", "poor", "bare")
def saves_in_steps(rng: np.random.Generator, variant: str) -> Retold:
    """Every 30 steps a step lasts 140 s longer than its timed phases say: half of the time is lost."""
    seconds = {"data_loading": 0.01, "forward": 1.4, "backward": 2.8, "transfer": 0.6, "optimizer": 0.15}
    job = Job(rng, 64, 210, seconds, framework="metaseq", parallelism={"data": 8, "tensor": 8})
    job.untimed[:, 29::30] = 140 * rng.lognormal(0, 0.08, (1, 7)) + rng.uniform(0, 0.5, (64, 7))
    played = job.play()
    expected = Expected(
        frozenset({"fail_slow"}), (whole(64),), frozenset({"checkpoint_stall", "unknown"}), True, 4.6
    )
    if variant == "bare":
        return Retold(played.window("saves-in-steps", (), waiting="untimed"), expected)
    window = played.window("saves-in-steps", ("data_loading", "forward", "backward", "optimizer"))
    return Retold(window, expected)


@incident(
    "dead-worker",
    "DataLoader issues: workers die one by one after a fork, batches come at half the rate",
    "rich",
)
def dead_worker(rng: np.random.Generator, _: str) -> Retold:
    """Two ranks of different nodes lose loader workers, first one, then the other."""
    job = Job(rng, 32, 300, STEP)
    for rank, since, extra in ((4, 90, 0.45), (21, 200, 0.6)):
        job.phase["data_loading"][rank, since:] += extra * rng.lognormal(0, 0.15, 300 - since)
    played = job.play()
    seen = Exporters(played, gpu="A100", every=10, processes=True)
    for rank, since in ((4, 90), (21, 200)):
        span = slice(seen.since(since), None)
        seen.set("process_cpu_seconds_total", 0.35, rank=[rank], device="loader/user", span=span, noise=0.1)
    window = played.window("dead-worker", metrics=seen.table())
    return Retold(window, slow("data_loader_stall", exactly(4, 21)))
