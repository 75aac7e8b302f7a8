"""Slowness that no catalogue cause explains: times grow, and whatever exporters watch stays as it was."""

from __future__ import annotations

import numpy as np

from rca.simulation.faults.kind import envelope, jitter, nodes_of, ranks_of, variant_of
from rca.simulation.resources import Resources
from rca.simulation.scenario import Fault, Scenario

#: Variant -> straggler type. The catalogue's `unknown` has none of its own.
TYPES = {
    "compute": "compute",
    "jitter": "compute",
    "older": "compute",
    "host": "host",
    "copies": "host",
    "transfer": "communication",
}
#: Worst factor of each variant at full force; copies are a small part of a step.
_WORST = {"compute": 1.2, "jitter": 0.8, "older": 0.5, "host": 2.0, "copies": 30.0, "transfer": 6.0}


def unexplained(resources: Resources, fault: Fault, scenario: Scenario, rng: np.random.Generator) -> None:
    """A debug build, a bad kernel, older machines: longer by a factor, with nothing to see."""
    ranks, variant = ranks_of(fault), variant_of(fault, "compute")
    shape = (ranks.size, scenario.n_steps)
    active = np.ones(scenario.n_steps) if variant == "older" else envelope(fault, scenario, rng)
    uneven = np.abs(rng.normal(0, 1.2, shape)) if variant == "jitter" else jitter(rng, shape, 0.03)
    factor = 1 + _WORST[variant] * fault.strength * fault.force * active * uneven
    if variant == "transfer":
        resources.nic_stretch[nodes_of(fault)] *= factor[0]
        resources.nvlink_stretch[nodes_of(fault)] *= factor[0]
    elif variant == "host":
        resources.launch_stretch[ranks] *= factor
    elif variant == "copies":
        resources.copy_stretch[ranks] *= factor
    else:
        resources.compute_stretch[ranks] *= factor
