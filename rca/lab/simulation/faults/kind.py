"""The type of a fault, and what all faults share: affected ranks, presence over time, random factors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.lab.simulation.resources import Resources
from rca.lab.simulation.scenario import Fault, SimulationScenario

Reach = Literal["rank", "node", "fabric", "stage", "job"]
Range = tuple[float, float]
Inject = Callable[[Resources, Fault, SimulationScenario, np.random.Generator], None]


@dataclass(frozen=True)
class FaultKind:
    """One catalogue cause: its straggler type (None = fail-stop), what it hits, and how it acts.

    Attributes
    ----------
    variants, later : tuple of str
        Variants that every corpus draws, and those that only its second version draws.
    strength, curve : tuple of float
        Ranges of `Fault.strength` and `Fault.curve`, wide around the values of two testbeds.
    strengths : mapping of str to tuple of float
        Ranges of the strength of single variants.
    """

    straggler_type: str | None
    reach: Reach
    inject: Inject
    variants: tuple[str, ...]
    later: tuple[str, ...] = ()
    strength: Range = (0.7, 1.4)
    curve: Range = (0.75, 1.15)
    strengths: Mapping[str, Range] = field(default_factory=dict)


def envelope(fault: Fault, scenario: SimulationScenario, rng: np.random.Generator) -> FloatArray:
    """Presence of the fault at each step, from 0 to 1, shape (n_steps,)."""
    present = np.zeros(scenario.n_steps)
    last = scenario.n_steps - 1 if fault.last_step is None else min(fault.last_step, scenario.n_steps - 1)
    length = last - fault.first_step + 1
    shape = np.ones(length)
    if fault.shape == "ramp":
        shape = np.minimum(1.0, np.linspace(0.25, 1.5, length))
    elif fault.shape == "intermittent":
        # Bursts of a few steps, as of a neighbour's batch job; the first step is always affected.
        switches = rng.random(length) < 0.25
        shape = (np.cumsum(switches) % 2 == 0).astype(float)
    present[fault.first_step : last + 1] = shape
    return present


def ranks_of(fault: Fault) -> IntArray:
    return np.asarray(fault.ranks, dtype=np.int64)


def nodes_of(fault: Fault) -> IntArray:
    return np.asarray(fault.nodes, dtype=np.int64)


def variant_of(fault: Fault, default: str) -> str:
    return fault.variant or default


def event_seconds(fault: Fault, scenario: SimulationScenario, usual_steps: float) -> float:
    """Length of one of a fault's events; by default so many usual steps at full force."""
    if fault.seconds is not None:
        return fault.seconds
    return usual_steps * fault.strength * fault.force * scenario.expected_step_seconds


def jitter(rng: np.random.Generator, shape: tuple[int, ...], sigma: float) -> FloatArray:
    """Log-normal factors with mean one."""
    return np.asarray(np.exp(rng.normal(-0.5 * sigma * sigma, sigma, shape)))
