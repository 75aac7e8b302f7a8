"""Causes in the job itself: how work is divided."""

from __future__ import annotations

import numpy as np

from rca.simulation.faults.kind import envelope, ranks_of
from rca.simulation.resources import Resources
from rca.simulation.scenario import Fault, Scenario
from rca.simulation.work import spread_for


def stage_imbalance(resources: Resources, fault: Fault, scenario: Scenario, rng: np.random.Generator) -> None:
    """Give one pipeline stage more layers' worth of work (mostly the last: the logits)."""
    active = envelope(fault, scenario, rng)
    per_stage = scenario.world_size // scenario.parallelism.pipeline
    for stage in np.unique(ranks_of(fault) // per_stage):
        resources.stage_extra[stage] += (0.12 + 1.4 * fault.strength * fault.force) * active


def sequence_lengths(
    resources: Resources, fault: Fault, scenario: Scenario, rng: np.random.Generator
) -> None:
    """Spread the input's lengths: replicas draw unequal sums of squared lengths, afresh at every step."""
    active = envelope(fault, scenario, rng)
    usual = scenario.benign.sequence_jitter
    wider = np.hypot(usual, (0.12 + 0.9 * fault.strength * fault.force) * active)
    spread = np.array([spread_for(scenario.workload, float(deviation)) for deviation in wider])
    resources.length_spread[0] = np.maximum(resources.length_spread[0], spread)
