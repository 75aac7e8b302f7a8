"""What happens to the machines of healthy jobs: neighbours drop in, caches are cold at first.

It acts on resources, as faults do, so that it shows in phases and signals alike.
"""

from __future__ import annotations

import numpy as np

from rca.simulation.benign import Collections
from rca.simulation.loading import batch_seconds, late_batch_seconds
from rca.simulation.resources import Resources
from rca.simulation.scenario import Scenario

#: Spread of the logarithm of a collector's pauses from step to step.
PAUSES_SPREAD = 0.3
# What the visible bustle of a neighbour takes of a core.
BURST_CORES = 0.9


def vary(resources: Resources, scenario: Scenario) -> None:
    """Apply the benign events of a scenario to its resources, in place."""
    benign = scenario.benign
    if benign.slow_batches:
        felt = np.array(benign.slow_batch_factor * scenario.expected_step_seconds)
        late = late_batch_seconds(scenario, felt) - batch_seconds(scenario)
        resources.batch_extra[:, : benign.slow_batches] += late
    if benign.collections is not None:
        _collect(resources, scenario, benign.collections)
    for burst in benign.bursts:
        steps = slice(burst.first_step, burst.first_step + burst.steps)
        ranks = list(scenario.ranks_on(burst.node))
        resources.run_queue[ranks, steps] = np.maximum(resources.run_queue[ranks, steps], burst.level)
        resources.foreign_cpu[burst.node, steps] += BURST_CORES * burst.level


def _collect(resources: Resources, scenario: Scenario, collections: Collections) -> None:
    """Let every rank's collector run as often as the program has it."""
    n_ranks, n_steps = resources.gc.shape
    rng = np.random.default_rng([scenario.seed, 11])
    first = rng.integers(0, collections.every, 1 if collections.together else n_ranks)
    due = (np.arange(n_steps) - first[:, None]) % collections.every == 0
    # Who logs for all, or holds more, has more to collect.
    usual = collections.seconds * np.exp(rng.normal(0, collections.uneven, (n_ranks, 1)))
    resources.gc += usual * due * np.exp(rng.normal(0, PAUSES_SPREAD, (n_ranks, n_steps)))
