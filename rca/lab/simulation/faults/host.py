"""Faults of the host: cores, memory, the language runtime."""

from __future__ import annotations

import numpy as np

from rca.lab.simulation.faults.input_pipeline import extra_of_all_batches
from rca.lab.simulation.faults.kind import envelope, event_seconds, jitter, nodes_of, ranks_of, variant_of
from rca.lab.simulation.resources import Resources
from rca.lab.simulation.sampling_job import log_uniform
from rca.lab.simulation.scenario import Fault, SimulationScenario

# Share of foreign load on a single rank that runs in that rank's control group.
IN_GROUP_SHARE = 0.6
# Unplanned collections per step, over all ranks.
UNPLANNED_PAUSES_PER_STEP = (0.12, 2.0)
#: Variants of CPU contention by the job's own processes.
OWN_PROCESSES = ("own_loaders", "own_threads")
#: Fewer compilations do not last.
MIN_COMPILATIONS = 4


def cpu_contention(
    resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator
) -> None:
    """Other processes on the cores, or a CPU quota: the host process waits in the run queue."""
    ranks, nodes, active = ranks_of(fault), nodes_of(fault), envelope(fault, scenario, rng)
    shape = (ranks.size, scenario.n_steps)
    variant = variant_of(fault, "hogs")
    if variant in OWN_PROCESSES:
        _own_processes(resources, fault, scenario, rng)
        return
    calm = resources.run_queue[ranks]
    if variant == "quota":
        stopped = np.clip(0.58 * fault.strength * fault.force**0.85 * jitter(rng, shape, 0.1), 0, 0.9)
        resources.quota[ranks] += active * stopped
        aim = np.clip(0.35 + 0.42 * fault.strength * fault.force**0.7, 0, 0.93)
    else:
        aim = np.clip(0.35 + 0.48 * fault.strength * fault.force, 0, 0.93)
        taken = active * (0.3 + 0.6 * fault.severity)
        resources.foreign_cpu[nodes] += taken
        if variant == "rank_hogs" and rng.random() < IN_GROUP_SHARE:
            resources.group_cpu[ranks] += taken
    busy = np.clip(aim * jitter(rng, shape, 0.03), 0, 0.94)
    resources.run_queue[ranks] = np.maximum(calm, calm + (busy - calm) * active)
    if scenario.dialect == "cpu_testbed" and variant != "quota":
        # All "nodes" share one machine: the others slow down a little.
        spill = 0.06 * fault.severity * active
        resources.run_queue += spill * (resources.run_queue < 0.5)


def _own_processes(
    resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator
) -> None:
    """The job's own loaders or threads fill all cores that it may use, and wait for one another."""
    ranks, active = ranks_of(fault), envelope(fault, scenario, rng)
    shape = (ranks.size, scenario.n_steps)
    crowded = np.clip(0.45 + 0.55 * fault.severity * jitter(rng, shape, 0.05), 0, 1)
    resources.crowding[ranks] = np.maximum(resources.crowding[ranks], active * crowded)
    # All cores of the node, or the few that a scheduler gave the job.
    resources.own_cores[ranks] += active * log_uniform(rng, 0.02, 0.9)
    cost = fault.strength * fault.force
    calm, aim = resources.run_queue[ranks], np.clip(0.3 + 0.5 * cost, 0, 0.93)
    if fault.variant == "own_loaders":
        # The step itself needs little of a core while it waits for its batch.
        felt = scenario.expected_step_seconds * log_uniform(rng, 0.5, 12.0) * cost
        wait = active * felt * jitter(rng, shape, 0.2)
        resources.batch_extra[ranks] += extra_of_all_batches(scenario, wait)
        aim = rng.uniform(0.0, 0.6) * aim
    resources.run_queue[ranks] = np.maximum(calm, calm + (aim * jitter(rng, shape, 0.03) - calm) * active)
    np.minimum(resources.run_queue, 0.94, out=resources.run_queue)


def recompilation(
    resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator
) -> None:
    """Compile the model again at rare steps with new shapes: on all ranks, or on the one that met them."""
    ranks, active = ranks_of(fault), envelope(fault, scenario, rng)
    acting = np.flatnonzero(active > 0)
    count = min(acting.size, max(MIN_COMPILATIONS, round(acting.size / (fault.every or 12))))
    steps = rng.choice(acting, count, replace=False)
    each = event_seconds(fault, scenario, 5.0) * jitter(rng, (1, count), 0.35)
    seconds = each * jitter(rng, (ranks.size, count), 0.08)
    if fault.variant == "one":
        seconds *= np.arange(ranks.size)[:, None] == rng.integers(0, ranks.size, count)
    resources.compile_stall[np.ix_(ranks, steps)] += seconds


def memory_pressure(
    resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator
) -> None:
    """Reclaim on a node (bursts of stalls, a busy run queue), or one rank with too tight a limit."""
    ranks, nodes, active = ranks_of(fault), nodes_of(fault), envelope(fault, scenario, rng)
    if variant_of(fault, "reclaim") == "limit":
        _limit(resources, fault, scenario, rng)
        return
    shape = (nodes.size, scenario.n_steps)
    stall = np.clip(active * (0.1 + 0.6 * fault.severity) * jitter(rng, shape, 0.4), 0, 0.95)
    resources.memory_stall[nodes] = np.maximum(resources.memory_stall[nodes], stall)
    calm = resources.run_queue[ranks]
    level = np.clip(0.35 + 0.45 * fault.severity * jitter(rng, (ranks.size, scenario.n_steps), 0.2), 0, 0.9)
    resources.run_queue[ranks] = np.maximum(calm, calm + (level - calm) * active)
    lost = scenario.workload.step_seconds * 0.9 * fault.strength * fault.force**1.5
    bursts = rng.random((ranks.size, scenario.n_steps)) < 0.7
    resources.host_stall[ranks] += active * bursts * lost * jitter(rng, (ranks.size, scenario.n_steps), 0.6)


def _limit(
    resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator
) -> None:
    """A memory limit of one rank: its pages are read back from disk again and again.

    The node itself has enough memory.
    """
    ranks, active = ranks_of(fault), envelope(fault, scenario, rng)
    shape = (ranks.size, scenario.n_steps)
    worst = 1.1 * scenario.workload.step_seconds * fault.strength
    lost = active * worst * fault.force**1.5 * jitter(rng, shape, 0.4)
    # Mostly the input pipeline needs the pages that are read back, sometimes the step itself.
    in_loading = rng.choice([1.0, 1.0, 0.6])
    resources.table_stall[ranks] += in_loading * lost
    resources.host_stall[ranks] += (1 - in_loading) * lost
    # The number of reads depends on the pages per read.
    often = 30 + log_uniform(rng, 300, 5000) * fault.severity
    resources.major_faults[ranks] += active * often * jitter(rng, shape, 0.5)


def garbage_collection(
    resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator
) -> None:
    """Garbage collector pauses.

    A leak causes frequent and growing pauses on some ranks; unplanned collections are rare and long on any
    rank.
    """
    ranks, active = ranks_of(fault), envelope(fault, scenario, rng)
    shape = (ranks.size, scenario.n_steps)
    step = scenario.workload.step_seconds
    growth = np.cumsum(active) / max(active.sum(), 1.0)
    if fault.variant == "turns":
        # Each rank counts its own steps, so that the ranks collect one after the other.
        every = fault.every or 4 * ranks.size
        due = (np.arange(scenario.n_steps) - rng.integers(0, every, (ranks.size, 1))) % every == 0
        resources.gc[ranks] += active * due * event_seconds(fault, scenario, 2.0) * jitter(rng, shape, 0.3)
        return
    if variant_of(fault, "leak") == "leak":
        hit = rng.random(shape) < 0.55
        mean = 0.55 * fault.strength * step * fault.force**2 * np.minimum(1.2, 0.3 + 3 * growth)
    else:
        # Every rank collects on its own schedule, so nearly every pause delays the job. Rarer pauses are
        # longer, but cost less in total.
        paused = log_uniform(rng, *UNPLANNED_PAUSES_PER_STEP)
        hit = rng.random(shape) < min(0.5, paused / ranks.size)
        longer = min(1.0, paused) ** -0.5
        mean = 0.9 * longer * fault.strength * step * fault.force**1.5 * (0.8 + 0.4 * growth)
    resources.gc[ranks] += active * hit * mean * jitter(rng, shape, 0.35)
