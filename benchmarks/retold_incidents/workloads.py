"""What the job does to itself: stages, sequences, allocators, collectors, compilers."""

from __future__ import annotations

import numpy as np

from benchmarks.retold_incidents.accelerators import COMPUTE
from benchmarks.retold_incidents.exporters import Exporters
from benchmarks.retold_incidents.incident import (
    HEALTHY,
    SLOW,
    Expected,
    Retold,
    exactly,
    incident,
    slow,
    some_of,
    whole,
)
from benchmarks.retold_incidents.jobs import Job

UNEVEN = "unknown sequence_length_imbalance runtime_gc allocator_retries recompilation"
STEP = {"data_loading": 0.008, "forward": 0.9, "backward": 1.8, "transfer": 0.3, "optimizer": 0.08}


@incident(
    "heavy-last-stage",
    "What-if analysis of ByteDance: the last of four stages computes the logits",
    "rich",
    "poor",
    "overlapped",
)
def heavy_last_stage(rng: np.random.Generator, variant: str) -> Retold:
    """The last stage has 31 % more work in every step."""
    seconds = {"data_loading": 0.004, "forward": 2.4, "backward": 4.7, "transfer": 0.5, "optimizer": 0.1}
    parallelism = {"data": 4, "tensor": 4, "pipeline": 4}
    job = Job(rng, 64, 150, seconds, framework="megatron", parallelism=parallelism)
    stage = list(range(48, 64))
    job.slow("compute", 1.31, stage)
    played = job.play()
    expected = slow("stage_imbalance", exactly(*stage))
    if variant == "overlapped":
        # Stages end together within their backward, as in a pipeline with its flush.
        window = played.window("heavy-last-stage", ("forward", "backward"), waiting="backward")
        return Retold(window, expected.or_abstains())
    if variant == "poor":
        window = played.window("heavy-last-stage", ("forward", "backward", "optimizer"), waiting="joint")
        return Retold(window, expected)
    seen = Exporters(played, gpu="A100", every=20)
    return Retold(played.window("heavy-last-stage", metrics=seen.table()), expected)


@incident(
    "long-documents",
    "What-if analysis of ByteDance: sequences of very different length",
    "rich",
    "poor",
    "uncounted",
)
def long_documents(rng: np.random.Generator, variant: str) -> Retold:
    """Squared lengths differ twofold between ranks, at random in each step."""
    job = Job(rng, 32, 220, STEP)
    squares = 4096.0**2 * 8 * rng.gamma(9, 1 / 9, (32, 220))
    share = 0.55 + 0.45 * squares / squares.mean()
    job.slow("compute", share)
    load = {"tokens": np.full((32, 220), 32_768.0), "sum_squared_sequence_length": squares}
    played = job.play()
    everyone = (whole(32), some_of(range(32)))
    expected = slow("sequence_length_imbalance", whole(32))
    if variant == "uncounted":
        window = played.window("long-documents", ("forward", "backward"), waiting="split")
        return Retold(window, slow(UNEVEN, *everyone).or_abstains())
    if variant == "poor":
        window = played.window("long-documents", ("forward", "backward"), waiting="joint", load=load)
        return Retold(window, expected)
    seen = Exporters(played, every=10)
    return Retold(played.window("long-documents", metrics=seen.table(), load=load), expected)


@incident("cache-flushes", "DeepSpeed issues: allocator cache flushes under memory pressure", "rich", "poor")
def cache_flushes(rng: np.random.Generator, variant: str) -> Retold:
    """Each step another two ranks flush their cache for 1.5 s; inputs are alike, memory is 99 % full."""
    job = Job(rng, 16, 240, STEP, framework="deepspeed")
    flushed = rng.random((16, 240)) < 0.13
    job.phase["forward"] += flushed * rng.gamma(8, 0.11, (16, 240))
    job.phase["backward"] += flushed * rng.gamma(8, 0.08, (16, 240))
    even = {"samples": np.full((16, 240), 2.0), "tokens": np.full((16, 240), 8192.0)}
    even["sum_squared_sequence_length"] = np.full((16, 240), 2 * 4096.0**2)
    played = job.play()
    expected = slow("unknown allocator_retries", whole(16), some_of(range(16)))
    if variant == "poor":
        window = played.window("cache-flushes", ("forward", "backward"), waiting="joint", load=even)
        return Retold(window, expected.or_abstains())
    seen = Exporters(played, gpu="A100", every=10)
    seen.set("DCGM_FI_DEV_FB_USED", 81_050, rank=slice(None), noise=0.0006)
    return Retold(played.window("cache-flushes", metrics=seen.table(), load=even), expected.or_abstains())


@incident(
    "collector-in-forward",
    "MegaScale and ByteDance: Python's collector at other steps on every rank",
    "rich",
    "poor",
)
def collector_in_forward(rng: np.random.Generator, variant: str) -> Retold:
    """Pauses of 0.3 to 0.8 s on 4 % of the ranks in each step: nearly every step waits for one."""
    seconds = {
        "data_loading": 0.006,
        "gc": 0.0,
        "forward": 0.8,
        "backward": 1.6,
        "transfer": 0.3,
        "optimizer": 0.07,
    }
    job = Job(rng, 64, 200, seconds)
    pauses = (rng.random((64, 200)) < 0.04) * rng.uniform(0.3, 0.8, (64, 200))
    if variant == "poor":
        job.phase["forward"] += pauses
        window = job.play().window("collector-in-forward", ("forward", "backward"), waiting="joint")
        return Retold(window, slow(UNEVEN, whole(64), some_of(range(64))).or_abstains())
    job.phase["gc"] += pauses
    played = job.play()
    seen = Exporters(played, every=10, processes=True)
    seen.set("python_gc_pause_seconds_total", 0.011, rank=slice(None), device="host", noise=0.3)
    return Retold(played.window("collector-in-forward", metrics=seen.table()), slow("runtime_gc", whole(64)))


@incident(
    "recompiles",
    "PyTorch issue 140229: growing lengths compile the model anew on every change",
    "rich",
    "poor",
)
def recompiles(rng: np.random.Generator, variant: str) -> Retold:
    """All ranks compile for 20 to 35 s whenever the length changes, every 12 steps of 0.4 s."""
    seconds = {"data_loading": 0.004, "forward": 0.12, "backward": 0.22, "transfer": 0.04, "optimizer": 0.02}
    job = Job(rng, 8, 360, seconds)
    changes = np.arange(6, 360, 12)
    job.phase["forward"][:, changes] += rng.uniform(20, 35, changes.size) * rng.lognormal(
        0, 0.02, (8, changes.size)
    )
    played = job.play()
    expected = slow("recompilation unknown", whole(8)).or_abstains().that_lost(2.2)
    if variant == "poor":
        return Retold(played.window("recompiles", ("forward",), waiting="untimed"), expected)
    seen = Exporters(played, every=10, processes=True)
    return Retold(played.window("recompiles", metrics=seen.table()), expected)


@incident(
    "time-grows", "GPT-NeoX issue 1322: the time of a step grows linearly with its number", "rich", "poor"
)
def time_grows(rng: np.random.Generator, variant: str) -> Retold:
    """From 1.7 to 4.6 s over 300 steps, on all ranks alike, and no machine shows anything."""
    seconds = {"data_loading": 0.004, "forward": 0.5, "backward": 1.0, "transfer": 0.12, "optimizer": 0.05}
    job = Job(rng, 8, 300, seconds)
    job.slow("compute", np.linspace(1.0, 2.9, 300))
    played = job.play()
    expected = slow(COMPUTE + " recompilation", whole(8)).or_abstains()
    if variant == "poor":
        return Retold(played.window("time-grows", (), waiting="untimed"), expected)
    return Retold(played.window("time-grows", metrics=Exporters(played, every=10).table()), expected)


@incident(
    "mixed-cards",
    "AntDT: dedicated clusters of mixed hardware, older cards in a quarter of the ranks",
    "rich",
    "poor",
)
def mixed_cards(rng: np.random.Generator, variant: str) -> Retold:
    """One node of four has V100 beside A100: 1.9 times the computing time in every step."""
    job = Job(rng, 16, 260, STEP, per_node=4)
    older = job.of_node(3)
    job.slow("compute", 1.9, older)
    played = job.play()
    expected = slow(COMPUTE, exactly(*older))
    if variant == "poor":
        window = played.window("mixed-cards", ("forward", "backward"), waiting="joint")
        return Retold(window, expected)
    seen = Exporters(played, gpu="A100", every=10, ports=1)
    for name, value in (("SM_CLOCK", 1530), ("MEM_CLOCK", 877), ("FB_USED", 31_200), ("POWER_USAGE", 285)):
        seen.set(f"DCGM_FI_DEV_{name}", value, rank=older, noise=0.003)
    for name in ("PCIE_LINK_GEN", "PCIE_MAX_LINK_GEN"):
        seen.set(f"DCGM_FI_DEV_{name}", 3, rank=older)
    return Retold(played.window("mixed-cards", metrics=seen.table()), expected)


@incident("hot-experts", "DeepSpeed-MoE issues: tokens crowd on the experts of two ranks", "rich")
def hot_experts(rng: np.random.Generator, _: str) -> Retold:
    """The ranks with the favoured experts compute 1.4 times as long; tokens are counted."""
    job = Job(rng, 16, 200, STEP, parallelism={"data": 16, "expert": 16})
    tokens = 8192 * rng.lognormal(0, 0.03, (16, 200))
    tokens[[3, 11]] *= rng.uniform(1.45, 1.75, (2, 200))
    job.slow("compute", 0.3 + 0.7 * tokens / 8192)
    played = job.play()
    seen = Exporters(played, every=10)
    load = {"tokens": np.round(tokens)}
    expected = slow("sequence_length_imbalance unknown", exactly(3, 11), whole(16)).or_abstains()
    return Retold(played.window("hot-experts", metrics=seen.table(), load=load), expected)


@incident("uneven-shards", "PyTorch forum: one rank has a larger batch than its peers", "poor")
def uneven_shards(rng: np.random.Generator, _: str) -> Retold:
    """Rank 7 of 8 gets 1.5 times the samples in every step, which are counted."""
    job = Job(rng, 8, 260, STEP)
    job.slow("compute", 1.5, [7])
    samples = np.full((8, 260), 32.0)
    samples[7] = 48
    window = job.play().window(
        "uneven-shards", ("forward", "backward"), waiting="joint", load={"samples": samples}
    )
    causes = frozenset({"sequence_length_imbalance", "unknown"})
    return Retold(window, Expected(frozenset({SLOW}), (exactly(7),), causes, may_abstain=True))


@incident("longer-batches", "Curriculum learning in DeepSpeed: lengths double at a planned step", "poor")
def longer_batches(rng: np.random.Generator, _: str) -> Retold:
    """All ranks compute 1.9 times as long from step 150 on, with twice the tokens: planned, not a fault."""
    job = Job(rng, 16, 300, STEP)
    job.slow("compute", 1.9, since=150)
    tokens = np.where(np.arange(300) < 150, 4096.0, 8192.0) * np.ones((16, 1))
    window = job.play().window(
        "longer-batches", ("forward", "backward"), waiting="joint", load={"tokens": tokens}
    )
    return Retold(window, Expected(frozenset({HEALTHY})))


@incident(
    "heavy-first-stage",
    "Megatron-LM issues: the embedding makes the first of eight stages slower",
    "poor",
    "rich",
)
def heavy_first_stage(rng: np.random.Generator, variant: str) -> Retold:
    """The first stage has 24 % more work in every step."""
    parallelism = {"data": 2, "tensor": 4, "pipeline": 8}
    job = Job(rng, 64, 140, STEP, framework="megatron", parallelism=parallelism)
    stage = list(range(8))
    job.slow("compute", 1.24, stage)
    played = job.play()
    expected = slow("stage_imbalance", exactly(*stage))
    if variant == "poor":
        window = played.window("heavy-first-stage", ("forward", "backward"), waiting="joint")
        return Retold(window, expected)
    seen = Exporters(played, every=10)
    return Retold(played.window("heavy-first-stage", metrics=seen.table()), expected)
