"""A part of the job that stands out beside what slows everybody: by what it costs, for a cause of its own."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import simulated_jobs

import rca
from rca.classify.classifier import Suspect, drop_job_cause, types_of
from rca.classify.components import Component
from rca.classify.outlier_ranks import outlier_ranks_of
from rca.features import RANK_FEATURES, FeatureSet, extract
from rca.simulation import Fault, simulate
from rca.telemetry.job import Parallelism

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


def suspected(**causes: float) -> Suspect:
    return Suspect(Component("rank", (5,), 0.97), types_of(causes), {}, causes)


def late_in(**excess: float) -> FeatureSet:
    """Rank 5 is a fifth of a step late, in these phases."""
    rank = np.zeros((8, len(RANK_FEATURES)))
    for name, share in {"own_time_excess": 0.2, **excess}.items():
        rank[5, RANK_FEATURES.index(name)] = share
    return cast("FeatureSet", SimpleNamespace(rank=rank))


def test_beside_the_job_a_part_is_to_blame_for_something_else() -> None:
    both = suspected(checkpoint_stall=0.5, gpu_contention=0.3, gpu_throttling=0.2)
    part = drop_job_cause("checkpoint_stall", both, late_in(forward_excess=0.2))
    assert part.causes == pytest.approx(
        {"gpu_contention": 0.6, "gpu_throttling": 0.4, "checkpoint_stall": 0.0}
    )
    assert part.types["compute"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("certain", "excess"),
    [
        (0.95, {"forward_excess": 0.2}),
        (0.5, {"checkpoint_excess": 0.2}),
        (0.5, {"checkpoint_excess": np.nan}),
    ],
    ids=["sure of it", "late in it", "no timer tells"],
)
def test_but_for_what_it_is_late_in_as_well(certain: float, excess: dict[str, float]) -> None:
    both = suspected(checkpoint_stall=certain, gpu_contention=1.0 - certain)
    assert drop_job_cause("checkpoint_stall", both, late_in(**excess)) is both


def test_a_diagnosis_tells_the_parts_own_cause_beside_the_jobs() -> None:
    everybody = Fault(
        cause="checkpoint_stall", ranks=tuple(range(16)), nodes=(0, 1), severity=0.9, first_step=20
    )
    shared = Fault(cause="gpu_contention", ranks=(5,), nodes=(0,), severity=0.5, first_step=20)
    found = rca.diagnose(simulate(simulated_jobs.job(everybody, shared, seed=31)).window)
    named = {(each.cause, tuple(each.ranks)) for each in found.causes if each.probability >= 0.5}
    assert named == {("checkpoint_stall", tuple(range(16))), ("gpu_contention", (5,))}
