"""Short, to stay, or by design: what a straggler is going to be."""

from __future__ import annotations

import pytest
import simulated_jobs

import rca
from rca.lab.simulation import Benign, Fault, simulate
from rca.window.job import Parallelism

HOT = Fault(cause="gpu_throttling", ranks=(3,), nodes=(0,), severity=0.9)
LENGTHS = Fault(
    cause="sequence_length_imbalance", ranks=tuple(range(8)), nodes=(0, 1), severity=0.9, first_step=0
)


def diagnosed(fault: Fault) -> rca.Diagnosis:
    job = simulated_jobs.job(
        fault, seed=8, dialect="gpu_cluster", parallelism=Parallelism(data=8), ranks_per_node=4, n_steps=120,
        benign=Benign(),
    )  # fmt: skip
    return rca.diagnose(simulate(job).window)


@pytest.mark.parametrize(
    ("first", "last", "pattern"),
    [(30, 60, "transient"), (50, None, "persistent"), (0, None, "persistent")],
    ids=["over", "goes on", "was always there"],
)
def test_a_machines_fault_is_over_or_stays(first: int, last: int | None, pattern: str) -> None:
    answer = diagnosed(HOT.model_copy(update={"first_step": first, "last_step": last}))
    assert [(one.ranks, one.pattern) for one in answer.stragglers] == [([3], pattern)]


def test_what_the_job_brings_with_it_comes_back_after_a_restart() -> None:
    answer = diagnosed(LENGTHS)
    assert answer.causes[0].cause == "sequence_length_imbalance"
    assert answer.stragglers[0].pattern == "deterministic"
