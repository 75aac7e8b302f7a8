"""Time that no timer covers: between two steps, or within a step beside its phases."""

from __future__ import annotations

from benchmarks.retold_incidents.accelerators import COMPUTE
from benchmarks.retold_incidents.expected import SOUND, Expected, exactly, slow, some_of, whole
from benchmarks.retold_incidents.incident import RetoldReport, incident

STEP = {"data_loading": 0.004, "forward": 0.11, "backward": 0.22, "transfer": 0.05, "optimizer": 0.02}
LOST = "unknown runtime_gc"


@incident("Weights & Biases and TensorBoard issues: rank 0 writes summaries in every step", "rich poor")
def rank_0_logs(report: RetoldReport) -> Expected:
    """Rank 0 is busy for 0.17 s between its steps, outside every timer: the seven others wait for it."""
    job = report.job(8, 700, STEP, gpu="A100", every=5, processes=True)
    job.delay("between", report.rng.gamma(12, 0.17 / 12, 700), 0)
    job.seen.shows(device="host", python_gc_pause_seconds_total=(0.002, 0.2))
    return slow("unknown", exactly(0)).or_abstains(report.variant == "poor")


@incident("PyTorch performance guide: rank 0 reads values of the device at every tenth step")
def item_on_rank_0(report: RetoldReport) -> Expected:
    """Every tenth step rank 0 takes 1.6 s for images and histograms before it begins the next one."""
    job = report.job(16, 600, STEP, gpu="A100", every=5, processes=True)
    job.delay("between", report.rng.gamma(30, 1.6 / 30, 60), 0, slice(9, None, 10))
    return slow("unknown checkpoint_stall", exactly(0)).or_abstains()


@incident(
    "MegaScale: collections in turns on all machines, between two steps",
    "poor rich", poor="forward backward optimizer, split",
)  # fmt: skip
def collector_between(report: RetoldReport) -> Expected:
    """Each step two or three of 96 ranks pause for 1.1 to 2 s before it begins: 17 % is lost."""
    seconds = {"data_loading": 0.01, "forward": 1.9, "backward": 3.9, "transfer": 0.7, "optimizer": 0.15}
    job, rng = report.job(96, 180, seconds, every=20, processes=True), report.rng
    job.delay("between", (rng.random((96, 180)) < 0.026) * rng.uniform(1.1, 2.0, (96, 180)))
    job.seen.shows(device="host", python_gc_pause_seconds_total=(0.0056, 0.5))
    return slow(LOST, whole(96), some_of(range(96))).or_abstains().that_lost(1.2)


@incident("ByteDance: planned collections, here far too often", "poor")
def all_pause_between(report: RetoldReport) -> Expected:
    """Every fourth step all ranks stop for 2.4 s between two steps of 1.6 s: 27 % of the time."""
    seconds = {"data_loading": 0.005, "forward": 0.45, "backward": 0.9, "transfer": 0.2, "optimizer": 0.05}
    job, rng = report.job(32, 320, seconds), report.rng
    pauses = 2.4 * rng.lognormal(0, 0.05, (1, 80)) * rng.lognormal(0, 0.01, (32, 80))
    job.delay("between", pauses, steps=slice(3, None, 4))
    return slow(LOST, whole(32)).or_abstains().that_lost(0.6)


@incident(
    "DeepSpeed: a timer prints 0.00 for what it does not measure", "poor slow",
    poor="data_loading forward backward checkpoint, untimed",
    slow="data_loading forward backward checkpoint, untimed",
)  # fmt: skip
def print_zeros(report: RetoldReport) -> Expected:
    """Loading and exchange are zero in every row; in one variant rank 4 computes 1.6 times as long."""
    job = report.job(8, 260, STEP, framework="deepspeed")
    if report.variant == "slow":
        job.slow("compute", 1.6, [4], 100)
    job.play()
    job.phase["data_loading"] = 0 * job.held("checkpoint")
    return SOUND if report.variant == "poor" else slow(COMPUTE, exactly(4))
