"""All ranks compute more or less from some step on: a larger batch, longer sequences, other layers."""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.simulation.scenario import Scenario


def work_over_time(scenario: Scenario) -> FloatArray:
    """Everybody's compute relative to the job's first steps, shape (n_steps,)."""
    benign, steps = scenario.benign, np.arange(scenario.n_steps)
    if benign.shift_step is None:
        return np.ones(scenario.n_steps)
    done = np.clip((steps - benign.shift_step + 1) / (benign.shift_ramp + 1), 0.0, 1.0)
    return np.asarray(1 + (benign.shift_factor - 1) * done)


def inputs_over_time(scenario: Scenario) -> FloatArray:
    """Everybody's input relative to the job's first steps, (n_steps,); ones where other work changed."""
    counted = scenario.benign.shift_counted != "nothing"
    return work_over_time(scenario) if counted else np.ones(scenario.n_steps)
