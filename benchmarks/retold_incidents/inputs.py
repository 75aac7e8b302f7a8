"""Loaders, storage and checkpoints."""

from __future__ import annotations

import numpy as np

from benchmarks.retold_incidents.expected import Expected, between, exactly, slow, whole
from benchmarks.retold_incidents.incident import RetoldReport, incident

READING = "storage_degradation data_loader_stall"
STEP = {"data_loading": 0.012, "forward": 0.55, "backward": 1.1, "transfer": 0.2, "optimizer": 0.06}


@incident(
    "Machine Learning Engineering Open Book: one file server for all nodes",
    "rich poor", poor="data_loading, untimed",
)  # fmt: skip
def nfs_slow(report: RetoldReport) -> Expected:
    """From a third of the window on the file server is overloaded: all ranks read 1 to 2.5 s per step."""
    job = report.job(32, 230, STEP, gpu="A100")
    job.delay("data_loading", report.rng.gamma(6, 0.28, (32, 150)), steps=slice(80, None))
    job.seen.shows(since=80, node_nfs_rpc_retransmissions_total=(14.0, 0.4))
    job.seen.shows(since=80, node_pressure_io_waiting_seconds_total=(0.78, 0.06))
    job.seen.shows(since=80, device="iowait", node_cpu_seconds_total=(19, 0.2))
    poor = report.variant == "poor"
    return slow(READING + " unknown" * poor, whole(32)).or_abstains(poor)


@incident(
    "BLOOM chronicles and DataLoader issues: workers of one rank stall", "rich poor overlapped",
    poor="data_loading forward, untimed", overlapped="data_loading forward backward, backward",
)  # fmt: skip
def loader_stalls(report: RetoldReport) -> Expected:
    """One rank waits 1.9 s for each batch in the second half; pressure of its node stays normal."""
    job = report.job(16, 260, STEP, gpu="A100", every=10, processes=True)
    job.delay("data_loading", report.rng.gamma(9, 0.21, 130), 9, slice(130, None))
    return slow("data_loader_stall" if report.variant == "rich" else READING + " unknown", exactly(9))


@incident(
    "prime-rl issue 956: a trainer waits 21.7 of 22.8 s for its batch",
    "rich poor",
    poor="data_loading, untimed",
)
def rollouts_awaited(report: RetoldReport) -> Expected:
    """Each step waits for rollouts on all ranks, from the first to the last: 95 % of the time."""
    seconds = {"data_loading": 21.7, "forward": 0.32, "backward": 0.6, "transfer": 0.12, "optimizer": 0.08}
    job, rng = report.job(32, 70, seconds, noise=0.008, every=30), report.rng
    shared = job.phase["data_loading"].mean(axis=0) * rng.lognormal(0, 0.05, 70)
    job.phase["data_loading"] = shared + np.abs(rng.normal(0, 0.02, (32, 70)))
    return slow(f"data_loader_stall unknown {READING}", whole(32))


@incident("SmolLM3 playbook: shards evicted from the cached file system")
def evicted_dataset(report: RetoldReport) -> Expected:
    """Throughput dips for stretches of twenty steps, on all nodes alike, while shards are read anew."""
    job, dips = report.job(48, 300, STEP, every=10), (40, 95, 150, 190, 225, 270)
    steps = [step for first in dips for step in range(first, first + 20)]
    job.delay("data_loading", report.rng.gamma(4, 0.3, (48, 120)), steps=steps)
    for first in dips:
        turn = {"since": first, "until": first + 20}
        job.seen.shows(**turn, node_pressure_io_waiting_seconds_total=(0.55, 0.1))
        job.seen.shows(**turn, device="eth0", node_network_receive_bytes_total=(9e8, 0.1))
    return slow(READING, whole(48))


@incident("ByteRobust: faults of local disks; one NVMe drive with long reads")
def worn_disk(report: RetoldReport) -> Expected:
    """Reads of one node's drive take 40 ms; all of its ranks wait for data, the drive is always busy."""
    job = report.job(24, 280, STEP, gpu="A100", every=10)
    ranks = job.of_node(2)
    job.delay("data_loading", report.rng.gamma(5, 0.17, (8, 180)), ranks, slice(100, None))
    disk = {"io_time_seconds": (0.99, 0.005), "read_time_seconds": (14.0, 0.1), "read_bytes": (2.1e7, 0.1)}
    for name, rate in disk.items():
        job.seen.shows([2], since=100, device="nvme0n1", **{f"node_disk_{name}_total": rate})
    job.seen.shows([2], since=100, node_pressure_io_waiting_seconds_total=(0.83, 0.05))
    job.seen.shows([2], since=100, device="iowait", node_cpu_seconds_total=(9, 0.2))
    return slow("storage_degradation", between(ranks[:1], ranks))


@incident(
    "PyTorch forum: image decoding takes all of the loaders' CPUs",
    "rich poor", poor="data_loading forward backward, joint",
)  # fmt: skip
def decoding(report: RetoldReport) -> Expected:
    """Loaders decode at full CPU use and still fall behind: 72 % of a 0.5 s step is loading, on all ranks."""
    seconds = {"data_loading": 0.37, "forward": 0.04, "backward": 0.07, "transfer": 0.02, "optimizer": 0.01}
    job = report.job(4, 700, seconds, per_node=4, noise=0.012, gpu="L4", every=5, processes=True)
    job.seen.shows(device="loader/user", process_cpu_seconds_total=(7.9, 0.01))
    others = "" if report.variant == "rich" else " storage_degradation unknown"
    return slow("data_loader_stall cpu_contention" + others, whole(4))


@incident(
    "BLOOM chronicles: 2.3 TB per checkpoint; here saved far too often",
    "rich poor", poor="checkpoint, untimed",
)  # fmt: skip
def timed_saves(report: RetoldReport) -> Expected:
    """Every 25 steps of 6 s all ranks write for 95 s: a third of the time is saving."""
    seconds = {"data_loading": 0.02, "forward": 1.8, "backward": 3.5, "transfer": 0.5, "optimizer": 0.2}
    parallelism = {"data": 6, "tensor": 8}
    job = report.job(48, 200, seconds, framework="megatron", parallelism=parallelism, gpu="A100", every=30)
    saving = 95 * report.rng.lognormal(0, 0.05, (1, 8)) * report.rng.lognormal(0, 0.01, (48, 8))
    job.delay("checkpoint", saving, steps=slice(24, None, 25))
    return slow("checkpoint_stall", whole(48))


@incident(
    "OPT-175B logbook: checkpoints to remote storage take minutes", "poor bare",
    poor="data_loading forward backward optimizer, split", bare="none, untimed",
)  # fmt: skip
def saves_in_steps(report: RetoldReport) -> Expected:
    """Every 30 steps a step lasts 140 s longer than its timed phases say: half of the time is lost."""
    seconds = {"data_loading": 0.01, "forward": 1.4, "backward": 2.8, "transfer": 0.6, "optimizer": 0.15}
    job = report.job(64, 210, seconds, framework="metaseq", parallelism={"data": 8, "tensor": 8})
    lost = 140 * report.rng.lognormal(0, 0.08, (1, 7)) + report.rng.uniform(0, 0.5, (64, 7))
    job.delay("untimed", lost, steps=slice(29, None, 30))
    return slow("checkpoint_stall unknown", whole(64)).or_abstains().that_lost(4.6)


@incident("DataLoader issues: workers die one by one after a fork, batches come at half the rate")
def dead_worker(report: RetoldReport) -> Expected:
    """Two ranks of different nodes lose loader workers, first one, then the other."""
    job = report.job(32, 300, STEP, gpu="A100", every=10, processes=True)
    for rank, since, extra in ((4, 90, 0.45), (21, 200, 0.6)):
        late = extra * report.rng.lognormal(0, 0.15, 300 - since)
        job.delay("data_loading", late, rank, slice(since, None))
    for rank, since in ((4, 90), (21, 200)):
        job.seen.shows([rank], since=since, device="loader/user", process_cpu_seconds_total=(0.35, 0.1))
    return slow("data_loader_stall", exactly(4, 21))
