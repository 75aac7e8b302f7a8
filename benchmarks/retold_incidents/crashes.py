"""Jobs that end with a process, a GPU or a node, and the echoes of that on the other ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from benchmarks.retold_incidents.exporters import Exporters
from benchmarks.retold_incidents.incident import (
    HEALTHY,
    Expected,
    Retold,
    exactly,
    incident,
    stop,
)
from benchmarks.retold_incidents.jobs import Job, Played

ENDED = "process_crash hang"
STEP = {"data_loading": 0.01, "forward": 0.7, "backward": 1.4, "transfer": 0.3, "optimizer": 0.07}
PEER_LOST = (
    "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
)
WATCHDOG = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType={}, Timeout(ms)={})"


def event(played: Played, at: float, rank: int | None, kind: str, **more: Any) -> dict[str, Any]:
    """A row of the events table, on the rank's node."""
    node = None if rank is None else played.job.node(rank // played.job.per_node)
    return {"time": at, "node": node, "rank": rank, "kind": kind, "code": None, "message": None} | more


def watchdogs(
    played: Played, rng: np.random.Generator, begin: float, spread: float, messages: Mapping[int, str]
) -> list[dict[str, Any]]:
    """Timeouts of a collective, one per rank with its message, within `spread` seconds."""
    return [
        event(played, begin + float(rng.uniform(0, spread)), rank, "nccl_timeout", message=message)
        for rank, message in messages.items()
    ]


def gang_abort(
    played: Played,
    first: list[dict[str, Any]],
    culprits: Iterable[int],
    code: str,
    after: tuple[float, float],
) -> list[dict[str, Any]]:
    """The first errors, and the exits of all others with the same code within an interval after them."""
    job, begin = played.job, first[-1]["time"]
    events = list(first)
    for rank in set(range(job.ranks)) - set(culprits):
        at = begin + float(job.rng.uniform(*after))
        if job.rng.random() < 0.7:
            events.append(event(played, at - 0.3, rank, "log", message=PEER_LOST))
        events.append(event(played, at, rank, "process_exit", code=code))
    return sorted(events, key=lambda row: row["time"])


@incident(
    "contained-error", "Delta study of H100: XID 94, and every process of the job exits", "events", "rich"
)
def contained_error(rng: np.random.Generator, variant: str) -> Retold:
    """A memory error ends rank 21; all others lose a peer 3 to 11 s later and exit with its code."""
    job = Job(rng, 64, 120, STEP)
    played = job.play(stop_at=104, tail=60)
    at = played.stopped + 0.9
    first = [
        event(played, at, 21, "xid", code="94", message="Contained memory error"),
        event(
            played,
            at + 0.4,
            21,
            "log",
            message="RuntimeError: CUDA error: uncorrectable ECC error encountered",
        ),
        event(played, at + 1.2, 21, "process_exit", code="1"),
    ]
    events = gang_abort(played, first, [21], "1", (3, 11))
    metrics = None
    if variant == "rich":
        seen = Exporters(played)
        span = slice(int(np.searchsorted(seen.times, at)), None)
        seen.set("DCGM_FI_DEV_XID_ERRORS", 94, rank=[21], span=span)
        seen.set("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 1 / 15, rank=[21], span=slice(span.start, span.start + 1))
        seen.ended(slice(None), at + 12)
        metrics = seen.table()
    window = played.window("contained-error", metrics=metrics, events=events)
    return Retold(window, stop("process_crash gpu_memory_errors", exactly(21)))


@incident("bad-sample", "OPT-175B logbook: one process raises, the launcher ends the others", "events")
def bad_sample(rng: np.random.Generator, _: str) -> Retold:
    """A Python error on rank 5 of 24; the launcher ends the peers after 2 to 6 s with the same code."""
    job = Job(rng, 24, 90, STEP, framework="deepspeed")
    played = job.play(stop_at=77, tail=45)
    at = played.stopped + 0.2
    first = [
        event(played, at, 5, "log", message="ValueError: could not decode sample 118203 of shard 7"),
        event(played, at + 0.5, 5, "process_exit", code="1"),
    ]
    events = gang_abort(played, first, [5], "1", (2, 6))
    window = played.window("bad-sample", ("forward", "backward"), events=events, unfinished=slice(None))
    return Retold(window, stop("process_crash", exactly(5)))


@incident(
    "out-of-memory",
    "PyTorch issue 13246: the kernel kills a process of a node without memory",
    "rich",
    "events",
)
def out_of_memory(rng: np.random.Generator, variant: str) -> Retold:
    """Memory runs out over the window; the kernel kills rank 13, the others wait for ever."""
    job = Job(rng, 16, 200, STEP)
    played = job.play(stop_at=171, tail=180)
    at = played.stopped + 0.8
    events = [
        event(played, at, 13, "oom_kill", message="Out of memory: Killed process 4182 (python)"),
        event(played, at + 0.1, 13, "process_exit", code="-9"),
    ]
    if variant == "events":
        window = played.window("out-of-memory", ("forward",), events=events, waiting="untimed")
        return Retold(window, stop("process_crash memory_pressure", exactly(13)))
    seen = Exporters(played, gpu="A100", every=10)
    n, since = seen.times.size, int(np.searchsorted(seen.times, at))
    left = np.concatenate([np.linspace(8e11, 2e9, since), np.full(n - since, 3e11)])
    seen.set("node_memory_MemAvailable_bytes", left, node=[1], noise=0.02)
    seen.set("node_vmstat_oom_kill", 0.1, node=[1], span=slice(since, since + 1))
    seen.ended([13], at)
    window = played.window("out-of-memory", metrics=seen.table(), events=events)
    return Retold(window, stop("process_crash memory_pressure", exactly(13)))


@incident(
    "killed-silently", "Kubernetes issues: a process is gone without a report, peers spin", "rich", "bare"
)
def killed_silently(rng: np.random.Generator, variant: str) -> Retold:
    """The GPU of rank 30 shows 0 % and no memory, the 63 others 100 %: no event at all."""
    job = Job(rng, 64, 160, STEP)
    played = job.play(stop_at=121, tail=300)
    seen = Exporters(played)
    seen.ended([30], played.stopped + 0.5)
    expected = stop(ENDED, exactly(30))
    if variant == "rich":
        return Retold(played.window("killed-silently", metrics=seen.table()), expected)
    seen.only(
        "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_SM_CLOCK"
    )
    window = played.window("killed-silently", (), waiting="untimed", metrics=seen.table())
    return Retold(window, expected)


@incident(
    "off-the-bus", "Meta, reliability of research clusters: XID 79, a GPU has fallen off the bus", "rich"
)
def off_the_bus(rng: np.random.Generator, _: str) -> Retold:
    """All metrics of one GPU end, the job stops, and the watchdogs of the others fire ten minutes later."""
    job = Job(rng, 32, 150, STEP)
    played = job.play(stop_at=118, tail=660)
    at = played.stopped + 0.4
    seen = Exporters(played, gpu="A100", every=30)
    seen.vanish(at, ranks=[17])
    events = [event(played, at, 17, "xid", code="79", message="GPU has fallen off the bus")]
    events += watchdogs(
        played,
        rng,
        at + 602,
        4,
        {rank: WATCHDOG.format(2362, "ALLREDUCE", 600000) for rank in range(32) if rank != 17},
    )
    window = played.window("off-the-bus", metrics=seen.table(), events=events)
    return Retold(window, stop(f"{ENDED} gpu_memory_errors pcie_degradation", exactly(17)))


@incident("node-lost", "OPT-175B logbook: a host cannot be reached any more", "rich", "events")
def node_lost(rng: np.random.Generator, variant: str) -> Retold:
    """All metrics of a node end; heartbeats of its eight ranks are missed; the job waits."""
    job = Job(rng, 48, 140, STEP, parallelism={"data": 6, "tensor": 8}, framework="metaseq")
    played = job.play(stop_at=112, tail=240)
    at = played.stopped + 0.5
    ranks = job.of_node(3)
    events = [event(played, at + 60 + 0.2 * n, rank, "heartbeat_missed") for n, rank in enumerate(ranks)]
    expected = stop(ENDED, exactly(*ranks))
    if variant == "events":
        window = played.window("node-lost", (), waiting="untimed", events=events)
        return Retold(window, expected)
    seen = Exporters(played, gpu="A100")
    seen.vanish(at, ranks=ranks, nodes=[3])
    return Retold(played.window("node-lost", metrics=seen.table(), events=events), expected)


@incident("double-bit", "Llama 3 report: faulty GPUs, 30 % of the interruptions; XID 48", "events")
def double_bit(rng: np.random.Generator, _: str) -> Retold:
    """An uncorrectable error ends rank 200 of 256 with a signal; peers abort 8 to 30 s later."""
    job = Job(rng, 256, 40, STEP | {"forward": 4.0, "backward": 8.1}, framework="megatron")
    played = job.play(stop_at=33, tail=120)
    at = played.stopped + 4.0
    first = [
        event(played, at, 200, "xid", code="48", message="Double Bit ECC Error"),
        event(played, at + 1.5, 200, "process_exit", code="-6"),
    ]
    events = gang_abort(played, first, [200], "-6", (8, 30))
    window = played.window("double-bit", ("forward", "backward"), events=events)
    return Retold(window, stop("process_crash gpu_memory_errors", exactly(200)))


@incident("numeric-code", "Slurm issues: a step's exit code 137 without any other word", "events")
def numeric_code(rng: np.random.Generator, _: str) -> Retold:
    """Rank 3 exits with 137 and nothing else is reported; its three peers wait."""
    job = Job(rng, 4, 150, STEP, per_node=4)
    played = job.play(stop_at=131, tail=90)
    events = [event(played, played.stopped + 0.7, 3, "process_exit", code=137)]
    window = played.window("numeric-code", ("forward",), waiting="untimed", events=events)
    return Retold(window, stop("process_crash memory_pressure", exactly(3)))


@incident("done", "Any launcher: training is over and every process exits with 0", "events")
def done(rng: np.random.Generator, _: str) -> Retold:
    """The last rows end a minute before the window does, and all ranks exit with code 0: no fault."""
    job = Job(rng, 16, 150, STEP)
    played = job.play(stop_at=149, tail=60)
    events = [
        event(played, played.stopped + 2 + float(rng.uniform(0, 1)), rank, "process_exit", code="0")
        for rank in range(16)
    ]
    window = played.window("done", ("forward", "backward"), events=events)
    return Retold(window, Expected(frozenset({HEALTHY})))


@incident("power-domain", "Meta, reliability of research clusters: a rack loses power", "events")
def power_domain(rng: np.random.Generator, _: str) -> Retold:
    """Heartbeats of two neighbouring nodes are missed at once, a minute later all peers abort."""
    job = Job(rng, 64, 100, STEP)
    played = job.play(stop_at=80, tail=120)
    at = played.stopped + 30
    ranks = [*job.of_node(4), *job.of_node(5)]
    first = [event(played, at + 0.1 * n, rank, "heartbeat_missed") for n, rank in enumerate(ranks)]
    events = gang_abort(played, first, ranks, "1", (20, 45))
    window = played.window("power-domain", ("forward", "backward"), events=events)
    return Retold(window, stop(f"{ENDED} nic_degradation", exactly(*ranks)))


@incident("straggler-killed", "AntDT: a slow worker is killed and restarted elsewhere", "rich")
def straggler_killed(rng: np.random.Generator, _: str) -> Retold:
    """Rank 6 is throttled for 100 steps; then its process is killed and the job stops."""
    job = Job(rng, 8, 240, STEP)
    job.slow("compute", 1.5, [6], 120)
    played = job.play(stop_at=220, tail=120)
    seen = Exporters(played, gpu="A100", every=10)
    span = slice(seen.since(120), None)
    seen.set("DCGM_FI_DEV_SM_CLOCK", 930, rank=[6], span=span, noise=0.02)
    seen.set("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 0x40, rank=[6], span=span)
    events = [event(played, played.stopped + 0.6, 6, "process_exit", code="-9")]
    seen.ended([6], played.stopped + 0.6)
    window = played.window("straggler-killed", metrics=seen.table(), events=events)
    return Retold(window, stop("process_crash", exactly(6)))
