"""Exporters alone, or with step times that have no phases."""

from __future__ import annotations

from benchmarks.retold_incidents.accelerators import THERMAL
from benchmarks.retold_incidents.expected import SOUND, Expected, between, exactly, slow, some_of, whole
from benchmarks.retold_incidents.incident import RetoldReport, incident

STEP = {"data_loading": 0.01, "forward": 0.9, "backward": 1.8, "transfer": 0.4, "optimizer": 0.08}


@incident(
    "dcgm-exporter issues: one GPU at 60 % of its clock and 88 C",
    "steps none chronic", chronic="none, untimed, exporters",
)  # fmt: skip
def dcgm_alone(report: RetoldReport) -> Expected:
    """64 ranks with DCGM's metrics, and step times or not even these."""
    job = report.job(64, 140, STEP)
    since = 0 if report.variant == "chronic" else 55
    job.slow("compute", 1 / 0.6, [50], since)
    hot = {"GPU_TEMP": (88, 0.005), "CLOCKS_EVENT_REASONS": THERMAL}
    job.seen.shows([50], since=since, SM_CLOCK=(1188, 0.02), **hot)
    job.seen.only("DCGM")
    return slow("gpu_throttling", exactly(50)).or_abstains(report.variant == "none")


@incident("FALCON: CPU contention, seen with node_exporter alone", "steps none")
def node_exporter_alone(report: RetoldReport) -> Expected:
    """CPU pressure of 0.66 on one node of four, with step times of all ranks alike or none."""
    job = report.job(32, 260, STEP)
    job.slow("forward", report.rng.uniform(1.4, 2.0, (8, 150)), job.of_node(2), 110)
    node_load = {"node_pressure_cpu_waiting_seconds_total": (0.66, 0.05), "node_load1": (260, 0.06)}
    job.seen.shows([2], since=110, **node_load)
    job.seen.shows([2], since=110, device="user", node_cpu_seconds_total=(90, 0.02))
    job.seen.shows([2], since=110, device="idle", node_cpu_seconds_total=(2, 0.2))
    job.seen.only("node_")
    return slow("cpu_contention", exactly(*job.of_node(2))).or_abstains(report.variant == "none")


@incident("Imbue 70B: port counters and step times are all there is", "steps none")
def ports_alone(report: RetoldReport) -> Expected:
    """Symbol errors and link recoveries of one port of node 6; all steps get longer."""
    job = report.job(64, 150, STEP)
    job.slow("transfer", 4.0, since=60)
    errors = {"symbol_error": (120, 0.3), "link_error_recovery": (0.4, 0.3)}
    for name, rate in errors.items():
        job.seen.shows([6], since=60, device="mlx5_1/1", **{f"node_infiniband_{name}_total": rate})
    job.seen.only("node_infiniband")
    return slow("nic_degradation", some_of(job.of_node(6))).or_abstains(report.variant == "none")


@incident("Minder: lanes of a link are lost, seen with DCGM and step times", "steps")
def link_width_alone(report: RetoldReport) -> Expected:
    """A link with 8 of 16 lanes from step 70 on, with replays."""
    job = report.job(16, 200, STEP | {"host_to_device": 0.2}, gpu="A100", every=10)
    job.slow("host_to_device", 2.4, [5], 70)
    job.slow("transfer", 1.4, since=70)
    job.seen.shows([5], since=70, PCIE_LINK_WIDTH=8, PCIE_REPLAY_COUNTER=(2.0, 0.3))
    job.seen.only("DCGM")
    return slow("pcie_degradation", between([5], job.of_node(0)))


@incident("Alibaba PAI: GPUs starve behind their loaders, seen with DCGM and step times", "steps")
def idle_gpus(report: RetoldReport) -> Expected:
    """Utilisation falls from 95 to 34 % on all ranks and steps take 2.7 times as long: no rank stands out."""
    job, rng = report.job(32, 240, STEP, gpu="A100"), report.rng
    reading = rng.gamma(30, 5.4 / 30, (1, 140)) + rng.gamma(2, 0.05, (32, 140))
    job.delay("data_loading", reading, steps=slice(100, None))
    job.seen.only("DCGM")
    causes = "unknown data_loader_stall storage_degradation cpu_contention"
    return slow(causes, whole(32)).or_abstains()


@incident(
    "OPT-175B logbook: the same job is 1.6 times as slow as the day before",
    "earlier alone", earlier="none, untimed", alone="none, untimed",
)  # fmt: skip
def slow_for_all(report: RetoldReport) -> Expected:
    """Step times only, 1.6 times those of an earlier window; without that window nothing can be seen."""
    seconds = {"forward": 5.0, "backward": 10.0, "transfer": 2.0, "optimizer": 0.5}
    slowed = {name: 1.6 * value for name, value in seconds.items()}
    job = report.job(64, 90, slowed, noise=0.03)
    if report.variant == "alone":
        return SOUND.or_abstains()
    job.usual(100_000, steps=120, seconds=seconds, noise=0.02)
    causes = "unknown network_congestion storage_degradation data_loader_stall cpu_contention gpu_throttling"
    return slow(causes, whole(64))
