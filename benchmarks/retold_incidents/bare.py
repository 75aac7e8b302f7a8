"""Exporters alone, or with step times that have no phases."""

from __future__ import annotations

import numpy as np

from benchmarks.retold_incidents.exporters import Exporters
from benchmarks.retold_incidents.incident import Retold, between, exactly, incident, slow, some_of, whole
from benchmarks.retold_incidents.jobs import Job

STEP = {"data_loading": 0.01, "forward": 0.9, "backward": 1.8, "transfer": 0.4, "optimizer": 0.08}


@incident(
    "dcgm-alone", "dcgm-exporter issues: one GPU at 60 % of its clock and 88 C", "steps", "none", "chronic"
)
def dcgm_alone(rng: np.random.Generator, variant: str) -> Retold:
    """64 ranks with DCGM's metrics, and step times or not even these."""
    job = Job(rng, 64, 140, STEP)
    since = 0 if variant == "chronic" else 55
    job.slow("compute", 1 / 0.6, [50], since)
    played = job.play()
    seen = Exporters(played, every=15)
    span = slice(seen.since(since), None)
    seen.set("DCGM_FI_DEV_SM_CLOCK", 1188, rank=[50], span=span, noise=0.02)
    seen.set("DCGM_FI_DEV_GPU_TEMP", 88, rank=[50], span=span, noise=0.005)
    seen.set("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", float(0x60), rank=[50], span=span)
    seen.only("DCGM")
    with_steps = variant != "none"
    window = played.window("dcgm-alone", (), waiting="untimed", metrics=seen.table(), with_steps=with_steps)
    expected = slow("gpu_throttling", exactly(50))
    return Retold(window, expected if with_steps else expected.or_abstains())


@incident("node-exporter-alone", "FALCON: CPU contention, seen with node_exporter alone", "steps", "none")
def node_exporter_alone(rng: np.random.Generator, variant: str) -> Retold:
    """CPU pressure of 0.66 on one node of four, with step times of all ranks alike or none."""
    job = Job(rng, 32, 260, STEP)
    since = 110
    ranks = job.of_node(2)
    job.slow("forward", rng.uniform(1.4, 2.0, (8, 150)), ranks, since)
    played = job.play()
    seen = Exporters(played, every=15)
    span = slice(seen.since(since), None)
    seen.set("node_pressure_cpu_waiting_seconds_total", 0.66, node=[2], span=span, noise=0.05)
    seen.set("node_load1", 260, node=[2], span=span, noise=0.06)
    seen.set("node_cpu_seconds_total", 90, node=[2], device="user", span=span, noise=0.02)
    seen.set("node_cpu_seconds_total", 2, node=[2], device="idle", span=span, noise=0.2)
    seen.only("node_")
    with_steps = variant != "none"
    window = played.window(
        "node-exporter-alone", (), waiting="untimed", metrics=seen.table(), with_steps=with_steps
    )
    expected = slow("cpu_contention", exactly(*ranks))
    return Retold(window, expected if with_steps else expected.or_abstains())


@incident("ports-alone", "Imbue 70B: port counters and step times are all there is", "steps", "none")
def ports_alone(rng: np.random.Generator, variant: str) -> Retold:
    """Symbol errors and link recoveries of one port of node 6; all steps get longer."""
    job = Job(rng, 64, 150, STEP)
    since = 60
    job.slow("transfer", 4.0, since=since)
    played = job.play()
    seen = Exporters(played)
    span = slice(seen.since(since), None)
    seen.set("node_infiniband_symbol_error_total", 120, node=[6], device="mlx5_1/1", span=span, noise=0.3)
    seen.set(
        "node_infiniband_link_error_recovery_total", 0.4, node=[6], device="mlx5_1/1", span=span, noise=0.3
    )
    seen.only("node_infiniband")
    with_steps = variant != "none"
    window = played.window("ports-alone", (), waiting="untimed", metrics=seen.table(), with_steps=with_steps)
    expected = slow("nic_degradation", some_of(job.of_node(6)))
    return Retold(window, expected if with_steps else expected.or_abstains())


@incident("link-width-alone", "Minder: lanes of a link are lost, seen with DCGM and step times", "steps")
def link_width_alone(rng: np.random.Generator, _: str) -> Retold:
    """A link with 8 of 16 lanes from step 70 on, with replays."""
    job = Job(rng, 16, 200, STEP | {"host_to_device": 0.2})
    job.slow("host_to_device", 2.4, [5], 70)
    job.slow("transfer", 1.4, since=70)
    played = job.play()
    seen = Exporters(played, gpu="A100", every=10)
    span = slice(seen.since(70), None)
    seen.set("DCGM_FI_DEV_PCIE_LINK_WIDTH", 8, rank=[5], span=span)
    seen.set("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 2.0, rank=[5], span=span, noise=0.3)
    seen.only("DCGM")
    window = played.window("link-width-alone", (), waiting="untimed", metrics=seen.table())
    return Retold(window, slow("pcie_degradation", between([5], job.of_node(0))))


@incident(
    "idle-gpus", "Alibaba PAI: GPUs starve behind their loaders, seen with DCGM and step times", "steps"
)
def idle_gpus(rng: np.random.Generator, _: str) -> Retold:
    """Utilisation falls from 95 to 34 % on all ranks and steps take 2.7 times as long: no rank stands out."""
    job = Job(rng, 32, 240, STEP)
    job.phase["data_loading"][:, 100:] += rng.gamma(30, 5.4 / 30, (1, 140)) + rng.gamma(2, 0.05, (32, 140))
    played = job.play()
    seen = Exporters(played, gpu="A100")
    seen.only("DCGM")
    window = played.window("idle-gpus", (), waiting="untimed", metrics=seen.table())
    causes = "unknown data_loader_stall storage_degradation cpu_contention"
    return Retold(window, slow(causes, whole(32)).or_abstains())


@incident(
    "slow-for-all",
    "OPT-175B logbook: the same job is 1.6 times as slow as the day before",
    "earlier",
    "alone",
)
def slow_for_all(rng: np.random.Generator, variant: str) -> Retold:
    """Step times only, 1.6 times those of an earlier window; without that window nothing can be seen."""
    seconds = {"forward": 5.0, "backward": 10.0, "transfer": 2.0, "optimizer": 0.5}
    job = Job(rng, 64, 90, {name: 1.6 * value for name, value in seconds.items()}, noise=0.03)
    window = job.play().window("slow-for-all", (), waiting="untimed")
    causes = "unknown network_congestion storage_degradation data_loader_stall cpu_contention gpu_throttling"
    expected = slow(causes, whole(64))
    if variant == "alone":
        unseen = type(expected)(frozenset({"healthy"}), may_abstain=True)
        return Retold(window, unseen)
    usual = Job(rng, 64, 120, seconds, noise=0.02)
    usual.start = job.start - 100_000
    return Retold(window, expected, usual.play().window("slow-for-all", (), waiting="untimed"))
