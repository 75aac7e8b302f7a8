"""What the job does to itself: stages, sequences, allocators, collectors, compilers."""

from __future__ import annotations

import numpy as np

from benchmarks.retold_incidents.accelerators import COMPUTE
from benchmarks.retold_incidents.expected import SOUND, Expected, exactly, slow, some_of, whole
from benchmarks.retold_incidents.incident import RetoldReport, incident

UNEVEN = "unknown sequence_length_imbalance runtime_gc allocator_retries recompilation"
STEP = {"data_loading": 0.008, "forward": 0.9, "backward": 1.8, "transfer": 0.3, "optimizer": 0.08}


@incident(
    "What-if analysis of ByteDance: the last of four stages computes the logits",
    "rich poor overlapped", poor="forward backward optimizer, joint",
)  # fmt: skip
def heavy_last_stage(report: RetoldReport) -> Expected:
    """The last stage has 31 % more work in every step."""
    seconds = {"data_loading": 0.004, "forward": 2.4, "backward": 4.7, "transfer": 0.5, "optimizer": 0.1}
    parallelism = {"data": 4, "tensor": 4, "pipeline": 4}
    job = report.job(64, 150, seconds, framework="megatron", parallelism=parallelism, gpu="A100", every=20)
    job.slow("compute", 1.31, slice(48, 64))
    # Overlapped, stages end together within their backward, as in a pipeline with its flush.
    return slow("stage_imbalance", exactly(*range(48, 64))).or_abstains(report.variant == "overlapped")


@incident(
    "What-if analysis of ByteDance: sequences of very different length",
    "rich poor uncounted", uncounted="few, split",
)  # fmt: skip
def long_documents(report: RetoldReport) -> Expected:
    """Squared lengths differ twofold between ranks, at random in each step."""
    job = report.job(32, 220, STEP, every=10)
    squares = 4096.0**2 * 8 * report.rng.gamma(9, 1 / 9, (32, 220))
    job.slow("compute", 0.55 + 0.45 * squares / squares.mean())
    if report.variant == "uncounted":
        return slow(UNEVEN, whole(32), some_of(range(32))).or_abstains()
    job.load = {"tokens": np.full((32, 220), 32_768.0), "sum_squared_sequence_length": squares}
    return slow("sequence_length_imbalance", whole(32))


@incident("DeepSpeed issues: allocator cache flushes under memory pressure", "rich poor")
def cache_flushes(report: RetoldReport) -> Expected:
    """Each step another two ranks flush their cache for 1.5 s; inputs are alike, memory is 99 % full."""
    job, rng = report.job(16, 240, STEP, framework="deepspeed", gpu="A100", every=10), report.rng
    flushed = rng.random((16, 240)) < 0.13
    job.delay("forward", flushed * rng.gamma(8, 0.11, (16, 240)))
    job.delay("backward", flushed * rng.gamma(8, 0.08, (16, 240)))
    even = {"samples": 2.0, "tokens": 8192.0, "sum_squared_sequence_length": 2 * 4096.0**2}
    job.load = {name: np.full((16, 240), value) for name, value in even.items()}
    job.seen.shows(FB_USED=(81_050, 0.0006))
    return slow("unknown allocator_retries", whole(16), some_of(range(16))).or_abstains()


@incident("MegaScale and ByteDance: Python's collector at other steps on every rank", "rich poor")
def collector_in_forward(report: RetoldReport) -> Expected:
    """Pauses of 0.3 to 0.8 s on 4 % of the ranks in each step: nearly every step waits for one."""
    seconds = {"data_loading": 0.006, "gc": 0.0, "forward": 0.8, "backward": 1.6, "transfer": 0.3}
    job = report.job(64, 200, seconds | {"optimizer": 0.07}, every=10, processes=True)
    pauses = (report.rng.random((64, 200)) < 0.04) * report.rng.uniform(0.3, 0.8, (64, 200))
    job.delay("gc" if report.variant == "rich" else "forward", pauses)
    if report.variant == "poor":
        return slow(UNEVEN, whole(64), some_of(range(64))).or_abstains()
    job.seen.shows(device="host", python_gc_pause_seconds_total=(0.011, 0.3))
    return slow("runtime_gc", whole(64))


@incident(
    "PyTorch issue 140229: growing lengths compile the model anew on every change",
    "rich poor", poor="forward, untimed",
)  # fmt: skip
def recompiles(report: RetoldReport) -> Expected:
    """All ranks compile for 20 to 35 s whenever the length changes, every 12 steps of 0.4 s."""
    seconds = {"data_loading": 0.004, "forward": 0.12, "backward": 0.22, "transfer": 0.04, "optimizer": 0.02}
    job, rng = report.job(8, 360, seconds, every=10, processes=True), report.rng
    compiling = rng.uniform(20, 35, 30) * rng.lognormal(0, 0.02, (8, 30))
    job.delay("forward", compiling, steps=slice(6, None, 12))
    return slow("recompilation unknown", whole(8)).or_abstains().that_lost(2.2)


@incident(
    "GPT-NeoX issue 1322: the time of a step grows linearly with its number",
    "rich poor",
    poor="none, untimed",
)
def time_grows(report: RetoldReport) -> Expected:
    """From 1.7 to 4.6 s over 300 steps, on all ranks alike, and no machine shows anything."""
    seconds = {"data_loading": 0.004, "forward": 0.5, "backward": 1.0, "transfer": 0.12, "optimizer": 0.05}
    report.job(8, 300, seconds, every=10).slow("compute", np.linspace(1.0, 2.9, 300))
    return slow(COMPUTE + " recompilation", whole(8)).or_abstains()


@incident("AntDT: dedicated clusters of mixed hardware, older cards in a quarter of the ranks", "rich poor")
def mixed_cards(report: RetoldReport) -> Expected:
    """One node of four has V100 beside A100: 1.9 times the computing time in every step."""
    job = report.job(16, 260, STEP, per_node=4, gpu="A100", every=10, ports=1)
    older = job.of_node(3)
    job.slow("compute", 1.9, older)
    job.seen.shows(older, SM_CLOCK=(1530, 0.003), MEM_CLOCK=(877, 0.003), FB_USED=(31_200, 0.003))
    job.seen.shows(older, POWER_USAGE=(285, 0.003), PCIE_LINK_GEN=3, PCIE_MAX_LINK_GEN=3)
    return slow(COMPUTE, exactly(*older))


@incident("DeepSpeed-MoE issues: tokens crowd on the experts of two ranks")
def hot_experts(report: RetoldReport) -> Expected:
    """The ranks with the favoured experts compute 1.4 times as long; tokens are counted."""
    job, rng = report.job(16, 200, STEP, parallelism={"data": 16, "expert": 16}, every=10), report.rng
    tokens = 8192 * rng.lognormal(0, 0.03, (16, 200))
    tokens[[3, 11]] *= rng.uniform(1.45, 1.75, (2, 200))
    job.slow("compute", 0.3 + 0.7 * tokens / 8192)
    job.load = {"tokens": np.round(tokens)}
    return slow("sequence_length_imbalance unknown", exactly(3, 11), whole(16)).or_abstains()


@incident("PyTorch forum: one rank has a larger batch than its peers", "poor")
def uneven_shards(report: RetoldReport) -> Expected:
    """Rank 7 of 8 gets 1.5 times the samples in every step, which are counted."""
    job = report.job(8, 260, STEP)
    job.slow("compute", 1.5, [7])
    job.load = {"samples": np.where(np.arange(8) == 7, 48.0, 32.0)[:, None] * np.ones(260)}
    return slow("sequence_length_imbalance unknown", exactly(7)).or_abstains()


@incident("Curriculum learning in DeepSpeed: lengths double at a planned step", "poor")
def longer_batches(report: RetoldReport) -> Expected:
    """All ranks compute 1.9 times as long from step 150 on, with twice the tokens: planned, not a fault."""
    job = report.job(16, 300, STEP)
    job.slow("compute", 1.9, since=150)
    job.load = {"tokens": np.where(np.arange(300) < 150, 4096.0, 8192.0) * np.ones((16, 1))}
    return SOUND


@incident("Megatron-LM issues: the embedding makes the first of eight stages slower", "poor rich")
def heavy_first_stage(report: RetoldReport) -> Expected:
    """The first stage has 24 % more work in every step."""
    parallelism = {"data": 2, "tensor": 4, "pipeline": 8}
    job = report.job(64, 140, STEP, framework="megatron", parallelism=parallelism, every=10)
    job.slow("compute", 1.24, slice(0, 8))
    return slow("stage_imbalance", exactly(*range(8)))
