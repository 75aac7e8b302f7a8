"""Time that no timer covers: between two steps, or within a step beside its phases."""

from __future__ import annotations

import numpy as np

from benchmarks.retold_incidents.exporters import Exporters
from benchmarks.retold_incidents.incident import Expected, Retold, exactly, incident, slow, some_of, whole
from benchmarks.retold_incidents.jobs import Job

STEP = {"data_loading": 0.004, "forward": 0.11, "backward": 0.22, "transfer": 0.05, "optimizer": 0.02}
LOST = "unknown runtime_gc"


@incident(
    "rank-0-logs",
    "Weights & Biases and TensorBoard issues: rank 0 writes summaries in every step",
    "rich",
    "poor",
)
def rank_0_logs(rng: np.random.Generator, variant: str) -> Retold:
    """Rank 0 is busy for 0.17 s between its steps, outside every timer: the seven others wait for it."""
    job = Job(rng, 8, 700, STEP)
    job.between[0] += rng.gamma(12, 0.17 / 12, 700)
    played = job.play()
    if variant == "poor":
        window = played.window("rank-0-logs", ("forward", "backward"), waiting="joint")
        return Retold(window, slow("unknown", exactly(0)).or_abstains())
    seen = Exporters(played, gpu="A100", every=5, processes=True)
    seen.set("python_gc_pause_seconds_total", 0.002, rank=slice(None), device="host", noise=0.2)
    window = played.window("rank-0-logs", metrics=seen.table())
    return Retold(window, slow("unknown", exactly(0)))


@incident(
    "item-on-rank-0",
    "PyTorch performance guide: rank 0 reads values of the device at every tenth step",
    "rich",
)
def item_on_rank_0(rng: np.random.Generator, _: str) -> Retold:
    """Every tenth step rank 0 takes 1.6 s for images and histograms before it begins the next one."""
    job = Job(rng, 16, 600, STEP)
    job.between[0, 9::10] += rng.gamma(30, 1.6 / 30, 60)
    played = job.play()
    seen = Exporters(played, gpu="A100", every=5, processes=True)
    window = played.window("item-on-rank-0", metrics=seen.table())
    return Retold(window, slow("unknown checkpoint_stall", exactly(0)).or_abstains())


@incident(
    "collector-between", "MegaScale: collections in turns on all machines, between two steps", "poor", "rich"
)
def collector_between(rng: np.random.Generator, variant: str) -> Retold:
    """Each step two or three of 96 ranks pause for 1.1 to 2 s before it begins: 17 % is lost."""
    seconds = {"data_loading": 0.01, "forward": 1.9, "backward": 3.9, "transfer": 0.7, "optimizer": 0.15}
    job = Job(rng, 96, 180, seconds)
    job.between += (rng.random((96, 180)) < 0.026) * rng.uniform(1.1, 2.0, (96, 180))
    played = job.play()
    if variant == "poor":
        window = played.window("collector-between", ("forward", "backward", "optimizer"), waiting="split")
        return Retold(window, slow(LOST, whole(96), some_of(range(96))).or_abstains().that_lost(1.2))
    seen = Exporters(played, every=20, processes=True)
    seen.set("python_gc_pause_seconds_total", 0.0056, rank=slice(None), device="host", noise=0.5)
    window = played.window("collector-between", metrics=seen.table())
    return Retold(window, slow(LOST, whole(96), some_of(range(96))).or_abstains().that_lost(1.2))


@incident("all-pause-between", "ByteDance: planned collections, here far too often", "poor")
def all_pause_between(rng: np.random.Generator, _: str) -> Retold:
    """Every fourth step all ranks stop for 2.4 s between two steps of 1.6 s: 27 % of the time."""
    seconds = {"data_loading": 0.005, "forward": 0.45, "backward": 0.9, "transfer": 0.2, "optimizer": 0.05}
    job = Job(rng, 32, 320, seconds)
    job.between[:, 3::4] += 2.4 * rng.lognormal(0, 0.05, (1, 80)) * rng.lognormal(0, 0.01, (32, 80))
    window = job.play().window("all-pause-between", ("forward", "backward"), waiting="joint")
    expected = Expected(frozenset({"fail_slow"}), (whole(32),), frozenset(LOST.split()), True, 0.6)
    return Retold(window, expected)


@incident("print-zeros", "DeepSpeed: a timer prints 0.00 for what it does not measure", "poor", "slow")
def print_zeros(rng: np.random.Generator, variant: str) -> Retold:
    """Loading and exchange are zero in every row; in one variant rank 4 computes 1.6 times as long."""
    job = Job(rng, 8, 260, STEP, framework="deepspeed")
    if variant == "slow":
        job.slow("compute", 1.6, [4], 100)
    played = job.play()
    job.phase["data_loading"] = np.zeros((8, 260))
    job.phase["checkpoint"] = np.zeros((8, 260))
    window = played.window(
        "print-zeros", ("data_loading", "forward", "backward", "checkpoint"), waiting="untimed"
    )
    if variant == "poor":
        return Retold(window, Expected(frozenset({"healthy"})))
    causes = "unknown gpu_throttling gpu_contention gpu_memory_errors cpu_contention"
    return Retold(window, slow(causes, exactly(4)))
