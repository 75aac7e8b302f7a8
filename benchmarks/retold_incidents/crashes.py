"""Jobs that end with a process, a GPU or a node, and the echoes of that on the other ranks."""

from __future__ import annotations

import numpy as np

from benchmarks.retold_incidents.expected import SOUND, Expected, exactly, stop
from benchmarks.retold_incidents.incident import RetoldReport, incident

ENDED = "process_crash hang"
STEP = {"data_loading": 0.01, "forward": 0.7, "backward": 1.4, "transfer": 0.3, "optimizer": 0.07}


@incident(
    "Delta study of H100: XID 94, and every process of the job exits", "events rich", events="all, split"
)
def contained_error(report: RetoldReport) -> Expected:
    """A memory error ends rank 21; all others lose a peer 3 to 11 s later and exit with its code."""
    job = report.job(64, 120, STEP, stop_at=104, tail=60)
    at = job.stopped + 0.9
    job.event(at, 21, "xid", "Contained memory error", code="94")
    job.event(at + 0.4, 21, "log", "RuntimeError: CUDA error: uncorrectable ECC error encountered")
    job.event(at + 1.2, 21, "process_exit", code="1")
    job.gang_abort([21], "1", (3, 11))
    first = job.seen.after(at)
    job.seen.shows([21], span=slice(first, None), XID_ERRORS=94)
    job.seen.shows([21], span=slice(first, first + 1), ECC_DBE_VOL_TOTAL=1 / 15)
    job.seen.ended(slice(None), at + 12)
    return stop("process_crash gpu_memory_errors", exactly(21))


@incident("OPT-175B logbook: one process raises, the launcher ends the others", "events")
def bad_sample(report: RetoldReport) -> Expected:
    """A Python error on rank 5 of 24; the launcher ends the peers after 2 to 6 s with the same code."""
    job = report.job(24, 90, STEP, framework="deepspeed", stop_at=77, tail=45, unfinished=slice(None))
    at = job.stopped + 0.2
    job.event(at, 5, "log", "ValueError: could not decode sample 118203 of shard 7")
    job.event(at + 0.5, 5, "process_exit", code="1")
    job.gang_abort([5], "1", (2, 6))
    return stop("process_crash", exactly(5))


@incident(
    "PyTorch issue 13246: the kernel kills a process of a node without memory",
    "rich events", events="forward, untimed",
)  # fmt: skip
def out_of_memory(report: RetoldReport) -> Expected:
    """Memory runs out over the window; the kernel kills rank 13, the others wait for ever."""
    job = report.job(16, 200, STEP, stop_at=171, tail=180, gpu="A100", every=10)
    at = job.stopped + 0.8
    job.event(at, 13, "oom_kill", "Out of memory: Killed process 4182 (python)")
    job.event(at + 0.1, 13, "process_exit", code="-9")
    n, since = job.seen.times.size, job.seen.after(at)
    left = np.concatenate([np.linspace(8e11, 2e9, since), np.full(n - since, 3e11)])
    job.seen.shows([1], node_memory_MemAvailable_bytes=(left, 0.02))
    job.seen.shows([1], span=slice(since, since + 1), node_vmstat_oom_kill=0.1)
    job.seen.ended([13], at)
    return stop("process_crash memory_pressure", exactly(13))


@incident("Kubernetes issues: a process is gone without a report, peers spin", "rich bare")
def killed_silently(report: RetoldReport) -> Expected:
    """The GPU of rank 30 shows 0 % and no memory, the 63 others 100 %: no event at all."""
    job = report.job(64, 160, STEP, stop_at=121, tail=300)
    job.seen.ended([30], job.stopped + 0.5)
    if report.variant == "bare":
        shown = ("GPU_UTIL", "FB_USED", "POWER_USAGE", "SM_CLOCK")
        job.seen.only(*(f"DCGM_FI_DEV_{name}" for name in shown))
    return stop(ENDED, exactly(30))


@incident("Meta, reliability of research clusters: XID 79, a GPU has fallen off the bus")
def off_the_bus(report: RetoldReport) -> Expected:
    """All metrics of one GPU end, the job stops, and the watchdogs of the others fire ten minutes later."""
    job = report.job(32, 150, STEP, stop_at=118, tail=660, gpu="A100", every=30)
    at = job.stopped + 0.4
    job.seen.vanish(at, ranks=[17])
    job.event(at, 17, "xid", "GPU has fallen off the bus", code="79")
    others = [rank for rank in range(32) if rank != 17]
    job.watchdogs(at + 602, 4, dict.fromkeys(others, 2362), 600_000)
    return stop(f"{ENDED} gpu_memory_errors pcie_degradation", exactly(17))


@incident("OPT-175B logbook: a host cannot be reached any more", "rich events", events="none, untimed")
def node_lost(report: RetoldReport) -> Expected:
    """All metrics of a node end; heartbeats of its eight ranks are missed; the job waits."""
    parallelism = {"data": 6, "tensor": 8}
    job = report.job(
        48, 140, STEP, parallelism=parallelism, framework="metaseq", stop_at=112, tail=240, gpu="A100"
    )
    at, ranks = job.stopped + 0.5, job.of_node(3)
    for n, rank in enumerate(ranks):
        job.event(at + 60 + 0.2 * n, rank, "heartbeat_missed")
    job.seen.vanish(at, ranks=ranks, nodes=[3])
    return stop(ENDED, exactly(*ranks))


@incident("Llama 3 report: faulty GPUs, 30 % of the interruptions; XID 48", "events")
def double_bit(report: RetoldReport) -> Expected:
    """An uncorrectable error ends rank 200 of 256 with a signal; peers abort 8 to 30 s later."""
    seconds = STEP | {"forward": 4.0, "backward": 8.1}
    job = report.job(256, 40, seconds, framework="megatron", stop_at=33, tail=120)
    at = job.stopped + 4.0
    job.event(at, 200, "xid", "Double Bit ECC Error", code="48")
    job.event(at + 1.5, 200, "process_exit", code="-6")
    job.gang_abort([200], "-6", (8, 30))
    return stop("process_crash gpu_memory_errors", exactly(200))


@incident("Slurm issues: a step's exit code 137 without any other word", "events", events="forward, untimed")
def numeric_code(report: RetoldReport) -> Expected:
    """Rank 3 exits with 137 and nothing else is reported; its three peers wait."""
    job = report.job(4, 150, STEP, per_node=4, stop_at=131, tail=90)
    job.event(job.stopped + 0.7, 3, "process_exit", code=137)
    return stop("process_crash memory_pressure", exactly(3))


@incident("Any launcher: training is over and every process exits with 0", "events")
def done(report: RetoldReport) -> Expected:
    """The last rows end a minute before the window does, and all ranks exit with code 0: no fault."""
    job = report.job(16, 150, STEP, stop_at=149, tail=60)
    for rank in range(16):
        job.event(job.stopped + 2 + float(report.rng.uniform(0, 1)), rank, "process_exit", code="0")
    return SOUND


@incident("Meta, reliability of research clusters: a rack loses power", "events")
def power_domain(report: RetoldReport) -> Expected:
    """Heartbeats of two neighbouring nodes are missed at once, a minute later all peers abort."""
    job = report.job(64, 100, STEP, stop_at=80, tail=120)
    ranks = job.of_node(4, 5)
    for n, rank in enumerate(ranks):
        job.event(job.stopped + 30 + 0.1 * n, rank, "heartbeat_missed")
    job.gang_abort(ranks, "1", (20, 45))
    return stop(f"{ENDED} nic_degradation", exactly(*ranks))


@incident("AntDT: a slow worker is killed and restarted elsewhere")
def straggler_killed(report: RetoldReport) -> Expected:
    """Rank 6 is throttled for 100 steps; then its process is killed and the job stops."""
    job = report.job(8, 240, STEP, stop_at=220, tail=120, gpu="A100", every=10)
    job.slow("compute", 1.5, [6], 120)
    job.seen.shows([6], since=120, SM_CLOCK=(930, 0.02), CLOCKS_EVENT_REASONS=0x40)
    job.event(job.stopped + 0.6, 6, "process_exit", code="-9")
    job.seen.ended([6], job.stopped + 0.6)
    return stop("process_crash", exactly(6))
