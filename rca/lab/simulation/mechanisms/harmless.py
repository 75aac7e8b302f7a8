"""Healthy jobs that look like mechanisms: full memory, evaluations between steps, a few compilations."""

from __future__ import annotations

import numpy as np

from rca.lab.simulation.healthy_job import LongStall
from rca.lab.simulation.mechanisms.parts import changed, period, with_exporters, with_timers
from rca.lab.simulation.sampling_job import log_uniform
from rca.lab.simulation.scenario import SimulationScenario

#: Largest share of its time that a healthy job spends in evaluations that no timer covers.
MAX_UNTIMED_SHARE = 0.25


def full_memory(rng: np.random.Generator, base: SimulationScenario) -> SimulationScenario:
    """Hold nearly all device memory, as many jobs do by plan, without retries."""
    return with_exporters(changed(base, fleet={"memory_share": rng.uniform(0.93, 0.995)}), "dcgm")


def untimed_evaluation(rng: np.random.Generator, base: SimulationScenario) -> SimulationScenario:
    """Evaluate every few steps, mostly after the timer of the step."""
    every = period(rng, base, 4, 2)
    share = log_uniform(rng, 0.01, MAX_UNTIMED_SHARE)
    drawn = changed(
        base,
        benign={
            "slow_step_every": every,
            "slow_step_factor": 1 + every * share,
            "slow_step_phase": "between",
            "slow_step_alone": False,
        },
    )
    return with_timers(drawn, step_ends="before pauses") if rng.random() < 0.7 else drawn


def few_compilations(rng: np.random.Generator, base: SimulationScenario) -> SimulationScenario:
    """Compile one to three new shapes, mostly early: afterwards all are known."""
    found = []
    for _ in range(int(rng.integers(1, 4))):
        ranks = tuple(range(base.world_size))
        if rng.random() < 0.4:
            ranks = (int(rng.integers(base.world_size)),)
        step = int(base.n_steps * rng.beta(0.8, 2.0))
        found.append(
            LongStall(ranks=ranks, step=min(step, base.n_steps - 1), length=log_uniform(rng, 1.5, 60.0))
        )
    return changed(base, benign={"compilations": tuple(found)})
