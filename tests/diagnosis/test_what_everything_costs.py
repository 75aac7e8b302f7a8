"""What was lost, before a cause is known: slow transfers, and ranks that two suspects share."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from rca.arrays import FloatArray
from rca.classify.classifier import Suspect
from rca.classify.components import Component
from rca.diagnosis.excess_time import excesses_of, ideal_work, lock_step_waits, transfer_excess
from rca.features import FeatureSet, extract
from rca.high_segment import Segment

STEPS, QUIET = 60, 0.2
STRETCH = Segment(20, 29, 0.1, 20.0, False)


def lost(transfer: FloatArray, held: Segment) -> FloatArray:
    """Seconds of transfer above the quiet level, of a job with steps of a second."""
    work = SimpleNamespace(transfer=np.tile(transfer, (4, 1)), step_reference=1.0)
    features = SimpleNamespace(work=work, comparison=SimpleNamespace(segment=held))
    return transfer_excess(cast("FeatureSet", features))


def around(level: FloatArray, jitter: float) -> FloatArray:
    noise = np.random.default_rng(3).normal(0.0, jitter, STEPS)
    found: FloatArray = level + np.abs(noise)
    return found


def test_of_restless_transfers_only_the_stretch_counts() -> None:
    transfer = around(np.full(STEPS, QUIET), 0.2)
    transfer[20:30] += 0.3
    found = lost(transfer, STRETCH)
    assert found[20:30].mean() == pytest.approx(0.3, abs=0.1)
    assert not np.delete(found, np.arange(20, 30)).any()


FROM_30 = np.where(np.arange(60) >= 30, 0.02, 0.0)
SLOW_JOB = Suspect(Component("job", tuple(range(8)), 0.9), {}, {"data_loader_stall": 0.9})


def rank_suspected(*ranks: int) -> Suspect:
    return Suspect(Component("rank", ranks, 0.9), {}, {"gpu_throttling": 0.9})


@pytest.fixture(scope="module")
def both(make_window) -> FeatureSet:
    """Rank 2 computes longer in all steps, and from step 30 on all ranks load longer."""
    window = make_window(
        8, 60, late=dict.fromkeys(range(8), FROM_30), phase="data_loading_seconds", noise=1e-5
    )
    columns = {
        name: np.array(window.steps[name]).reshape(8, 60).copy()
        for name in ("forward_seconds", "step_seconds")
    }
    wait = np.array(window.steps["communication_wait_seconds"]).reshape(8, 60)
    columns["forward_seconds"][2] += 0.05
    columns["step_seconds"] = columns["step_seconds"] + 0.05
    columns["communication_wait_seconds"] = np.where(np.arange(8)[:, None] == 2, wait, wait + 0.05)
    steps = window.steps
    for name, values in columns.items():
        place = steps.column_names.index(name)
        steps = steps.set_column(place, name, pa.array(values.ravel()))
    return extract(type(window).from_tables(window.job, steps))


@pytest.mark.parametrize("job_first", [False, True])
def test_what_a_rank_has_for_itself_is_not_the_jobs_as_well(both: FeatureSet, job_first: bool) -> None:
    suspects = [rank_suspected(2), SLOW_JOB]
    found = excesses_of(suspects[::-1] if job_first else suspects, both)
    alone, job = found[::-1] if job_first else found
    near = {"atol": 1e-3}
    np.testing.assert_allclose(alone.total[0], 0.05, **near)
    np.testing.assert_allclose(job.total, np.tile(FROM_30, (8, 1)), **near)
    np.testing.assert_allclose(job.parts["data_loading"], np.tile(FROM_30, (8, 1)), **near)
    own = both.work.own
    ideal, _ = ideal_work(own, None, both, found)
    np.testing.assert_allclose(ideal[2], np.median(ideal, axis=0), **near)
    np.testing.assert_allclose(own[2] - ideal[2], 0.05 + FROM_30, **near)


def test_of_the_same_ranks_the_second_has_nothing(both: FeatureSet) -> None:
    first, second = excesses_of([rank_suspected(2), rank_suspected(2)], both)
    np.testing.assert_allclose(first.total, 0.05, atol=1e-3)
    np.testing.assert_allclose(second.total, 0.0, atol=1e-9)


def test_a_rank_of_a_heavy_stage_of_a_slow_job_pays_for_each_once(make_window) -> None:
    late = (
        dict.fromkeys(range(8), FROM_30)
        | dict.fromkeys((4, 5, 7), FROM_30 + 0.03)
        | {6: FROM_30 + 0.03 + 0.04}
    )
    features = extract(make_window(8, 60, late=late, parallelism={"data": 4, "pipeline": 2}, noise=1e-5))
    stage = Suspect(Component("stage", (4, 5, 6, 7), 0.9), {}, {"stage_imbalance": 0.9})
    job, heavy, alone = excesses_of([SLOW_JOB, stage, rank_suspected(6)], features)
    near = {"atol": 1e-3}
    np.testing.assert_allclose(alone.total, 0.04, **near)
    np.testing.assert_allclose(heavy.total, 0.03, **near)
    np.testing.assert_allclose(job.total, np.tile(FROM_30, (8, 1)), **near)


def test_who_has_no_peers_shares_what_the_job_suffers(make_window) -> None:
    """Two stages of one rank each: what the second has above its past may be the job's as well."""
    late = {0: FROM_30, 1: 2.5 * FROM_30}
    features = extract(make_window(2, 60, late=late, parallelism={"data": 1, "pipeline": 2}, noise=1e-5))
    all_ranks = replace(SLOW_JOB, component=Component("job", (0, 1), 0.9))
    alone, job = excesses_of([rank_suspected(1), all_ranks], features)
    near = {"atol": 1e-3}
    np.testing.assert_allclose(alone.total[0], 2.5 * FROM_30, **near)
    np.testing.assert_allclose(job.total, [FROM_30, 2.5 * FROM_30], **near)
    ideal, _ = ideal_work(features.work.own, None, features, [alone, job])
    np.testing.assert_allclose(features.work.own - ideal, [FROM_30, 2.5 * FROM_30], **near)


def test_a_link_takes_nothing_of_its_nodes_work(both: FeatureSet) -> None:
    link = Suspect(Component("rank", (2,), 0.9), {}, {"nic_degradation": 0.9})
    node = Suspect(Component("node", (2, 3), 0.9), {}, {"gpu_throttling": 0.9})
    _, hot = excesses_of([link, node], both)
    np.testing.assert_allclose(hot.total[0], 0.05, atol=1e-3)
    ideal, _ = ideal_work(both.work.own, None, both, excesses_of([link, node], both))
    np.testing.assert_allclose((both.work.own - ideal)[2], 0.05, atol=1e-3)


@pytest.mark.parametrize("order", [[1, 2], [2, 1]])
def test_late_transfers_of_two_say_nothing_of_each_other(both: FeatureSet, order: list[int]) -> None:
    transfer = both.work.transfer.copy()
    transfer[1] += 0.03
    transfer[2] += 0.05
    late = replace(both, work=replace(both.work, transfer=transfer))
    lags = {
        rank: excess.lag.mean()
        for rank, excess in zip(
            order, excesses_of([rank_suspected(rank) for rank in order], late), strict=True
        )
    }
    assert lags == {1: pytest.approx(0.03, abs=1e-3), 2: pytest.approx(0.05, abs=1e-3)}


def test_a_late_transfer_is_one_ranks_once(both: FeatureSet) -> None:
    transfer = both.work.transfer.copy()
    transfer[2] += 0.03
    late = replace(both, work=replace(both.work, transfer=transfer))
    alone, job = excesses_of([rank_suspected(2), SLOW_JOB], late)
    np.testing.assert_allclose(alone.lag, 0.03, atol=1e-3)
    assert not job.lag.any()


def test_the_job_as_a_suspect_does_not_explain_lock_step_waiting(make_window) -> None:
    shape = {"data": 4, "tensor": 2}
    features = extract(make_window(8, 60, late={4: 0.05, 5: 0.05}, parallelism=shape, noise=1e-5))
    alone = lock_step_waits([rank_suspected(4)], features)
    np.testing.assert_allclose(alone[5], 0.05, atol=1e-3)
    np.testing.assert_array_equal(lock_step_waits([rank_suspected(4), SLOW_JOB], features), alone)
