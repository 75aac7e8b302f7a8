"""A job with two faults, one after the other, and a healthy one amid noise."""

from __future__ import annotations

import pytest
import simulated_jobs

from rca.lab.simulation import Fault, SimulationScenario, simulate

THROTTLED = Fault(cause="gpu_throttling", ranks=(3,), nodes=(0,), severity=0.8, first_step=8, last_step=34)
STARVED = Fault(cause="data_loader_stall", ranks=(12,), nodes=(1,), severity=0.9, first_step=48, last_step=95)


def job(*faults: Fault) -> SimulationScenario:
    return simulated_jobs.job(*faults, seed=11, workload=simulated_jobs.WORKLOAD)


@pytest.fixture(scope="session")
def both():
    return simulate(job(THROTTLED, STARVED))
