"""A part of a job that is slow as a whole: it stands out by its cost, and has a cause of its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import simulated_jobs

import rca
from rca.classify.suspects import outlier_ranks_of
from rca.features import FeatureSet, extract
from rca.lab.simulation import Fault, simulate
from rca.window.job import Parallelism

STAGE = tuple(range(4, 8))


@pytest.fixture(scope="module")
def pipeline() -> Callable[[float], FeatureSet]:
    """Two stages, the second of which takes longer."""

    def build(severity: float) -> FeatureSet:
        heavy = Fault(cause="stage_imbalance", ranks=STAGE, nodes=(), severity=severity)
        shape = Parallelism(data=4, pipeline=2)
        faults = (heavy,) if severity else ()
        return extract(simulate(simulated_jobs.job(*faults, seed=24, parallelism=shape)).window)

    return build


@pytest.mark.parametrize("severity", [0.8, 0.0], ids=["heavy", "even"])
def test_a_stage_stands_out_by_what_it_costs_beside_the_next(pipeline, severity: float) -> None:
    """Its ranks are as late as their peers are."""
    certain = np.where(np.isin(np.arange(8), STAGE), 0.97, 0.02)
    standing = outlier_ranks_of(certain, pipeline(severity))
    assert np.flatnonzero(standing).tolist() == (list(STAGE) if severity else [])


def test_a_diagnosis_tells_the_parts_own_cause_beside_the_jobs() -> None:
    all_ranks = Fault(
        cause="checkpoint_stall", ranks=tuple(range(16)), nodes=(0, 1), severity=0.9, first_step=20
    )
    shared = Fault(cause="gpu_contention", ranks=(5,), nodes=(0,), severity=0.5, first_step=20)
    found = rca.diagnose(simulate(simulated_jobs.job(all_ranks, shared, seed=31)).window)
    named = {(each.cause, tuple(each.ranks)) for each in found.causes if each.probability >= 0.5}
    assert named >= {("checkpoint_stall", tuple(range(16))), ("gpu_contention", (5,))}
