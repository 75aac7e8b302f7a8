"""Faults of what feeds and saves the job: loaders, storage, checkpoints."""

from __future__ import annotations

import numpy as np

from rca.simulation.faults.kind import envelope, jitter, nodes_of, ranks_of, variant_of
from rca.simulation.resources import FloatArray, Resources
from rca.simulation.scenario import Fault, Scenario


def _after_prefetch(active: FloatArray, steps: int) -> FloatArray:
    """Prefetched batches hide the first steps of a stall."""
    if steps == 0 or active[0] > 0:
        return active
    late = np.zeros_like(active)
    late[steps:] = active[:-steps]
    return np.minimum(active, late)


def loader(resources: Resources, fault: Fault, scenario: Scenario, rng: np.random.Generator) -> None:
    """Let batches of some ranks come late: a slow dataset, or heavy decoding."""
    ranks, active = ranks_of(fault), envelope(fault, scenario, rng)
    shape = (ranks.size, scenario.n_steps)
    step = scenario.workload.step_seconds
    if variant_of(fault, "slow_dataset") == "decoding":
        mean = step * fault.severity**1.9
        resources.loader_cpu[ranks] += 0.95 * active
    else:
        mean = 2.3 * step * fault.severity**2.35
    late = _after_prefetch(active, scenario.workload.prefetch_steps)
    resources.input_stall[ranks] += late * mean * jitter(rng, shape, 0.25)


def storage(resources: Resources, fault: Fault, scenario: Scenario, rng: np.random.Generator) -> None:
    """Slow down the disk or file system under some nodes: all their loaders wait for it."""
    ranks, nodes, active = ranks_of(fault), nodes_of(fault), envelope(fault, scenario, rng)
    common = jitter(rng, (1, scenario.n_steps), 0.3)
    own = jitter(rng, (ranks.size, scenario.n_steps), 0.2)
    late = _after_prefetch(active, scenario.workload.prefetch_steps)
    mean = 2.0 * scenario.workload.step_seconds * fault.severity**3
    resources.input_stall[ranks] += late * mean * common * own
    resources.disk_stall[nodes] += active * min(1.0, 0.6 + 0.6 * fault.severity)


def checkpoint(resources: Resources, fault: Fault, scenario: Scenario, rng: np.random.Generator) -> None:
    """Checkpoints that take several steps' time, on a fixed period."""
    ranks, active = ranks_of(fault), envelope(fault, scenario, rng)
    length = int(active.sum())
    period = max(2, int(length * rng.uniform(0.12, 0.34)))
    steps = np.arange(scenario.n_steps)
    due = (active > 0) & ((steps - fault.first_step) % period == period // 2)
    mean = scenario.workload.step_seconds * period * (0.08 + 1.2 * fault.severity**1.5)
    each = mean * jitter(rng, (1, scenario.n_steps), 0.12)
    resources.checkpoint[ranks] += due * each * jitter(rng, (ranks.size, scenario.n_steps), 0.03)
