"""Faults that end the job."""

from __future__ import annotations

import numpy as np

from rca.simulation.faults.kind import variant_of
from rca.simulation.resources import Resources, Stop
from rca.simulation.scenario import Fault, Scenario

# Position in the order of work: data loading, copy, forward, backward, then the collective.
COLLECTIVE = 4


def crash(resources: Resources, fault: Fault, scenario: Scenario, rng: np.random.Generator) -> None:
    """A process dies, most often where most time is spent."""
    phase = int(rng.choice(5, p=[0.08, 0.07, 0.3, 0.45, 0.1]))
    variant = variant_of(fault, "killed")
    resources.add_stop(Stop("crash", fault.ranks, fault.first_step, phase, variant))


def hang(resources: Resources, fault: Fault, scenario: Scenario, rng: np.random.Generator) -> None:
    """A process stays alive and never joins; or everybody joined and the collective never ends."""
    variant = variant_of(fault, "host")
    phase = COLLECTIVE if variant == "collective" else int(rng.choice(4, p=[0.3, 0.1, 0.3, 0.3]))
    resources.add_stop(Stop("hang", fault.ranks, fault.first_step, phase, variant))
