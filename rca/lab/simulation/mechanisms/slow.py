"""Mechanisms of slow jobs: chronic faults, time that no timer covers, full device memory, wrong routes."""

from __future__ import annotations

import numpy as np

from rca.lab.simulation.faults import FAULTS, FIRST_CAUSES
from rca.lab.simulation.mechanisms.parts import (
    COSTS,
    changed,
    event_of_cost,
    everywhere,
    fault,
    on_nodes,
    on_ranks,
    period,
    some_nodes,
    span,
    whole,
    with_exporters,
    with_timers,
    without_phases,
)
from rca.lab.simulation.sampling import sample_fault
from rca.lab.simulation.sampling_job import log_uniform
from rca.lab.simulation.scenario import SimulationScenario

#: Exporters that show a cause on all machines alike, because a sound machine shows nothing.
ABSOLUTE_EVIDENCE: dict[str, tuple[str, ...]] = {
    "gpu_throttling": ("dcgm",),
    "pcie_degradation": ("dcgm",),
    "cpu_contention": ("cpu", "pressure"),
    "memory_pressure": ("memory", "pressure"),
    "storage_degradation": ("disk", "pressure"),
    "nic_degradation": ("infiniband",),
}
CHRONIC_CAUSES = tuple(
    name for name in FIRST_CAUSES if FAULTS[name].straggler_type is not None and FAULTS[name].reach != "stage"
)
#: Smallest and largest share of a step that communication takes in jobs with wrong routes.
EXPOSED_COMMUNICATION = (0.12, 0.5)


def chronic(rng: np.random.Generator, base: SimulationScenario) -> SimulationScenario:
    """Let a fault of some ranks or nodes act from the first step to the last."""
    drawn = sample_fault(rng, base, str(rng.choice(CHRONIC_CAUSES)))
    return changed(base, faults=(drawn.model_copy(update=whole(base)),))


def chronic_job(rng: np.random.Generator, base: SimulationScenario) -> SimulationScenario:
    """Let a fault act on all machines from the first step to the last; only absolute values show it."""
    names = [name for name in ABSOLUTE_EVIDENCE if name != "nic_degradation" or base.n_nodes > 1]
    if base.dialect == "cpu_testbed":
        names = [name for name in names if not name.startswith(("gpu", "pcie", "nic"))]
    cause = str(rng.choice(names))
    drawn = sample_fault(rng, base, cause)
    severity = float(rng.uniform(0.4, 1.0))
    found = drawn.model_copy(
        update={**whole(base), **everywhere(base), "severity": severity, "shape": "step"}
    )
    shown = [name for name in ABSOLUTE_EVIDENCE[cause] if rng.random() < 0.9]
    return with_exporters(changed(base, faults=(found,)), *shown)


def untimed_saves(rng: np.random.Generator, base: SimulationScenario) -> SimulationScenario:
    """Write checkpoints of seconds to minutes every few steps, mostly where no timer of a phase runs."""
    every = period(rng, base, 3, 2.5)
    alone = rng.random() < 0.25
    seconds = min(event_of_cost(rng, base, every), 600.0)
    where = on_ranks(base, [0]) if alone else everywhere(base)
    found = fault(base, "checkpoint_stall", variant="all", every=every, seconds=seconds, **where)
    place = rng.random()
    drawn = changed(base, faults=(found,))
    if place < 0.25:
        return with_timers(drawn, step_ends="before saves")
    return without_phases(drawn, "checkpoint_seconds") if place < 0.8 else drawn


def pauses_in_turns(rng: np.random.Generator, base: SimulationScenario) -> SimulationScenario:
    """Let the ranks collect garbage one after the other, mostly between steps and outside of every timer."""
    at_once = log_uniform(rng, 0.1, 3.0)
    every = int(np.clip(base.world_size / at_once, 2, max(2, base.n_steps // 2)))
    often = min(1.0, base.world_size / every)
    seconds = event_of_cost(rng, base, 1 / often)
    found = fault(base, "runtime_gc", variant="turns", every=every, seconds=seconds, **everywhere(base))
    drawn = changed(base, faults=(found,), workload={"calls_collector": bool(rng.random() < 0.75)})
    if rng.random() < 0.65:
        kept = tuple(name for name in base.telemetry.exporters if name != "python")
        drawn = without_phases(changed(drawn, telemetry={"exporters": kept}), "gc_seconds")
    return with_timers(drawn, step_ends="before pauses") if rng.random() < 0.6 else drawn


def blocking(rng: np.random.Generator, base: SimulationScenario) -> SimulationScenario:
    """Let one rank, mostly the first, log and block outside of all phases."""
    return _blocking(rng, base, *COSTS)


def small_blocking(rng: np.random.Generator, base: SimulationScenario) -> SimulationScenario:
    """The same at a cost that no one notices."""
    return _blocking(rng, base, 0.004, 0.03)


def _blocking(
    rng: np.random.Generator, base: SimulationScenario, low: float, high: float
) -> SimulationScenario:
    every = 1 if rng.random() < 0.4 else period(rng, base, 2, 4)
    seconds = log_uniform(rng, low, high) * every * base.expected_step_seconds
    rank = 0 if rng.random() < 0.8 else int(rng.integers(base.world_size))
    found = fault(base, "unknown", variant="blocking", every=every, seconds=seconds, **on_ranks(base, [rank]))
    drawn = changed(base, faults=(found.model_copy(update=span(rng, base, 0.7)),))
    return with_timers(drawn, step_ends="before pauses") if rng.random() < 0.5 else drawn


def allocator_retries(rng: np.random.Generator, base: SimulationScenario) -> SimulationScenario:
    """Flush the allocator's cache at random steps of random ranks; the input of all ranks is alike."""
    where = everywhere(base)
    if rng.random() < 0.3 and base.n_nodes > 1:
        where = on_nodes(base, some_nodes(rng, base, 4))
    often = log_uniform(rng, 0.08, 1.0)
    every = max(1, round(len(where["ranks"]) / often))
    seconds = event_of_cost(rng, base, 1 / often)
    found = fault(
        base, "allocator_retries", severity=rng.uniform(0.3, 1.0), every=every, seconds=seconds, **where
    )
    drawn = changed(
        base,
        faults=(found.model_copy(update=span(rng, base, 0.75)),),
        benign={"sequence_jitter": 0.0 if rng.random() < 0.7 else base.benign.sequence_jitter},
        fleet={"memory_share": rng.uniform(0.9, 0.98)},
        telemetry={"load_columns": bool(rng.random() < 0.4)},
    )
    return with_exporters(drawn, "dcgm") if rng.random() < 0.8 else drawn


def misconfiguration(rng: np.random.Generator, base: SimulationScenario) -> SimulationScenario:
    """Share an adapter between local ranks, take a far one, or fall back to TCP sockets."""
    kinds = ("shared_adapter", "sockets", "routing")
    variant = str(rng.choice(kinds, p=[0.5, 0.3, 0.2]))
    if variant == "shared_adapter" and base.ranks_per_node < 2:
        variant = "sockets"
    nodes = some_nodes(rng, base, 4)
    if rng.random() < (0.7 if variant == "sockets" else 0.15):
        nodes = list(range(base.n_nodes))
    where = on_nodes(base, nodes)
    if variant == "shared_adapter":
        where = on_ranks(base, _sharing(rng, base, nodes))
    elif variant == "routing" and rng.random() < 0.5:
        where = on_ranks(base, [int(rng.choice(base.ranks_on(node))) for node in nodes])
    found = fault(
        base,
        "communication_misconfiguration",
        variant=variant,
        severity=rng.uniform(0.3, 1.0),
        strength=rng.uniform(0.8, 1.1),
        own_share=rng.uniform(0.3, 1.0) if rng.random() < 0.7 else rng.uniform(0.0, 0.3),
        **where,
        **span(rng, base, 0.85),
    )
    step = base.workload.step_seconds
    longer = max(base.workload.transfer_seconds, log_uniform(rng, *EXPOSED_COMMUNICATION) * step)
    drawn = changed(base, faults=(found,), workload={"transfer_seconds": longer})
    return with_exporters(drawn, "infiniband", "network") if rng.random() < 0.6 else drawn


def _sharing(rng: np.random.Generator, base: SimulationScenario, nodes: list[int]) -> list[int]:
    """Draw neighbouring local ranks that share an adapter, the same ones on each node."""
    several = 2 if rng.random() < 0.8 else min(4, base.ranks_per_node)
    first = int(rng.integers(0, max(1, base.ranks_per_node // several))) * several
    found: list[int] = []
    for node in nodes:
        found += base.ranks_on(node)[first : first + several]
    return found


def recompilation(rng: np.random.Generator, base: SimulationScenario) -> SimulationScenario:
    """Compile the model again all through the window, at rare steps of all ranks or of one."""
    every = period(rng, base, 4, 4)
    found = fault(
        base,
        "recompilation",
        variant="together" if rng.random() < 0.6 else "one",
        every=every,
        seconds=max(event_of_cost(rng, base, every), 1.5 * base.expected_step_seconds),
        **everywhere(base),
    )
    return changed(base, faults=(found,))


def own_processes(rng: np.random.Generator, base: SimulationScenario) -> SimulationScenario:
    """Let the job's own loaders and threads fill the cores of a node, or of all nodes."""
    alone = rng.random() < 0.5
    where = on_nodes(base, some_nodes(rng, base, 2)) if alone else everywhere(base)
    found = fault(
        base,
        "cpu_contention",
        variant="own_loaders" if rng.random() < 0.6 else "own_threads",
        severity=rng.uniform(0.4, 1.0),
        strength=rng.uniform(0.6, 1.1),
        **where,
        **span(rng, base, 0.7),
    )
    shown = [name for name in ("pressure", "cpu") if rng.random() < 0.85]
    if base.dialect != "gpu_cluster" and rng.random() < 0.8:
        shown += ["container", "process"]
    return with_exporters(changed(base, faults=(found,)), *shown)
