"""What timers see where the host does not wait for its device: launches, and all the rest in one place.

A host launches kernels and goes on; a timer around a phase sees the launches. It waits where a number is
wanted back: for the loss right after the forward (and with it for all that the step before left to do), for
the gradients' norm in the optimizer, or at the step's end. There compute, waiting and exchange come together.
"""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.simulation.scenario import Scenario
from rca.simulation.timing import Timing

FORWARD, BACKWARD, OPTIMIZER = "forward_seconds", "backward_seconds", "optimizer_seconds"
_LAUNCHED = (FORWARD, BACKWARD, OPTIMIZER)
EXCHANGE = ("communication_wait_seconds", "communication_transfer_seconds")
#: How much launching the same kernels varies from step to step.
SCATTER = 0.05


def launches(scenario: Scenario, timing: Timing, columns: dict[str, FloatArray]) -> FloatArray:
    """Move what the host does not wait for to where it does, in place.

    Returns
    -------
    ndarray of shape (n_ranks, n_steps), seconds
        When hosts begin their steps, since the job's first step.
    """
    place, start = scenario.telemetry.booking.waits_for_device, timing.start
    left = {name: _left(scenario, timing, name, columns) for name in _LAUNCHED}
    exchange = sum(columns[name] for name in EXCHANGE)
    for name in EXCHANGE:
        columns[name] = np.zeros(start.shape)
    if place == "optimizer":
        columns[OPTIMIZER] += left[FORWARD] + left[BACKWARD] + exchange + left[OPTIMIZER]
    elif place == "forward":
        later = left[BACKWARD] + exchange + left[OPTIMIZER]
        carried = np.concatenate([np.zeros((start.shape[0], 1)), later[:, :-1]], axis=1)
        columns[FORWARD] += left[FORWARD] + carried
        columns["step_seconds"] += carried - later
        return np.asarray(start - carried)
    return start


def _left(scenario: Scenario, timing: Timing, name: str, columns: dict[str, FloatArray]) -> FloatArray:
    """What a phase's launches leave to the device, taken off the phase; seconds, (n_ranks, n_steps)."""
    spent, hosted = columns[name], timing.hosted.get(name, 0.0)
    rng = np.random.default_rng([scenario.seed, 6, _LAUNCHED.index(name)])
    usual = scenario.telemetry.booking.launch_share * getattr(scenario.workload, name)
    launched = usual * np.exp(SCATTER * rng.standard_normal(spent.shape))
    columns[name] = np.minimum(spent, launched + hosted)
    return np.asarray(spent - columns[name])
