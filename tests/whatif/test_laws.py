"""Laws that every replay obeys, on random jobs."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launch_delays import launch_delays
from synthetic_jobs import execute, make_job, table_of

from rca.whatif.analysis import replay_of, scenarios_of, what_if
from rca.whatif.decompose import decompose
from rca.whatif.graph.replay import end_times
from rca.whatif.graph.trace_replay import ShapeReplay, TraceReplay
from rca.whatif.scenario import Change, Scenario, Selection

jobs = st.builds(
    make_job,
    pp=st.integers(1, 3),
    dp=st.integers(1, 3),
    microbatches=st.integers(1, 4),
    overlap=st.booleans(),
)
interleaved = st.builds(
    make_job, pp=st.just(2), dp=st.integers(1, 2), vpp=st.just(2), microbatches=st.sampled_from([2, 4])
)
seeds = st.integers(0, 10_000)


@settings(max_examples=20)
@given(st.one_of(jobs, interleaved), seeds)
def test_own_delays_reproduce_the_trace(job: Any, seed: int) -> None:
    for part in replay_of(execute(job, 2, seed).table, job.meta).parts:
        _, end = end_times(part.graph, part.times.work, launch_delays(part.shape, part.graph))
        active = sorted(part.graph.active)
        np.testing.assert_allclose(end[active], (part.shape.start + part.shape.duration)[active], atol=3e-5)


@settings(max_examples=20)
@given(jobs, seeds)
def test_an_ideal_below_all_times_gives_a_slowdown_of_at_least_one(job: Any, seed: int) -> None:
    replay = replay_of(execute(job, 2, seed).table, job.meta)
    lowest = [dataclasses.replace(part, ideal=_lowest(part)) for part in replay.parts]
    found = decompose(dataclasses.replace(replay, parts=tuple(lowest)))
    assert (found.no_delay >= found.ideal - 1e-9).all()
    for parts in (found.by_type, found.by_stage, found.by_data_rank):
        assert (parts.seconds >= found.ideal - 1e-9).all()
        assert (parts.seconds <= found.no_delay + 1e-9).all()
    assert (found.by_worker <= found.no_delay + 1e-9).all()


def _lowest(part: ShapeReplay) -> Any:
    work = part.times.work
    return np.array([work[part.shape.optype == code].min() for code in part.shape.optype], dtype=np.float64)


@settings(max_examples=20)
@given(st.one_of(jobs, interleaved), seeds, st.data())
def test_shortening_an_operation_never_lengthens_a_step(job: Any, seed: int, data: st.DataObject) -> None:
    replay = replay_of(execute(job, 2, seed).table, job.meta)
    (part,) = replay.parts
    op = data.draw(st.integers(0, part.shape.n_ops - 1))
    data_rank = data.draw(st.integers(0, replay.n_data - 1))

    def shorter(_part: ShapeReplay, _block: slice, work: Any) -> None:
        work[op, data_rank] *= 0.5

    before = replay.with_work(lambda _part, _block, _work: None)
    assert (replay.with_work(shorter) <= before + 1e-12).all()


@settings(max_examples=10)
@given(seeds, st.permutations(range(3)))
def test_relabelling_data_ranks_permutes_the_results(seed: int, order: list[int]) -> None:
    job = make_job(pp=2, dp=3, microbatches=3)
    ran = execute(job, 2, seed)
    found = what_if(ran.table, job.meta)
    renamed = [row | {"dp_rank": order[int(row["dp_rank"])]} for row in ran.rows]  # type: ignore[call-overload]
    again = what_if(table_of(renamed), job.meta)
    np.testing.assert_allclose(again.no_delay, found.no_delay, rtol=1e-6)
    np.testing.assert_allclose(again.by_data_rank.seconds[order], found.by_data_rank.seconds, rtol=1e-6)


SCENARIOS = [
    Scenario(name="as is"),
    Scenario(
        changes=(Change(select=Selection(ranks=(1,), types=("forward-compute",), steps=(0, 1)), to="peers"),)
    ),
    Scenario(changes=(Change(select=Selection(kind="communication"), to="scale", value=0.8),)),
    Scenario(changes=(Change(select=Selection(stages=(0,)), to="move_to_stage", value=0.3, stage=1),)),
    Scenario(base="ideal", changes=(Change(select=Selection(data_ranks=(0,)), to="measured"),)),
    Scenario(changes=(Change(to="less", value=0.001), Change(to="ideal"))),
]


@pytest.mark.system
@settings(max_examples=10)
@given(seeds, st.sampled_from(["numpy", "numba"]))
def test_scenario_batches_equal_one_by_one(seed: int, engine: Any) -> None:
    job = make_job(pp=2, dp=2, microbatches=3)
    replay = replay_of(execute(job, 3, seed).table, job.meta, engine=engine)
    together = scenarios_of(replay, SCENARIOS)
    alone = [scenarios_of(replay, [one])[0] for one in SCENARIOS]
    np.testing.assert_array_equal(together, alone)


@settings(max_examples=10)
@given(st.one_of(jobs, interleaved), seeds)
def test_two_columns_represent_any_number_of_data_ranks(job: Any, seed: int) -> None:
    replay = replay_of(execute(job, 2, seed).table, job.meta)
    found = decompose(replay)

    def only(data_rank: int, stage: int) -> Any:
        def set_work(part: ShapeReplay, _block: slice, work: Any) -> None:
            kept = work[part.shape.stage == stage, data_rank].copy()
            work[:] = part.ideal[:, None, None]
            work[part.shape.stage == stage, data_rank] = kept

        return replay.with_work(set_work)

    for stage in range(replay.n_stages):
        for data_rank in range(replay.n_data):
            np.testing.assert_allclose(found.by_worker[stage, data_rank], only(data_rank, stage), rtol=1e-6)


@pytest.mark.parametrize("job", [make_job(pp=3, dp=2), make_job(pp=2, dp=3, vpp=2), make_job(pp=1, dp=1)])
def test_kernels_equal_the_numpy_reference(job: Any) -> None:
    found = []
    for engine in ("numpy", "numba"):
        replay: TraceReplay = replay_of(execute(job, 5).table, job.meta, engine=engine)  # type: ignore[arg-type]
        found.append(decompose(replay))
    for name in ("no_delay", "ideal", "by_worker"):
        np.testing.assert_array_equal(getattr(found[0], name), getattr(found[1], name))
    for name in ("by_type", "by_stage", "by_data_rank"):
        np.testing.assert_array_equal(getattr(found[0], name).seconds, getattr(found[1], name).seconds)


def test_large_traces_are_replayed_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(pp=3, dp=2)
    expected = decompose(replay_of(execute(job, 5).table, job.meta, engine="numpy"))
    monkeypatch.setattr("rca.whatif.graph.replay.COMPILED_FROM", 0)
    monkeypatch.setattr("rca.whatif.graph.replay.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "rca.whatif.graph.kernels", raising=False)
    monkeypatch.setattr("rca.whatif.graph.replay._compiled", None)
    found = decompose(replay_of(execute(job, 5).table, job.meta))
    np.testing.assert_array_equal(found.no_delay, expected.no_delay)


def test_long_traces_are_replayed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(pp=2, dp=3)
    replay = replay_of(execute(job, 7).table, job.meta)
    whole = decompose(replay)
    monkeypatch.setattr("rca.whatif.graph.replay.MAX_FOLD", 6)
    for threads in (1, 2):
        split = decompose(dataclasses.replace(replay, threads=threads))
        np.testing.assert_array_equal(split.no_delay, whole.no_delay)
        np.testing.assert_array_equal(split.by_type.seconds, whole.by_type.seconds)
