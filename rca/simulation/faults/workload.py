"""Causes in the job itself: how work is divided."""

from __future__ import annotations

import numpy as np

from rca.simulation.faults.kind import envelope, ranks_of
from rca.simulation.resources import Resources
from rca.simulation.scenario import Fault, Scenario


def stage_imbalance(resources: Resources, fault: Fault, scenario: Scenario, rng: np.random.Generator) -> None:
    """All ranks of one pipeline stage carry more work (mostly the last: the logits)."""
    active = envelope(fault, scenario, rng)
    resources.work[ranks_of(fault)] *= 1 + (0.12 + 1.4 * fault.severity) * active


def sequence_lengths(
    resources: Resources, fault: Fault, scenario: Scenario, rng: np.random.Generator
) -> None:
    """Work follows the sum of squared lengths of each replica's sequences, drawn afresh at every step."""
    active = envelope(fault, scenario, rng)
    sizes = scenario.parallelism
    replicas = sizes.data * sizes.context
    sigma = 0.12 + 0.55 * fault.severity
    load = np.exp(rng.normal(0.0, sigma, (replicas, scenario.n_steps)))
    load /= load.mean()
    ranks = np.arange(scenario.world_size)
    replica = ranks // sizes.tensor % replicas
    resources.work *= 1 + (load[replica] - 1) * active
