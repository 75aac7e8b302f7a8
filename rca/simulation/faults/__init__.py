"""The faults that can be injected, one registry line each.

A fault is a function that changes `Resources` in place; it knows neither phases nor metric names. To add one,
write the function in the module of its component and add its line to `FAULTS`.
"""

from __future__ import annotations

import numpy as np

from rca.simulation.background_events import vary
from rca.simulation.faults import compute, host, input_pipeline, network, stop, uncatalogued, workload
from rca.simulation.faults.kind import FaultKind
from rca.simulation.heat import settle
from rca.simulation.resources import Resources
from rca.simulation.scenario import Scenario
from rca.telemetry.causes import UNKNOWN

__all__ = ["FAULTS", "FaultKind", "apply_faults"]

FAULTS: dict[str, FaultKind] = {
    "gpu_throttling": FaultKind("compute", "rank", compute.throttling, ("thermal", "power", "brake")),
    "gpu_contention": FaultKind("compute", "rank", compute.contention, ("process",)),
    "gpu_memory_errors": FaultKind("compute", "rank", compute.memory_errors, ("remap",)),
    "pcie_degradation": FaultKind("host", "rank", compute.pcie, ("width", "generation", "replay", "hogs")),
    "nvlink_degradation": FaultKind("communication", "node", network.nvlink, ("errors",)),
    "nic_degradation": FaultKind("communication", "node", network.nic, ("bandwidth", "delay", "loss")),
    "network_congestion": FaultKind("communication", "fabric", network.congestion, ("fabric",)),
    "cpu_contention": FaultKind("host", "node", host.cpu_contention, ("hogs", "quota", "rank_hogs")),
    "memory_pressure": FaultKind("host", "node", host.memory_pressure, ("reclaim", "limit")),
    "data_loader_stall": FaultKind(
        "input", "rank", input_pipeline.loader, ("slow_dataset", "decoding", "job")
    ),
    "storage_degradation": FaultKind("input", "node", input_pipeline.storage, ("disk", "remote", "throttle")),
    "runtime_gc": FaultKind("host", "rank", host.garbage_collection, ("leak", "unplanned")),
    "stage_imbalance": FaultKind("workload", "stage", workload.stage_imbalance, ("logits",)),
    "sequence_length_imbalance": FaultKind("workload", "job", workload.sequence_lengths, ("packing",)),
    "checkpoint_stall": FaultKind("input", "job", input_pipeline.checkpoint, ("all", "one")),
    UNKNOWN: FaultKind("compute", "rank", uncatalogued.unexplained, tuple(uncatalogued.TYPES)),
    "process_crash": FaultKind(None, "rank", stop.crash, ("killed", "device", "oom")),
    "hang": FaultKind(None, "rank", stop.hang, ("stopped", "deadlock", "collective")),
}


def apply_faults(scenario: Scenario, indices: tuple[int, ...] | None = None) -> Resources:
    """Resources of a scenario with some (by default all) of its faults.

    Each fault draws from its own stream, so leaving one out changes nothing about the others.
    """
    resources = Resources.healthy(scenario)
    vary(resources, scenario)
    chosen = range(len(scenario.faults)) if indices is None else indices
    for index in chosen:
        fault = scenario.faults[index]
        rng = np.random.default_rng([scenario.seed, 1, index])
        FAULTS[fault.cause].act(resources, fault, scenario, rng)
    settle(resources, scenario)
    return resources
