"""A rank with a cause of its own, beside what slows the whole job."""

from __future__ import annotations

import simulated_jobs

import rca
from rca.lab.simulation import Fault, simulate


def test_a_diagnosis_tells_the_parts_own_cause_beside_the_jobs() -> None:
    all_ranks = Fault(
        cause="checkpoint_stall", ranks=tuple(range(16)), nodes=(0, 1), severity=0.9, first_step=20
    )
    shared = Fault(cause="gpu_contention", ranks=(5,), nodes=(0,), severity=0.5, first_step=20)
    found = rca.diagnose(simulate(simulated_jobs.job(all_ranks, shared, seed=31)).window)
    named = {(each.cause, tuple(each.ranks)) for each in found.causes if each.probability >= 0.5}
    assert named >= {("checkpoint_stall", tuple(range(16))), ("gpu_contention", (5,))}
