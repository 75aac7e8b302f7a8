"""Two faults at once, episodes of different ranks, and several slow ranks under real noise."""

from __future__ import annotations

import numpy as np

from benchmarks.retold_incidents.accelerators import COMPUTE, THERMAL
from benchmarks.retold_incidents.expected import Expected, RankBounds, between, exactly, slow, some_of, whole
from benchmarks.retold_incidents.exporters import PORTS
from benchmarks.retold_incidents.incident import RetoldReport, incident
from benchmarks.retold_incidents.jobs import ReportedJob

STEP = {"data_loading": 0.01, "forward": 0.7, "backward": 1.4, "transfer": 0.35, "optimizer": 0.07}


def throttled(job: ReportedJob, ranks: list[int], clock: float, since: int) -> None:
    """Low clocks for heat from a step on."""
    job.seen.shows(ranks, since=since, SM_CLOCK=(clock, 0.02), GPU_TEMP=(89, 0.005))
    job.seen.shows(ranks, since=since, CLOCKS_EVENT_REASONS=THERMAL, THERMAL_VIOLATION=(7e8, 0.05))


@incident("FALCON: mixed causes in three of 27 large jobs; a hot GPU and a stalled loader")
def hot_and_starved(report: RetoldReport) -> Expected:
    """GPU 7 is throttled from step 80 on; the loader of rank 26 stalls from step 150 on."""
    job = report.job(32, 260, STEP, gpu="A100", every=10)
    job.slow("compute", 1.33, [7], 80)
    job.delay("data_loading", report.rng.gamma(9, 0.15, 110), 26, slice(150, None))
    throttled(job, [7], 1050, 80)
    return slow("gpu_throttling data_loader_stall", exactly(7, 26))


@incident("FALCON: congestion and a degraded GPU took 90 % of a job's speed")
def congested_and_hot(report: RetoldReport) -> Expected:
    """The exchange takes three times as long on all nodes; from step 60 on GPU 20 is 1.6 times as slow."""
    job = report.job(32, 240, STEP, gpu="A100", every=10, roce=True)
    job.slow("transfer", report.rng.uniform(2.4, 3.8, 120), since=120)
    job.slow("compute", 1.6, [20], 60)
    throttled(job, [20], 880, 60)
    job.seen.shows(since=120, device=PORTS, np_cnp_sent=(4800, 0.3), rp_cnp_handled=(4800, 0.3))
    return slow("gpu_throttling network_congestion", between([20], range(32)))


@incident("Minder: a slow PCIe link fills buffers, and pause frames reach other nodes")
def pause_frames(report: RetoldReport) -> Expected:
    """One GPU's link at generation 3 of 5; its node sends pause frames. All exchanges are longer."""
    job = report.job(64, 180, STEP | {"host_to_device": 0.05}, roce=True)
    job.slow("host_to_device", 3.6, [43], 60)
    job.slow("transfer", report.rng.uniform(1.7, 2.3, 120), since=60)
    job.seen.shows([43], since=60, PCIE_LINK_GEN=3, DCGM_FI_PROF_PCIE_RX_BYTES=(6e8, 0.1))
    for node in range(8):
        frames = 8200.0 if node == 5 else 40.0
        job.seen.shows([node], since=60, device="mlx5_3/1", tx_prio3_pause=(frames, 0.2))
    return slow("pcie_degradation", between([43], job.of_node(5)))


@incident("Alibaba PAI trace: some workers are always slow, another one for an episode", "poor")
def ten_percent_for_ever(report: RetoldReport) -> Expected:
    """Ranks 0 and 1 of 12 are 12 % slow in every step; rank 9 is 60 % slow for 90 of 400 steps."""
    job = report.job(12, 400, STEP, per_node=4, noise=0.03)
    job.slow("compute", 1.12, [0, 1])
    job.slow("compute", 1.6, [9], 180, 270)
    return slow(COMPUTE, RankBounds(frozenset({9}), frozenset({0, 1, 9})), exactly(0, 1))


@incident(
    "Alibaba PAI trace: several workers slow at once among noisy peers", "poor bare", bare="none, untimed"
)
def three_of_twelve(report: RetoldReport) -> Expected:
    """Workers 2, 5 and 11 become three times as slow; the others have heavy-tailed noise of 15 %."""
    seconds = {"forward": 0.06, "backward": 0.12, "transfer": 0.03, "optimizer": 0.01}
    job = report.job(12, 420, seconds, per_node=4, noise=0.08)
    job.slow("compute", 1 + report.rng.gamma(0.6, 0.2, (12, 420)))
    job.slow("compute", 3.0, [2, 5, 11], 190)
    if report.variant == "bare":
        # A parameter server: every worker goes its own way, so the step times themselves differ.
        job.play()
        job.whole = job.whole - job.wait
        job.begin = np.cumsum(job.whole, axis=1) - job.whole + job.start
        job.end = float((job.begin + job.whole).max()) + 2
    return slow(COMPUTE, exactly(2, 5, 11))


@incident("Llama 3 report: several GPUs throttle in turns on a hot day", "rich poor")
def episodes(report: RetoldReport) -> Expected:
    """GPUs 3, 14 and 22 are 30 % slower one after the other, for 40 to 60 steps each."""
    job = report.job(24, 320, STEP, every=10)
    turns = ((3, 40, 100), (14, 130, 170), (22, 220, 280))
    for rank, first, last in turns:
        job.slow("compute", 1.3, [rank], first, last)
    for rank, first, last in turns:
        hot = {"SM_CLOCK": (1480, 0.02), "CLOCKS_EVENT_REASONS": float(0x20), "GPU_TEMP": (87, 0.01)}
        job.seen.shows([rank], since=first, until=last, **hot)
    rich = report.variant == "rich"
    return slow("gpu_throttling" if rich else COMPUTE, exactly(3, 14, 22)).or_abstains(not rich)


@incident("Imbue 70B: a rack whose fans failed")
def two_throttled_nodes(report: RetoldReport) -> Expected:
    """All GPUs of two nodes heat up together, at once, and lose 24 % of their clock."""
    job = report.job(64, 200, STEP)
    ranks = job.of_node(2, 3)
    job.slow("compute", 1.31, ranks, 70)
    throttled(job, ranks, 1505, 70)
    return slow("gpu_throttling", exactly(*ranks))


@incident("Guard: uneven work on all ranks and a bad port on one node")
def imbalance_hides_link(report: RetoldReport) -> Expected:
    """Lengths are uneven, and counted; from step 110 on a port of node 1 has errors."""
    job = report.job(32, 240, STEP, every=10)
    squares = report.rng.gamma(20, 1 / 20, (32, 240))
    job.slow("compute", 0.7 + 0.3 * squares)
    job.slow("transfer", report.rng.uniform(2.0, 3.4, 130), since=110)
    job.seen.shows([1], since=110, device="mlx5_6/1", node_infiniband_symbol_error_total=(300, 0.3))
    job.load = {"sum_squared_sequence_length": squares * 1.2e8}
    return slow("nic_degradation sequence_length_imbalance", some_of(job.of_node(1)), whole(32))


@incident("FALCON: a second slow GPU is hidden by a slower one", "rich poor")
def hidden_behind(report: RetoldReport) -> Expected:
    """Rank 3 is twice as slow, rank 19 half as slow again; without rank 3 the job would wait for rank 19."""
    job = report.job(24, 240, STEP, gpu="A100", every=10)
    job.slow("compute", 2.0, [3], 80)
    job.slow("compute", 1.5, [19], 80)
    throttled(job, [3], 700, 80)
    throttled(job, [19], 930, 80)
    return slow("gpu_throttling" if report.variant == "rich" else COMPUTE, between([3], [19]))
