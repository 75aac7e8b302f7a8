"""Registry of the faults, and their effect on a job's resources together with healthy background events.

A fault is a function that changes `Resources` in place; it knows neither phases nor metric names. To add one,
write the function in the module of its component and add its line to `FAULTS`.
"""

from __future__ import annotations

import numpy as np

from rca.lab.simulation.faults import gpu, host, input_pipeline, job, network
from rca.lab.simulation.faults.kind import FaultKind
from rca.lab.simulation.gpu_clock import apply_clock_limits
from rca.lab.simulation.healthy_job import GcPauses
from rca.lab.simulation.resource_costs import batch_seconds, late_batch_seconds
from rca.lab.simulation.resources import Resources
from rca.lab.simulation.scenario import SimulationScenario
from rca.window.causes import UNKNOWN

__all__ = ["FAULTS", "FIRST_CAUSES", "FaultKind", "apply_faults"]

#: Spread of the logarithm of a collector's pauses from step to step.
GC_PAUSE_SPREAD = 0.3
# Share of a core that a neighbour's burst takes.
NEIGHBOUR_CORES = 0.9

FAULTS: dict[str, FaultKind] = {
    "gpu_throttling": FaultKind(
        "compute", "rank", gpu.throttling, ("thermal", "power", "brake"), strength=(0.7, 1.9)
    ),
    "gpu_contention": FaultKind("compute", "rank", gpu.contention, ("process",), strength=(0.7, 1.1)),
    "gpu_memory_errors": FaultKind("compute", "rank", gpu.memory_errors, ("remap",)),
    "pcie_degradation": FaultKind("host", "rank", gpu.pcie, ("width", "generation", "replay", "hogs")),
    "nvlink_degradation": FaultKind("communication", "node", network.nvlink, ("errors",)),
    "nic_degradation": FaultKind(
        "communication",
        "node",
        network.nic,
        ("bandwidth", "delay", "loss"),
        ("flap",),
        strength=(0.5, 2.2),
        curve=(0.25, 1.0),
        # Some congestion controls treat any loss as congestion, others hardly slow down.
        strengths={"loss": (0.02, 1.0)},
    ),
    "network_congestion": FaultKind(
        "communication", "fabric", network.congestion, ("fabric",), strength=(0.15, 1.2)
    ),
    "cpu_contention": FaultKind(
        "host",
        "node",
        host.cpu_contention,
        ("hogs", "quota", "rank_hogs"),
        host.OWN_PROCESSES,
        strength=(0.55, 1.1),
    ),
    "memory_pressure": FaultKind(
        "host",
        "node",
        host.memory_pressure,
        ("reclaim", "limit"),
        strength=(0.6, 1.2),
        strengths={"limit": (0.15, 1.1)},
    ),
    "data_loader_stall": FaultKind(
        "input",
        "rank",
        input_pipeline.loader,
        ("slow_dataset", "decoding", "job"),
        strength=(0.5, 1.9),
        curve=(0.55, 1.1),
    ),
    "storage_degradation": FaultKind(
        "input",
        "node",
        input_pipeline.storage,
        ("disk", "remote", "throttle"),
        strength=(0.75, 2.5),
        curve=(0.4, 1.0),
    ),
    "runtime_gc": FaultKind(
        "host", "rank", host.garbage_collection, ("leak", "unplanned"), ("turns",), strength=(0.4, 1.2)
    ),
    "stage_imbalance": FaultKind("workload", "stage", job.stage_imbalance, ("logits",), strength=(0.35, 1.1)),
    "sequence_length_imbalance": FaultKind(
        "workload", "job", job.sequence_lengths, ("packing",), strength=(0.8, 2.4)
    ),
    "checkpoint_stall": FaultKind(
        "input", "job", input_pipeline.checkpoint, ("all", "one"), strength=(0.5, 1.1)
    ),
    UNKNOWN: FaultKind(
        "compute",
        "rank",
        job.unexplained,
        ("compute", "jitter", "older", "host", "copies", "transfer"),
        ("blocking",),
    ),
    "process_crash": FaultKind(
        None, "rank", job.crash, ("killed", "device", "oom"), ("gang", "link", "vanished")
    ),
    "hang": FaultKind(None, "rank", job.hang, ("stopped", "deadlock", "collective")),
    # The second version of the corpus draws these as well.
    "allocator_retries": FaultKind("workload", "job", gpu.allocator_retries, ("flushes",)),
    "communication_misconfiguration": FaultKind(
        "communication", "node", network.misconfiguration, ("shared_adapter", "sockets", "routing")
    ),
    "recompilation": FaultKind("host", "job", host.recompilation, ("together", "one")),
}
#: Causes of the first version of the corpus, in the order in which it draws them.
FIRST_CAUSES = (
    "gpu_throttling", "gpu_contention", "gpu_memory_errors", "pcie_degradation", "nvlink_degradation",
    "nic_degradation", "network_congestion", "cpu_contention", "memory_pressure", "data_loader_stall",
    "storage_degradation", "runtime_gc", "stage_imbalance", "sequence_length_imbalance", "checkpoint_stall",
    UNKNOWN, "process_crash", "hang",
)  # fmt: skip


def apply_faults(scenario: SimulationScenario, indices: tuple[int, ...] | None = None) -> Resources:
    """Resources of a scenario with some (by default all) of its faults.

    Each fault draws from its own stream, so leaving one out changes nothing about the others.
    """
    resources = Resources.healthy(scenario)
    apply_background_events(resources, scenario)
    chosen = range(len(scenario.faults)) if indices is None else indices
    for index in chosen:
        fault = scenario.faults[index]
        rng = np.random.default_rng([scenario.seed, 1, index])
        FAULTS[fault.cause].inject(resources, fault, scenario, rng)
    apply_clock_limits(resources, scenario)
    return resources


def apply_background_events(resources: Resources, scenario: SimulationScenario) -> None:
    """Apply the benign events of a scenario to its resources, in place."""
    benign = scenario.benign
    if benign.slow_batches:
        felt = np.array(benign.slow_batch_factor * scenario.expected_step_seconds)
        late = late_batch_seconds(scenario, felt) - batch_seconds(scenario)
        resources.batch_extra[:, : benign.slow_batches] += late
    if benign.gc_pauses is not None:
        _pause_for_gc(resources, scenario, benign.gc_pauses)
    for burst in benign.bursts:
        steps = slice(burst.first_step, burst.first_step + burst.steps)
        ranks = list(scenario.ranks_on(burst.node))
        resources.run_queue[ranks, steps] = np.maximum(resources.run_queue[ranks, steps], burst.level)
        resources.foreign_cpu[burst.node, steps] += NEIGHBOUR_CORES * burst.level


def _pause_for_gc(resources: Resources, scenario: SimulationScenario, collections: GcPauses) -> None:
    """Add the garbage collector's planned pauses of every rank."""
    n_ranks, n_steps = resources.gc.shape
    rng = np.random.default_rng([scenario.seed, 11])
    first = rng.integers(0, collections.every, 1 if collections.together else n_ranks)
    due = (np.arange(n_steps) - first[:, None]) % collections.every == 0
    # Ranks that log for all, or hold more objects, collect for longer.
    usual = collections.seconds * np.exp(rng.normal(0, collections.uneven, (n_ranks, 1)))
    resources.gc += usual * due * np.exp(rng.normal(0, GC_PAUSE_SPREAD, (n_ranks, n_steps)))
