"""A job with two faults, one after the other, and a healthy one amid noise."""

from __future__ import annotations

import pytest
import simulated_jobs

import rca
from rca.features import extract
from rca.lab.simulation import Fault, SimulationScenario, simulate

THROTTLED = Fault(cause="gpu_throttling", ranks=(3,), nodes=(0,), severity=0.8, first_step=8, last_step=34)
STARVED = Fault(cause="data_loader_stall", ranks=(12,), nodes=(1,), severity=0.9, first_step=48, last_step=95)


#: A quarter of the window's steps.
AMONG = {"share": 0.25, "measured": 1.0, "rank_steps": 1600.0}


def job(*faults: Fault) -> SimulationScenario:
    return simulated_jobs.job(*faults, seed=11, workload=simulated_jobs.WORKLOAD)


@pytest.fixture(scope="session")
def both():
    return simulate(job(THROTTLED, STARVED))


def in_the_midst_of_noise(*faults: Fault) -> SimulationScenario:
    """Node 0 hiccups for four steps, as it may: the slowest stretch of any job."""
    hiccup = Fault(
        cause="cpu_contention", ranks=tuple(range(8)), nodes=(0,), severity=1.0, strength=3.0,
        first_step=60, last_step=63,
    )  # fmt: skip
    return job(*faults, hiccup)


def shown(diagnosis: rca.Diagnosis, mode: str, belief: float) -> rca.Diagnosis:
    chances = {"healthy": 1.0 - belief, "fail_slow": belief, "fail_stop": 0.0}
    return diagnosis.model_copy(update={"failure_mode": mode, "failure_mode_probability": chances})


@pytest.fixture(scope="session")
def hidden(both):
    """A window whose rest is slow; a healthy verdict on it, and what a part of it says for certain."""
    alone = rca.diagnose(simulate(job(THROTTLED)).window)
    healthy = rca.diagnose(simulate(job()).window)
    assert healthy.failure_mode == "healthy"
    return extract(both.window), healthy, alone
