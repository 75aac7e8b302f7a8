"""Sound jobs that look odd: pauses that were planned, noise within tolerance, clocks that disagree."""

from __future__ import annotations

import numpy as np

from benchmarks.retold_incidents.expected import SOUND, Expected
from benchmarks.retold_incidents.incident import RetoldReport, incident

STEP = {"data_loading": 0.01, "forward": 0.6, "backward": 1.2, "transfer": 0.25, "optimizer": 0.06}
A100 = {"gpu": "A100", "every": 10.0}


@incident("A run without any incident", "rich poor")
def quiet(report: RetoldReport) -> Expected:
    """Nothing happens."""
    report.job(64, 150, STEP, **A100)
    return SOUND


@incident("HF blogs: an evaluation of 20 s every 100 steps, between two steps", "rich poor")
def evaluations(report: RetoldReport) -> Expected:
    """Evaluations take 7 % of the time, on all ranks alike."""
    job, rng = report.job(16, 450, STEP, **A100), report.rng
    evaluating = 15 * rng.lognormal(0, 0.03, (1, 4)) + rng.uniform(0, 0.02, (16, 4))
    job.delay("between", evaluating, steps=slice(99, None, 100))
    return SOUND


@incident("BLOOM chronicles: 40 s per checkpoint, once in three hours", "rich poor")
def rare_saves(report: RetoldReport) -> Expected:
    """One timed save of 40 s in a window of 70 steps of 45 s."""
    seconds = {"data_loading": 0.05, "forward": 13.0, "backward": 27.0, "transfer": 4.0, "optimizer": 0.9}
    parallelism = {"data": 6, "tensor": 8}
    job = report.job(48, 70, seconds, framework="megatron", parallelism=parallelism, gpu="A100", every=30.0)
    job.delay("checkpoint", 40 + report.rng.uniform(0, 0.5, 48), steps=35)
    return SOUND


@incident("PyTorch: asynchronous checkpoints copy to the host for two steps")
def async_saves(report: RetoldReport) -> Expected:
    """Every 60 steps two steps are 9 % longer on all ranks."""
    job = report.job(32, 300, STEP, **A100)
    for first in range(59, 300, 60):
        job.slow("backward", 1.13, since=first, until=first + 2)
    return SOUND


@incident("DataLoader: workers start anew at each epoch", "rich poor")
def worker_restart(report: RetoldReport) -> Expected:
    """Twice in the window every rank waits 3 s for its first batch of an epoch."""
    job = report.job(8, 400, STEP, gpu="V100", every=10)
    job.delay("data_loading", report.rng.gamma(20, 0.15, (8, 2)), steps=[130, 310])
    return SOUND


@incident("Any job: the first steps compile, allocate and tune", "rich poor")
def warm_up(report: RetoldReport) -> Expected:
    """The first step takes 70 s, the next nine up to three times as long as usual."""
    job = report.job(16, 220, STEP, **A100)
    job.delay("forward", 66 + report.rng.uniform(0, 1.5, 16), steps=0)
    job.slow("forward", np.linspace(4.0, 1.05, 9), since=1, until=10)
    return SOUND


@incident("Speech and translation: batches of like length, other lengths in each step", "rich poor")
def varied_lengths(report: RetoldReport) -> Expected:
    """All ranks have the same lengths in a step; steps differ by a factor of three, and tokens tell."""
    job = report.job(16, 300, STEP, **A100)
    length = report.rng.uniform(0.6, 1.8, (1, 300)) * np.ones((16, 1))
    job.slow("compute", length)
    job.load = {"tokens": np.round(8192 * length), "samples": np.full((16, 300), 16.0)}
    return SOUND


@incident("Any cluster: clocks of the nodes differ by up to 2 s", "rich poor")
def skewed_clocks(report: RetoldReport) -> Expected:
    """Nothing but the clocks: start times of four nodes are up to 2 s apart."""
    report.job(32, 200, STEP, every=10).skew = np.array([0.0, 1.9, -0.7, 0.35])
    return SOUND


@incident("MegaScale: chips of one kind differ; here one rank by 1.2 %", "rich poor")
def one_percent(report: RetoldReport) -> Expected:
    """One rank is 1.2 % slower in every step, which is within the tolerance of chips."""
    report.job(32, 240, STEP, every=10).slow("compute", 1.012, [11])
    return SOUND


@incident("Llama 3 report: 1 to 2 % by the time of day; here a warmer node", "rich poor")
def warm_node(report: RetoldReport) -> Expected:
    """The GPUs of a node are 7 C warmer and 2 % slower: nothing to do."""
    job = report.job(32, 240, STEP, every=10)
    ranks = job.of_node(3)
    job.slow("compute", 1.02, ranks)
    if report.variant == "rich":
        job.seen.of_rank["DCGM_FI_DEV_GPU_TEMP", "gpu"][ranks] += 7
        job.seen.of_rank["DCGM_FI_DEV_SM_CLOCK", "gpu"][ranks] -= 30
    return SOUND


@incident("Gradient accumulation: three steps without an exchange, then one with it", "rich poor")
def accumulation(report: RetoldReport) -> Expected:
    """Every fourth step exchanges and updates; the three before it do not."""
    job = report.job(16, 400, STEP | {"transfer": 0.9, "optimizer": 0.3}, **A100)
    idle = np.arange(400) % 4 != 3
    job.transfer[:, idle], job.phase["optimizer"][:, idle] = 0.002, 0.0005
    return SOUND


@incident("Any job: rank 0 logs every tenth step for 40 ms of 2 s")
def log_every_ten(report: RetoldReport) -> Expected:
    """0.2 % of the time."""
    job = report.job(8, 350, STEP, **A100)
    job.delay("between", report.rng.gamma(20, 0.002, 35), 0, slice(9, None, 10))
    return SOUND


@incident("torch.compile: two shapes are compiled early, none later", "poor rich")
def first_compile(report: RetoldReport) -> Expected:
    """Steps 0 and 31 take 45 s on all ranks."""
    job = report.job(8, 260, STEP, **A100)
    job.delay("forward", 43 + report.rng.uniform(0, 2, (8, 2)), steps=[0, 31])
    return SOUND


@incident("A user sends the last 25 steps", "rich poor")
def short_look(report: RetoldReport) -> Expected:
    """25 steps, nothing happens."""
    report.job(8, 25, STEP, gpu="A100", every=5.0)
    return SOUND


@incident("Megatron-LM: pipeline of four stages with bubbles, first stage with the embedding")
def even_stages(report: RetoldReport) -> Expected:
    """Stages differ by 2 %, as they should."""
    parallelism = {"data": 2, "tensor": 4, "pipeline": 4}
    job = report.job(32, 180, STEP, framework="megatron", parallelism=parallelism, **A100)
    job.slow("compute", 1.02, slice(24, 32))
    job.slow("compute", 1.01, slice(0, 8))
    return SOUND


@incident("FALCON: short congestion is everywhere; here 1 % of the exchanges", "rich poor")
def noisy_fabric(report: RetoldReport) -> Expected:
    """One exchange in a hundred takes twice as long; the job loses 0.1 %."""
    job = report.job(64, 250, STEP, every=10)
    job.transfer[:, report.rng.random(250) < 0.012] *= 2
    return SOUND


@incident("dcgm-exporter issues: power cap reasons on all GPUs of a busy H100 job")
def hot_but_fast(report: RetoldReport) -> Expected:
    """The power cap acts on all GPUs a third of the time, and all are equally fast."""
    seen, rng = report.job(64, 150, STEP, every=10).seen, report.rng
    shape = (64, seen.times.size)
    seen.of_rank["DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "gpu"] = 4.0 * (rng.random(shape) < 0.35)
    seen.of_rank["DCGM_FI_DEV_SM_CLOCK", "gpu"] -= 15.0 * rng.integers(0, 8, shape)
    seen.shows(POWER_VIOLATION=(6e7, 0.4))
    return SOUND


@incident("NVIDIA: an idle GPU reports PCIe generation 1 to save power")
def retrained_idle_link(report: RetoldReport) -> Expected:
    """Before training begins all links show generation 1; under load all show 4."""
    job = report.job(8, 200, STEP, **A100)
    job.delay("forward", 80, steps=0)
    job.seen.shows(until=1, PCIE_LINK_GEN=1, GPU_UTIL=0)
    return SOUND
