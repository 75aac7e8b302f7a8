"""Faults of loaders, storage and checkpoints."""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.lab.simulation.faults.kind import envelope, jitter, nodes_of, ranks_of, variant_of
from rca.lab.simulation.resource_costs import (
    batch_seconds,
    late_batch_seconds,
    lone_batch_seconds,
    read_seconds,
)
from rca.lab.simulation.resources import Resources
from rca.lab.simulation.scenario import Fault, SimulationScenario


def loader(
    resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator
) -> None:
    """Let some ranks' loaders take longer over a batch: a slow dataset, or heavy decoding."""
    ranks, active = ranks_of(fault), envelope(fault, scenario, rng)
    step = scenario.workload.step_seconds
    if variant_of(fault, "slow_dataset") == "decoding":
        mean = fault.strength * step * fault.force**1.9
        resources.loader_cpu[ranks] += 0.95 * active
    else:
        mean = 2.3 * fault.strength * step * fault.force**2.35
    if fault.late_share < 1.0:
        resources.batch_extra[ranks] += _extra_of_rare_batches(fault, active * mean, scenario, rng)
        return
    felt = active * mean * jitter(rng, (ranks.size, scenario.n_steps), 0.25)
    resources.batch_extra[ranks] += extra_of_all_batches(scenario, felt)


def storage(
    resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator
) -> None:
    """Slow down the disk or file server under some nodes, or hold one rank's reads back."""
    nodes, active = nodes_of(fault), envelope(fault, scenario, rng)
    mean = 2.0 * fault.strength * scenario.workload.step_seconds * fault.force**3
    variant = variant_of(fault, "disk")
    if variant == "throttle":
        ranks = ranks_of(fault)
        felt = active * mean * jitter(rng, (ranks.size, scenario.n_steps), 0.2)
        resources.batch_extra[ranks] += extra_of_all_batches(scenario, felt)
        resources.read_held[ranks] += active
        return
    if fault.late_share < 1.0:
        resources.batch_extra[ranks_of(fault)] += _extra_of_rare_batches(fault, active * mean, scenario, rng)
    else:
        common = jitter(rng, (1, scenario.n_steps), 0.3)
        own = jitter(rng, (nodes.size, scenario.n_steps), 0.15)
        extra = extra_of_all_batches(scenario, active * mean * common * own)
        resources.read_stretch[nodes] += extra / read_seconds(scenario)
    stalled = active * min(1.0, 0.6 + 0.6 * fault.severity)
    busy = resources.remote_stall if variant == "remote" else resources.disk_stall
    busy[nodes] += stalled


def _extra_of_rare_batches(
    fault: Fault, felt: FloatArray, scenario: SimulationScenario, rng: np.random.Generator
) -> FloatArray:
    """Extra seconds of single late batches, shape (n_ranks, n_steps).

    `felt` is the wait per step if every batch were late. Fewer late batches are longer, but cost less in
    total.
    """
    shape = (ranks_of(fault).size, scenario.n_steps)
    late = (rng.random(shape) < fault.late_share) & (felt > 0)
    each = felt / np.sqrt(fault.late_share) * jitter(rng, shape, 0.6)
    return np.where(late, lone_batch_seconds(scenario, each) - batch_seconds(scenario), 0.0)


def extra_of_all_batches(scenario: SimulationScenario, felt: FloatArray) -> FloatArray:
    """Extra seconds per batch at which every step waits `felt` seconds, shape (n_ranks, n_steps)."""
    return np.where(felt > 0, late_batch_seconds(scenario, felt) - batch_seconds(scenario), 0.0)


def checkpoint(
    resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator
) -> None:
    """Checkpoints that take several steps' time, on a fixed period."""
    ranks, active = ranks_of(fault), envelope(fault, scenario, rng)
    length = int(active.sum())
    period = fault.every or max(2, int(length * rng.uniform(0.12, 0.34)))
    steps = np.arange(scenario.n_steps)
    due = (active > 0) & ((steps - fault.first_step) % period == period // 2)
    mean = scenario.workload.step_seconds * period * (0.08 + 1.2 * fault.strength * fault.force**1.5)
    mean = fault.seconds or mean
    each = mean * jitter(rng, (1, scenario.n_steps), 0.12)
    resources.checkpoint[ranks] += due * each * jitter(rng, (ranks.size, scenario.n_steps), 0.03)
