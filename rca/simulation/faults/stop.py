"""Faults that end the job."""

from __future__ import annotations

import numpy as np

from rca.simulation.faults.kind import variant_of
from rca.simulation.resources import COLLECTIVE, Resources, Stop
from rca.simulation.scenario import Fault, Scenario


def crash(resources: Resources, fault: Fault, _scenario: Scenario, rng: np.random.Generator) -> None:
    """End a process, most often where most time is spent."""
    phase = int(rng.choice(5, p=[0.08, 0.07, 0.3, 0.45, 0.1]))
    variant = variant_of(fault, "killed")
    resources.add_stop(Stop("crash", fault.ranks, fault.first_step, phase, variant))


def hang(resources: Resources, fault: Fault, _scenario: Scenario, rng: np.random.Generator) -> None:
    """Keep a process alive that never joins; or let all join a collective that never ends."""
    variant = variant_of(fault, "stopped")
    phase = COLLECTIVE if variant == "collective" else int(rng.choice(4, p=[0.3, 0.1, 0.3, 0.3]))
    resources.add_stop(Stop("hang", fault.ranks, fault.first_step, phase, variant))
