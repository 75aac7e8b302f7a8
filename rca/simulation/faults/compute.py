"""Faults of the GPU and of its link to the host.

Exponents and scales without a comment are fitted to injected faults on real machines (three severities each).
"""

from __future__ import annotations

import numpy as np

from rca.simulation.faults.kind import envelope, jitter, ranks_of, variant_of
from rca.simulation.resources import Resources
from rca.simulation.scenario import Fault, Scenario


def throttling(resources: Resources, fault: Fault, scenario: Scenario, rng: np.random.Generator) -> None:
    """Lower SM clock; kernels longer by its inverse."""
    ranks, active = ranks_of(fault), envelope(fault, scenario, rng)
    worst = 1.0 if scenario.dialect == "cpu_testbed" else 2.5
    stretch = 1 + worst * fault.severity**1.6 * active
    wobble = jitter(rng, (ranks.size, scenario.n_steps), 0.03)
    slowed = 1 + (stretch - 1) * wobble
    resources.compute_stretch[ranks] *= slowed
    resources.clock[ranks] /= slowed
    held = np.clip(active * (0.4 + 0.6 * fault.severity), 0, 1)
    if variant_of(fault, "thermal") == "thermal":
        resources.thermal[ranks] += held
    else:
        resources.power_cap[ranks] += held


def contention(resources: Resources, fault: Fault, scenario: Scenario, rng: np.random.Generator) -> None:
    """Another process on the GPU: time-sliced and jittery, at the normal clock."""
    ranks, active = ranks_of(fault), envelope(fault, scenario, rng)
    taken = np.clip(0.72 * fault.severity * active, 0, 0.8) * jitter(rng, (ranks.size, scenario.n_steps), 0.2)
    taken = np.clip(taken, 0, 0.85)
    resources.foreign_gpu[ranks] = np.maximum(resources.foreign_gpu[ranks], taken)
    resources.compute_stretch[ranks] /= 1 - taken


def memory_errors(resources: Resources, fault: Fault, scenario: Scenario, rng: np.random.Generator) -> None:
    """Corrected errors arrive in bursts; each recovery stops the kernels for a while."""
    ranks, active = ranks_of(fault), envelope(fault, scenario, rng)
    shape = (ranks.size, scenario.n_steps)
    bursts = rng.random(shape) < 0.35 + 0.6 * fault.severity
    lost = scenario.workload.step_seconds * (0.1 + 1.2 * fault.severity**1.5)
    resources.gpu_stall[ranks] += active * bursts * lost * jitter(rng, shape, 0.5)
    resources.ecc[ranks] += active * (2 + 60 * fault.severity) * jitter(rng, shape, 0.6)


def pcie(resources: Resources, fault: Fault, scenario: Scenario, rng: np.random.Generator) -> None:
    """Slow down copies to the device, and what the NIC moves through the same switch."""
    ranks, active = ranks_of(fault), envelope(fault, scenario, rng)
    worst = 8.5 if scenario.dialect == "cpu_testbed" else 48.0
    stretch = 1 + (worst**fault.severity - 1) * active * jitter(rng, (ranks.size, scenario.n_steps), 0.08)
    resources.copy_stretch[ranks] *= stretch
    if variant_of(fault, "width") == "replay":
        resources.pcie_replays[ranks] += active * (1 + 40 * fault.severity)
    if scenario.dialect != "cpu_testbed" and scenario.n_nodes > 1:
        nodes = np.unique(ranks // scenario.ranks_per_node)
        resources.nic_stretch[nodes] *= 1 + 0.25 * fault.severity * active
