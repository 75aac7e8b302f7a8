"""What the draws of mechanisms share: chosen ranks and nodes, costs, and changed scenarios."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rca.lab.simulation.sampling_job import log_uniform
from rca.lab.simulation.scenario import Dialect, Fault, SimulationScenario

Draw = Callable[[np.random.Generator, SimulationScenario], SimulationScenario]
ON_GPUS: tuple[Dialect, ...] = ("gpu_cluster", "mixed")
ANYWHERE: tuple[Dialect, ...] = ("gpu_cluster", "mixed", "cpu_testbed")
#: Range of the share of a step that a mechanism costs, before it is simulated.
COSTS = (0.07, 1.0)


@dataclass(frozen=True)
class Mechanism:
    """One way in which a job becomes slow or stops, or only looks like it.

    Attributes
    ----------
    weight : float
        Share of the windows of mechanisms.
    draw : callable
        From a random generator and a healthy job to the job with the mechanism.
    labels : tuple of str
        Causes that its windows are labelled with; empty for healthy jobs.
    job : str
        Cause for which the healthy job is drawn, because some causes need stages or several nodes.
    dialects : tuple of str
        Machines on which it occurs.
    """

    weight: float
    draw: Draw
    labels: tuple[str, ...]
    job: str = ""
    dialects: tuple[Dialect, ...] = ANYWHERE


def changed(scenario: SimulationScenario, **parts: Any) -> SimulationScenario:
    """Return the scenario with other faults, and with other fields of its parts.

    Parameters
    ----------
    **parts
        ``faults``, or a part of the scenario (``telemetry``, ``workload``, ``benign``, ``fleet``) with a
        mapping of its changed fields.
    """
    update: dict[str, Any] = {}
    for name, held in parts.items():
        part = getattr(scenario, name)
        update[name] = part.model_copy(update=held) if isinstance(held, dict) else held
    return SimulationScenario.model_validate(scenario.model_copy(update=update).model_dump())


def with_timers(scenario: SimulationScenario, **accounting: Any) -> SimulationScenario:
    """Return the scenario with other fields of its trainer's timers."""
    timers = scenario.telemetry.phase_accounting.model_copy(update=accounting)
    return changed(scenario, telemetry={"phase_accounting": timers})


def without_phases(scenario: SimulationScenario, *columns: str) -> SimulationScenario:
    """Return the scenario without timers of these phases."""
    missing = dict.fromkeys((*scenario.telemetry.missing_phases, *columns))
    return changed(scenario, telemetry={"missing_phases": tuple(missing)})


def with_exporters(scenario: SimulationScenario, *names: str) -> SimulationScenario:
    """Return the scenario with these exporters as well."""
    held = dict.fromkeys((*scenario.telemetry.exporters, *names))
    return changed(scenario, telemetry={"exporters": tuple(held)})


def everywhere(scenario: SimulationScenario) -> dict[str, tuple[int, ...]]:
    """All ranks and nodes, as fields of a fault."""
    return {"ranks": tuple(range(scenario.world_size)), "nodes": tuple(range(scenario.n_nodes))}


def on_nodes(scenario: SimulationScenario, nodes: list[int]) -> dict[str, tuple[int, ...]]:
    """All ranks of some nodes, as fields of a fault."""
    found = sorted(nodes)
    return {
        "ranks": tuple(rank for node in found for rank in scenario.ranks_on(node)),
        "nodes": tuple(found),
    }


def on_ranks(scenario: SimulationScenario, ranks: list[int]) -> dict[str, tuple[int, ...]]:
    """Some ranks and their nodes, as fields of a fault."""
    found = sorted(ranks)
    return {
        "ranks": tuple(found),
        "nodes": tuple(sorted({rank // scenario.ranks_per_node for rank in found})),
    }


def some_nodes(rng: np.random.Generator, scenario: SimulationScenario, most: int) -> list[int]:
    """Draw one to `most` nodes, and never all of several."""
    count = int(rng.integers(1, max(2, min(most, scenario.n_nodes - 1) + 1)))
    return [int(node) for node in rng.choice(scenario.n_nodes, min(count, scenario.n_nodes), replace=False)]


def whole(scenario: SimulationScenario) -> dict[str, int]:
    """From the first step to the last, as fields of a fault."""
    return {"first_step": 0, "last_step": scenario.n_steps - 1}


def span(rng: np.random.Generator, scenario: SimulationScenario, chronic: float) -> dict[str, int]:
    """Draw when a fault acts: always, with this probability, or from some step on."""
    if rng.random() < chronic:
        return whole(scenario)
    first = max(1, int(scenario.n_steps * rng.uniform(0.1, 0.6)))
    return {"first_step": first, "last_step": scenario.n_steps - 1}


def period(rng: np.random.Generator, scenario: SimulationScenario, low: float, events: float) -> int:
    """Draw the steps between two events, such that the window has at least so many of them."""
    return max(1, int(log_uniform(rng, low, max(low + 1, scenario.n_steps / events))))


def event_of_cost(rng: np.random.Generator, scenario: SimulationScenario, every: float) -> float:
    """Draw the seconds of an event that costs a share of `COSTS` per step if it occurs so rarely."""
    return log_uniform(rng, *COSTS) * max(every, 1.0) * scenario.expected_step_seconds


def fault(scenario: SimulationScenario, cause: str, **fields: Any) -> Fault:
    """A fault of a cause, by default at full severity and from the first step to the last."""
    return Fault(cause=cause, **{"severity": 1.0, **whole(scenario), **fields})
