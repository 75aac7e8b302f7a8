"""Sound jobs that look odd: pauses that were planned, noise within tolerance, clocks that disagree."""

from __future__ import annotations

import numpy as np

from benchmarks.retold_incidents.exporters import Exporters
from benchmarks.retold_incidents.incident import SOUND, Retold, incident
from benchmarks.retold_incidents.jobs import Job

STEP = {"data_loading": 0.01, "forward": 0.6, "backward": 1.2, "transfer": 0.25, "optimizer": 0.06}
FEW = ("forward", "backward")


def _told(job: Job, name: str, variant: str, gpu: str = "A100", every: float = 10.0) -> Retold:
    """The job with all phases and exporters, or with two phases."""
    played = job.play()
    if variant == "poor":
        return Retold(played.window(name, FEW, waiting="joint"), SOUND)
    return Retold(played.window(name, metrics=Exporters(played, gpu=gpu, every=every).table()), SOUND)


@incident("quiet", "A run without any incident", "rich", "poor")
def quiet(rng: np.random.Generator, variant: str) -> Retold:
    """Nothing happens."""
    return _told(Job(rng, 64, 150, STEP), "quiet", variant)


@incident("evaluations", "HF blogs: an evaluation of 20 s every 100 steps, between two steps", "rich", "poor")
def evaluations(rng: np.random.Generator, variant: str) -> Retold:
    """Evaluations take 7 % of the time, on all ranks alike."""
    job = Job(rng, 16, 450, STEP)
    job.between[:, 99::100] += 15 * rng.lognormal(0, 0.03, (1, 4)) + rng.uniform(0, 0.02, (16, 4))
    return _told(job, "evaluations", variant)


@incident("rare-saves", "BLOOM chronicles: 40 s per checkpoint, once in three hours", "rich", "poor")
def rare_saves(rng: np.random.Generator, variant: str) -> Retold:
    """One timed save of 40 s in a window of 70 steps of 45 s."""
    seconds = {"data_loading": 0.05, "forward": 13.0, "backward": 27.0, "transfer": 4.0, "optimizer": 0.9}
    job = Job(rng, 48, 70, seconds, framework="megatron", parallelism={"data": 6, "tensor": 8})
    job.phase["checkpoint"] = np.zeros((48, 70))
    job.phase["checkpoint"][:, 35] = 40 + rng.uniform(0, 0.5, 48)
    return _told(job, "rare-saves", variant, every=30.0)


@incident("async-saves", "PyTorch: asynchronous checkpoints copy to the host for two steps", "rich")
def async_saves(rng: np.random.Generator, variant: str) -> Retold:
    """Every 60 steps two steps are 9 % longer on all ranks."""
    job = Job(rng, 32, 300, STEP)
    for first in range(59, 300, 60):
        job.phase["backward"][:, first : first + 2] *= 1.13
    return _told(job, "async-saves", variant)


@incident("worker-restart", "DataLoader: workers start anew at each epoch", "rich", "poor")
def worker_restart(rng: np.random.Generator, variant: str) -> Retold:
    """Twice in the window every rank waits 3 s for its first batch of an epoch."""
    job = Job(rng, 8, 400, STEP)
    job.phase["data_loading"][:, [130, 310]] += rng.gamma(20, 0.15, (8, 2))
    return _told(job, "worker-restart", variant, gpu="V100")


@incident("warm-up", "Any job: the first steps compile, allocate and tune", "rich", "poor")
def warm_up(rng: np.random.Generator, variant: str) -> Retold:
    """The first step takes 70 s, the next nine up to three times as long as usual."""
    job = Job(rng, 16, 220, STEP)
    job.phase["forward"][:, 0] += 66 + rng.uniform(0, 1.5, 16)
    job.phase["forward"][:, 1:10] *= np.linspace(4.0, 1.05, 9)
    return _told(job, "warm-up", variant)


@incident(
    "varied-lengths",
    "Speech and translation: batches of like length, other lengths in each step",
    "rich",
    "poor",
)
def varied_lengths(rng: np.random.Generator, variant: str) -> Retold:
    """All ranks have the same lengths in a step; steps differ by a factor of three, and tokens tell."""
    job = Job(rng, 16, 300, STEP)
    length = rng.uniform(0.6, 1.8, (1, 300)) * np.ones((16, 1))
    job.slow("compute", length)
    load = {"tokens": np.round(8192 * length), "samples": np.full((16, 300), 16.0)}
    played = job.play()
    if variant == "poor":
        return Retold(played.window("varied-lengths", FEW, waiting="joint", load=load), SOUND)
    seen = Exporters(played, gpu="A100", every=10)
    return Retold(played.window("varied-lengths", metrics=seen.table(), load=load), SOUND)


@incident("skewed-clocks", "Any cluster: clocks of the nodes differ by up to 2 s", "rich", "poor")
def skewed_clocks(rng: np.random.Generator, variant: str) -> Retold:
    """Nothing but the clocks: start times of four nodes are up to 2 s apart."""
    played = Job(rng, 32, 200, STEP).play()
    played.skew = np.array([0.0, 1.9, -0.7, 0.35])
    if variant == "poor":
        return Retold(played.window("skewed-clocks", FEW, waiting="joint"), SOUND)
    return Retold(played.window("skewed-clocks", metrics=Exporters(played, every=10).table()), SOUND)


@incident("one-percent", "MegaScale: chips of one kind differ; here one rank by 1.2 %", "rich", "poor")
def one_percent(rng: np.random.Generator, variant: str) -> Retold:
    """One rank is 1.2 % slower in every step, which is within the tolerance of chips."""
    job = Job(rng, 32, 240, STEP)
    job.slow("compute", 1.012, [11])
    return _told(job, "one-percent", variant, gpu="H100")


@incident("warm-node", "Llama 3 report: 1 to 2 % by the time of day; here a warmer node", "rich", "poor")
def warm_node(rng: np.random.Generator, variant: str) -> Retold:
    """The GPUs of a node are 7 C warmer and 2 % slower: nothing to do."""
    job = Job(rng, 32, 240, STEP)
    ranks = job.of_node(3)
    job.slow("compute", 1.02, ranks)
    played = job.play()
    if variant == "poor":
        return Retold(played.window("warm-node", FEW, waiting="joint"), SOUND)
    seen = Exporters(played, every=10)
    seen.of_rank["DCGM_FI_DEV_GPU_TEMP", "gpu"][ranks] += 7
    seen.of_rank["DCGM_FI_DEV_SM_CLOCK", "gpu"][ranks] -= 30
    return Retold(played.window("warm-node", metrics=seen.table()), SOUND)


@incident(
    "accumulation", "Gradient accumulation: three steps without an exchange, then one with it", "rich", "poor"
)
def accumulation(rng: np.random.Generator, variant: str) -> Retold:
    """Every fourth step exchanges and updates; the three before it do not."""
    job = Job(rng, 16, 400, STEP | {"transfer": 0.9, "optimizer": 0.3})
    idle = np.arange(400) % 4 != 3
    job.transfer[:, idle] = 0.002
    job.phase["optimizer"][:, idle] = 0.0005
    return _told(job, "accumulation", variant)


@incident("log-every-ten", "Any job: rank 0 logs every tenth step for 40 ms of 2 s", "rich")
def log_every_ten(rng: np.random.Generator, variant: str) -> Retold:
    """0.2 % of the time."""
    job = Job(rng, 8, 350, STEP)
    job.between[0, 9::10] += rng.gamma(20, 0.002, 35)
    return _told(job, "log-every-ten", variant)


@incident("first-compile", "torch.compile: two shapes are compiled early, none later", "poor", "rich")
def first_compile(rng: np.random.Generator, variant: str) -> Retold:
    """Steps 0 and 31 take 45 s on all ranks."""
    job = Job(rng, 8, 260, STEP)
    job.phase["forward"][:, [0, 31]] += 43 + rng.uniform(0, 2, (8, 2))
    return _told(job, "first-compile", variant)


@incident("short-look", "A user sends the last 25 steps", "rich", "poor")
def short_look(rng: np.random.Generator, variant: str) -> Retold:
    """25 steps, nothing happens."""
    return _told(Job(rng, 8, 25, STEP), "short-look", variant, every=5.0)


@incident(
    "even-stages", "Megatron-LM: pipeline of four stages with bubbles, first stage with the embedding", "rich"
)
def even_stages(rng: np.random.Generator, variant: str) -> Retold:
    """Stages differ by 2 %, as they should."""
    parallelism = {"data": 2, "tensor": 4, "pipeline": 4}
    job = Job(rng, 32, 180, STEP, framework="megatron", parallelism=parallelism)
    job.slow("compute", 1.02, slice(24, 32))
    job.slow("compute", 1.01, slice(0, 8))
    return _told(job, "even-stages", variant)


@incident("noisy-fabric", "FALCON: short congestion is everywhere; here 1 % of the exchanges", "rich", "poor")
def noisy_fabric(rng: np.random.Generator, variant: str) -> Retold:
    """One exchange in a hundred takes twice as long; the job loses 0.1 %."""
    job = Job(rng, 64, 250, STEP)
    job.transfer[:, rng.random(250) < 0.012] *= 2
    return _told(job, "noisy-fabric", variant, gpu="H100")


@incident("hot-but-fast", "dcgm-exporter issues: power cap reasons on all GPUs of a busy H100 job", "rich")
def hot_but_fast(rng: np.random.Generator, _: str) -> Retold:
    """The power cap acts on all GPUs a third of the time, and all are equally fast."""
    played = Job(rng, 64, 150, STEP).play()
    seen = Exporters(played, every=10)
    shape = (64, seen.times.size)
    seen.of_rank["DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "gpu"] = 4.0 * (rng.random(shape) < 0.35)
    seen.of_rank["DCGM_FI_DEV_SM_CLOCK", "gpu"] -= 15.0 * rng.integers(0, 8, shape)
    seen.set("DCGM_FI_DEV_POWER_VIOLATION", 6e7, rank=slice(None), noise=0.4)
    return Retold(played.window("hot-but-fast", metrics=seen.table()), SOUND)


@incident("retrained-idle-link", "NVIDIA: an idle GPU reports PCIe generation 1 to save power", "rich")
def retrained_idle_link(rng: np.random.Generator, _: str) -> Retold:
    """Before training begins all links show generation 1; under load all show 4."""
    job = Job(rng, 8, 200, STEP)
    job.phase["forward"][:, 0] += 80
    played = job.play()
    seen = Exporters(played, gpu="A100", every=10)
    seen.set("DCGM_FI_DEV_PCIE_LINK_GEN", 1, rank=slice(None), span=slice(0, seen.since(1)))
    seen.set("DCGM_FI_DEV_GPU_UTIL", 0, rank=slice(None), span=slice(0, seen.since(1)))
    return Retold(played.window("retrained-idle-link", metrics=seen.table()), SOUND)
