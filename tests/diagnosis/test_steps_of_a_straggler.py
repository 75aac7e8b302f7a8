"""From which step to which a component is late."""

from __future__ import annotations

import simulated_jobs

import rca
from rca.lab.simulation import Fault, simulate
from tests.for_each import for_each

TOLERANCE = 8


def straggler(fault: Fault, seed: int) -> tuple[int | None, int | None]:
    window = simulate(simulated_jobs.job(fault, seed=seed, workload=simulated_jobs.WORKLOAD)).window
    found = rca.diagnose(window).stragglers[0]
    return found.first_step, found.last_step


@for_each(
    ("cause", "first", "last"),
    [
        ("gpu_throttling", 0, 99),
        ("gpu_throttling", 40, 99),
        ("gpu_throttling", 20, 60),
        ("data_loader_stall", 0, 99),
        ("data_loader_stall", 50, 80),
        ("runtime_gc", 0, 99),
        ("cpu_contention", 0, 99),
        ("cpu_contention", 30, 70),
    ],
)
def test_the_steps_of_a_straggler_are_those_of_its_fault(cause: str, first: int, last: int) -> None:
    fault = Fault(cause=cause, ranks=(5,), nodes=(0,), severity=0.8, first_step=first, last_step=last)
    begin, end = straggler(fault, seed=21)
    assert begin is not None
    assert end is not None
    assert abs(begin - first) <= TOLERANCE
    assert abs(end - last) <= TOLERANCE
