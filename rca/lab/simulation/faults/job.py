"""Faults of the job as a whole: divided work, unexplained slowness, and faults that end it."""

from __future__ import annotations

import numpy as np

from rca.lab.simulation.compute_work import spread_for
from rca.lab.simulation.faults.kind import envelope, event_seconds, jitter, nodes_of, ranks_of, variant_of
from rca.lab.simulation.resources import COLLECTIVE, Resources, Stop
from rca.lab.simulation.scenario import Fault, SimulationScenario

#: Variant -> straggler type. The catalogue's `unknown` has none of its own.
UNEXPLAINED_TYPES = {
    "compute": "compute",
    "jitter": "compute",
    "older": "compute",
    "host": "host",
    "copies": "host",
    "transfer": "communication",
    "blocking": "host",
}
#: Worst factor of each variant at full force; copies are a small part of a step.
_WORST_FACTORS = {"compute": 1.2, "jitter": 0.8, "older": 0.5, "host": 2.0, "copies": 30.0, "transfer": 6.0}


def stage_imbalance(
    resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator
) -> None:
    """Give one pipeline stage more layers' worth of work (mostly the last: the logits)."""
    active = envelope(fault, scenario, rng)
    per_stage = scenario.world_size // scenario.parallelism.pipeline
    for stage in np.unique(ranks_of(fault) // per_stage):
        resources.stage_extra[stage] += (0.12 + 1.4 * fault.strength * fault.force) * active


def sequence_lengths(
    resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator
) -> None:
    """Spread the input's lengths: replicas draw unequal sums of squared lengths at every step."""
    active = envelope(fault, scenario, rng)
    usual = scenario.benign.sequence_jitter
    wider = np.hypot(usual, (0.12 + 0.9 * fault.strength * fault.force) * active)
    spread = np.array([spread_for(scenario.workload, float(deviation)) for deviation in wider])
    resources.length_spread[0] = np.maximum(resources.length_spread[0], spread)


def unexplained(
    resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator
) -> None:
    """A debug build, a bad kernel or older machines: durations grow by a factor, no other signal changes."""
    ranks, variant = ranks_of(fault), variant_of(fault, "compute")
    shape = (ranks.size, scenario.n_steps)
    if variant == "blocking":
        _block(resources, fault, scenario, rng)
        return
    active = np.ones(scenario.n_steps) if variant == "older" else envelope(fault, scenario, rng)
    uneven = np.abs(rng.normal(0, 1.2, shape)) if variant == "jitter" else jitter(rng, shape, 0.03)
    factor = 1 + _WORST_FACTORS[variant] * fault.strength * fault.force * active * uneven
    if variant == "transfer":
        resources.nic_stretch[nodes_of(fault)] *= factor[0]
        resources.nvlink_stretch[nodes_of(fault)] *= factor[0]
    elif variant == "host":
        resources.launch_stretch[ranks] *= factor
    elif variant == "copies":
        resources.copy_stretch[ranks] *= factor
    else:
        resources.compute_stretch[ranks] *= factor


def _block(
    resources: Resources, fault: Fault, scenario: SimulationScenario, rng: np.random.Generator
) -> None:
    """Some ranks log, upload or wait for a service every few steps, outside of all phases."""
    ranks, active = ranks_of(fault), envelope(fault, scenario, rng)
    every = fault.every or 1
    due = (np.arange(scenario.n_steps) - fault.first_step) % every == every - 1
    # A service answers once: ranks that wait for it wait about as long.
    each = event_seconds(fault, scenario, 0.6 * every) * jitter(rng, (1, scenario.n_steps), 0.4)
    resources.untimed_stall[ranks] += active * due * each * jitter(rng, (ranks.size, scenario.n_steps), 0.1)


def crash(
    resources: Resources, fault: Fault, _scenario: SimulationScenario, rng: np.random.Generator
) -> None:
    """End a process, most often in the longest phase."""
    phase = int(rng.choice(5, p=[0.08, 0.07, 0.3, 0.45, 0.1]))
    variant = variant_of(fault, "killed")
    if variant == "link":
        phase = COLLECTIVE
    resources.add_stop(Stop("crash", fault.ranks, fault.first_step, phase, variant, fault.silence))


def hang(resources: Resources, fault: Fault, _scenario: SimulationScenario, rng: np.random.Generator) -> None:
    """Stop a process that then never joins the collective, or let a collective never end."""
    variant = variant_of(fault, "stopped")
    phase = COLLECTIVE if variant == "collective" else int(rng.choice(4, p=[0.3, 0.1, 0.3, 0.3]))
    resources.add_stop(Stop("hang", fault.ranks, fault.first_step, phase, variant, fault.silence))
