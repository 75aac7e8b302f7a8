"""Faults of the GPU and of its link to the host.

Exponents and scales without a comment are fitted to injected faults on real machines (three severities each).
"""

from __future__ import annotations

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.lab.simulation.faults.kind import envelope, event_seconds, jitter, ranks_of, variant_of
from rca.lab.simulation.gpu_clock import WORST_CLOCK_STRETCH, cooling_for, power_at
from rca.lab.simulation.resources import Resources
from rca.lab.simulation.scenario import Fault, SimulationScenario

#: Share of the device's memory in use where the allocator has to empty its cache.
NEARLY_FULL = (0.955, 0.998)


def throttling(
    resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator
) -> None:
    """Too little cooling, too little power, or a brake: the controller settles at a lower clock."""
    ranks, active = ranks_of(fault), envelope(fault, scenario, rng)
    testbed = scenario.dialect == "cpu_testbed"
    stretch = (1.0 if testbed else WORST_CLOCK_STRETCH) * fault.strength * fault.force**1.6
    clock = 1 / (1 + stretch * jitter(rng, (ranks.size, scenario.n_steps), 0.03))
    variant = variant_of(fault, "thermal")
    # The testbed stops its device processes for part of the time: nothing heats up there.
    if variant == "thermal" and not testbed:
        resources.cooling[ranks] *= 1 + active * (cooling_for(clock) - 1)
        return
    held = 1 / (1 + (1 / clock - 1) * active)
    if variant == "brake" or testbed:
        resources.clock_ceiling[ranks] = np.minimum(resources.clock_ceiling[ranks], held)
    else:
        resources.power_limit[ranks] = np.minimum(resources.power_limit[ranks], power_at(held))


def contention(
    resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator
) -> None:
    """Another process on the GPU: time-sliced and jittery, at the normal clock."""
    ranks, active = ranks_of(fault), envelope(fault, scenario, rng)
    taken = np.clip(0.72 * fault.strength * fault.force * active, 0, 0.8) * jitter(
        rng, (ranks.size, scenario.n_steps), 0.2
    )
    taken = np.clip(taken, 0, 0.85)
    resources.foreign_gpu[ranks] = np.maximum(resources.foreign_gpu[ranks], taken)
    resources.compute_stretch[ranks] /= 1 - taken


def memory_errors(
    resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator
) -> None:
    """Corrected errors arrive in bursts; each recovery stops the kernels for a while."""
    ranks, active = ranks_of(fault), envelope(fault, scenario, rng)
    shape = (ranks.size, scenario.n_steps)
    bursts = rng.random(shape) < 0.35 + 0.6 * fault.severity
    lost = scenario.workload.step_seconds * (0.1 + 1.2 * fault.strength * fault.force**1.5)
    resources.gpu_stall[ranks] += active * bursts * lost * jitter(rng, shape, 0.5)
    resources.ecc[ranks] += active * (2 + 60 * fault.severity) * jitter(rng, shape, 0.6)


def allocator_retries(
    resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator
) -> None:
    """Empty the allocator's cache at random steps of random ranks, because device memory is nearly full.

    The driver frees and maps memory while the kernels wait, in the forward and in the backward.
    """
    ranks, active = ranks_of(fault), envelope(fault, scenario, rng)
    shape = (ranks.size, scenario.n_steps)
    hit = (rng.random(shape) < 1 / (fault.every or 3 * ranks.size)) & (active > 0)
    each = event_seconds(fault, scenario, 1.2) * jitter(rng, shape, 0.5)
    resources.gpu_stall[ranks] += hit * each
    # A flush frees what is cached; it fills up again within some steps.
    since = _steps_since(hit)
    freed = rng.uniform(0.02, 0.12) * np.exp(-since / rng.uniform(1.0, 8.0))
    full = rng.uniform(*NEARLY_FULL, (ranks.size, 1))
    resources.memory_held[ranks] = np.maximum(resources.memory_held[ranks], full * (1 - freed) * (active > 0))


def _steps_since(hit: BoolArray) -> FloatArray:
    """Steps since the last hit of each row, (n_rows, n_steps); many before the first one."""
    step = np.arange(hit.shape[1])
    last = np.maximum.accumulate(np.where(hit, step, -100), axis=1)
    return np.asarray(step - last, dtype=np.float64)


def pcie(resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator) -> None:
    """Narrow the link between a GPU and its switch, which copies and sometimes the NIC's traffic use."""
    ranks, active = ranks_of(fault), envelope(fault, scenario, rng)
    worst = (8.5 if scenario.dialect == "cpu_testbed" else 48.0) * fault.strength
    stretch = 1 + (worst**fault.force - 1) * active * jitter(rng, (ranks.size, scenario.n_steps), 0.08)
    resources.copy_stretch[ranks] *= stretch
    variant = variant_of(fault, "width")
    if variant == "replay":
        resources.pcie_replays[ranks] += active * (1 + 40 * fault.severity)
        return
    # A link trains to a width or rate of a power of two, next to its remaining capacity.
    halvings = np.maximum(np.ceil(np.log2(np.maximum(stretch, 1.0)) - 0.3), 0.0)
    lost = resources.lost_generations if variant == "generation" else resources.lost_lanes
    lost[ranks] = np.maximum(lost[ranks], halvings)
