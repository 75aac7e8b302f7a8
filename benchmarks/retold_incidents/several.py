"""Two faults at once, episodes of different ranks, and several slow ranks under real noise."""

from __future__ import annotations

import numpy as np

from benchmarks.retold_incidents.accelerators import COMPUTE
from benchmarks.retold_incidents.exporters import Exporters
from benchmarks.retold_incidents.incident import (
    Expected,
    Place,
    Retold,
    between,
    exactly,
    incident,
    slow,
    some_of,
    whole,
)
from benchmarks.retold_incidents.jobs import Job

STEP = {"data_loading": 0.01, "forward": 0.7, "backward": 1.4, "transfer": 0.35, "optimizer": 0.07}


def throttled(seen: Exporters, ranks: list[int], clock: float, since: int) -> None:
    """Low clocks for heat from a step on."""
    span = slice(seen.since(since), None)
    seen.set("DCGM_FI_DEV_SM_CLOCK", clock, rank=ranks, span=span, noise=0.02)
    seen.set("DCGM_FI_DEV_GPU_TEMP", 89, rank=ranks, span=span, noise=0.005)
    seen.set("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", float(0x60), rank=ranks, span=span)
    seen.set("DCGM_FI_DEV_THERMAL_VIOLATION", 7e8, rank=ranks, span=span, noise=0.05)


@incident(
    "hot-and-starved",
    "FALCON: mixed causes in three of 27 large jobs; a hot GPU and a stalled loader",
    "rich",
)
def hot_and_starved(rng: np.random.Generator, _: str) -> Retold:
    """GPU 7 is throttled from step 80 on; the loader of rank 26 stalls from step 150 on."""
    job = Job(rng, 32, 260, STEP)
    job.slow("compute", 1.33, [7], 80)
    job.phase["data_loading"][26, 150:] += rng.gamma(9, 0.15, 110)
    played = job.play()
    seen = Exporters(played, gpu="A100", every=10)
    throttled(seen, [7], 1050, 80)
    window = played.window("hot-and-starved", metrics=seen.table())
    return Retold(window, slow("gpu_throttling data_loader_stall", exactly(7, 26)))


@incident("congested-and-hot", "FALCON: congestion and a degraded GPU took 90 % of a job's speed", "rich")
def congested_and_hot(rng: np.random.Generator, _: str) -> Retold:
    """The exchange takes three times as long on all nodes; from step 60 on GPU 20 is 1.6 times as slow."""
    job = Job(rng, 32, 240, STEP)
    job.slow("transfer", rng.uniform(2.4, 3.8, 120), since=120)
    job.slow("compute", 1.6, [20], 60)
    played = job.play()
    seen = Exporters(played, gpu="A100", every=10, roce=True)
    throttled(seen, [20], 880, 60)
    span = slice(seen.since(120), None)
    for port in range(8):
        for name in ("np_cnp_sent", "rp_cnp_handled"):
            seen.set(name, 4800, node=slice(None), device=f"mlx5_{port}/1", span=span, noise=0.3)
    window = played.window("congested-and-hot", metrics=seen.table())
    return Retold(window, slow("gpu_throttling network_congestion", between([20], range(32))))


@incident(
    "pause-frames", "Minder: a slow PCIe link fills buffers, and pause frames reach other nodes", "rich"
)
def pause_frames(rng: np.random.Generator, _: str) -> Retold:
    """One GPU's link at generation 3 of 5; its node sends pause frames. All exchanges are longer."""
    seconds = STEP | {"host_to_device": 0.05}
    job = Job(rng, 64, 180, seconds)
    job.slow("host_to_device", 3.6, [43], 60)
    job.slow("transfer", rng.uniform(1.7, 2.3, 120), since=60)
    played = job.play()
    seen = Exporters(played, roce=True)
    span = slice(seen.since(60), None)
    seen.set("DCGM_FI_DEV_PCIE_LINK_GEN", 3, rank=[43], span=span)
    seen.set("DCGM_FI_PROF_PCIE_RX_BYTES", 6e8, rank=[43], span=span, noise=0.1)
    for node in range(8):
        seen.set(
            "tx_prio3_pause",
            8200.0 if node == 5 else 40.0,
            node=[node],
            device="mlx5_3/1",
            span=span,
            noise=0.2,
        )
    window = played.window("pause-frames", metrics=seen.table())
    return Retold(window, slow("pcie_degradation", between([43], job.of_node(5))))


@incident(
    "ten-percent-for-ever",
    "Alibaba PAI trace: some workers are always slow, another one for an episode",
    "poor",
)
def ten_percent_for_ever(rng: np.random.Generator, _: str) -> Retold:
    """Ranks 0 and 1 of 12 are 12 % slow in every step; rank 9 is 60 % slow for 90 of 400 steps."""
    job = Job(rng, 12, 400, STEP, per_node=4, noise=0.03)
    job.slow("compute", 1.12, [0, 1])
    job.phase["forward"][9, 180:270] *= 1.6
    job.phase["backward"][9, 180:270] *= 1.6
    window = job.play().window("ten-percent-for-ever", ("forward", "backward"), waiting="joint")
    causes = frozenset(COMPUTE.split())
    place = Place(frozenset({9}), frozenset({0, 1, 9}))
    return Retold(window, Expected(frozenset({"fail_slow"}), (place, exactly(0, 1)), causes))


@incident(
    "three-of-twelve", "Alibaba PAI trace: several workers slow at once among noisy peers", "poor", "bare"
)
def three_of_twelve(rng: np.random.Generator, variant: str) -> Retold:
    """Workers 2, 5 and 11 become three times as slow; the others have heavy-tailed noise of 15 %."""
    seconds = {"forward": 0.06, "backward": 0.12, "transfer": 0.03, "optimizer": 0.01}
    job = Job(rng, 12, 420, seconds, per_node=4, noise=0.08)
    job.slow("compute", 1 + rng.gamma(0.6, 0.2, (12, 420)))
    job.slow("compute", 3.0, [2, 5, 11], 190)
    played = job.play()
    if variant == "bare":
        # A parameter server: every worker goes its own way, so the step times themselves differ.
        played.whole = played.whole - played.wait
        begin = np.cumsum(played.whole, axis=1) - played.whole + job.start
        played.begin, played.end = begin, float((begin + played.whole).max()) + 2
        window = played.window("three-of-twelve", (), waiting="untimed")
    else:
        window = played.window("three-of-twelve", ("forward", "backward"), waiting="joint")
    return Retold(window, slow(COMPUTE, exactly(2, 5, 11)))


@incident("episodes", "Llama 3 report: several GPUs throttle in turns on a hot day", "rich", "poor")
def episodes(rng: np.random.Generator, variant: str) -> Retold:
    """GPUs 3, 14 and 22 are 30 % slower one after the other, for 40 to 60 steps each."""
    job = Job(rng, 24, 320, STEP)
    turns = ((3, 40, 100), (14, 130, 170), (22, 220, 280))
    for rank, first, last in turns:
        for phase in ("forward", "backward"):
            job.phase[phase][rank, first:last] *= 1.3
    played = job.play()
    if variant == "poor":
        window = played.window("episodes", ("forward", "backward"), waiting="joint")
        return Retold(window, slow(COMPUTE, exactly(3, 14, 22)).or_abstains())
    seen = Exporters(played, every=10)
    for rank, first, last in turns:
        span = slice(seen.since(first), seen.since(last))
        seen.set("DCGM_FI_DEV_SM_CLOCK", 1480, rank=[rank], span=span, noise=0.02)
        seen.set("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", float(0x20), rank=[rank], span=span)
        seen.set("DCGM_FI_DEV_GPU_TEMP", 87, rank=[rank], span=span, noise=0.01)
    window = played.window("episodes", metrics=seen.table())
    return Retold(window, slow("gpu_throttling", exactly(3, 14, 22)))


@incident("two-throttled-nodes", "Imbue 70B: a rack whose fans failed", "rich")
def two_throttled_nodes(rng: np.random.Generator, _: str) -> Retold:
    """All GPUs of two nodes heat up together, at once, and lose 24 % of their clock."""
    job = Job(rng, 64, 200, STEP)
    ranks = [*job.of_node(2), *job.of_node(3)]
    job.slow("compute", 1.31, ranks, 70)
    played = job.play()
    seen = Exporters(played)
    throttled(seen, ranks, 1505, 70)
    window = played.window("two-throttled-nodes", metrics=seen.table())
    return Retold(window, slow("gpu_throttling", exactly(*ranks)))


@incident("imbalance-hides-link", "Guard: uneven work on all ranks and a bad port on one node", "rich")
def imbalance_hides_link(rng: np.random.Generator, _: str) -> Retold:
    """Lengths are uneven, and counted; from step 110 on a port of node 1 has errors."""
    job = Job(rng, 32, 240, STEP)
    squares = rng.gamma(20, 1 / 20, (32, 240))
    job.slow("compute", 0.7 + 0.3 * squares)
    job.slow("transfer", rng.uniform(2.0, 3.4, 130), since=110)
    played = job.play()
    seen = Exporters(played, every=10)
    span = slice(seen.since(110), None)
    seen.set("node_infiniband_symbol_error_total", 300, node=[1], device="mlx5_6/1", span=span, noise=0.3)
    load = {"sum_squared_sequence_length": squares * 1.2e8}
    window = played.window("imbalance-hides-link", metrics=seen.table(), load=load)
    expected = slow("nic_degradation sequence_length_imbalance", some_of(job.of_node(1)), whole(32))
    return Retold(window, expected)


@incident("hidden-behind", "FALCON: a second slow GPU is hidden by a slower one", "rich", "poor")
def hidden_behind(rng: np.random.Generator, variant: str) -> Retold:
    """Rank 3 is twice as slow, rank 19 half as slow again; without rank 3 the job would wait for rank 19."""
    job = Job(rng, 24, 240, STEP)
    job.slow("compute", 2.0, [3], 80)
    job.slow("compute", 1.5, [19], 80)
    played = job.play()
    if variant == "poor":
        window = played.window("hidden-behind", ("forward", "backward"), waiting="joint")
        return Retold(window, slow(COMPUTE, between([3], [19])))
    seen = Exporters(played, gpu="A100", every=10)
    throttled(seen, [3], 700, 80)
    throttled(seen, [19], 930, 80)
    window = played.window("hidden-behind", metrics=seen.table())
    return Retold(window, slow("gpu_throttling", between([3], [19])))
