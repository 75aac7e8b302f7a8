"""Graphs and replays of traces with known schedules equal the brute-force execution."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from launch_delays import launch_delays
from synthetic_jobs import Key, SyntheticJob, Times, execute, make_job, step_seconds

from rca.whatif.analysis import replay_of, what_if
from rca.whatif.graph.replay import Engine, end_times
from rca.whatif.optypes import OP_TYPES
from rca.whatif.result import WhatIf
from tests.for_each import for_each

pytestmark = pytest.mark.slow

ENGINES: tuple[Engine, ...] = ("numpy", "numba")
JOBS = {
    "1f1b": make_job(pp=3, dp=2, microbatches=4),
    "few microbatches": make_job(pp=4, dp=2, microbatches=2),
    "two stages": make_job(pp=2, dp=3, microbatches=4),
    "no pipeline": make_job(pp=1, dp=4, microbatches=3),
    "no data parallelism": make_job(pp=3, dp=1, microbatches=4),
    "one rank": make_job(pp=1, dp=1, microbatches=4),
    "interleaved": make_job(pp=2, dp=2, vpp=2, microbatches=4),
    "interleaved deep": make_job(pp=3, dp=2, vpp=3, microbatches=6),
    "interleaved without data parallelism": make_job(pp=2, dp=1, vpp=2, microbatches=4),
    "overlapped": make_job(pp=2, dp=2, microbatches=4, overlap=True),
    "overlapped interleaved": make_job(pp=2, dp=2, vpp=2, microbatches=4, overlap=True),
    "context parallel, one data rank": make_job(pp=2, dp=1, microbatches=4, dsp=2),
    "context and data parallel": make_job(pp=2, dp=2, microbatches=4, dsp=2),
}


@pytest.fixture(params=JOBS, scope="module")
def job(request: pytest.FixtureRequest) -> SyntheticJob:
    return JOBS[request.param]


def test_the_graph_is_the_schedule_that_ran(job: SyntheticJob) -> None:
    replay = replay_of(execute(job).table, job.meta)
    assert replay.notes == ()
    (part,) = replay.parts
    operations = part.graph.operations
    assert {(operations[a].name, operations[b].name) for a, b in part.graph.edges} == job.edges()


def test_groups_are_those_that_ended_together(job: SyntheticJob) -> None:
    graph = replay_of(execute(job).table, job.meta).parts[0].graph
    found = {
        (frozenset(graph.operations[op].name for op in group.members), group.across_data)
        for group in graph.groups
    }
    real = {(frozenset(f"{k[0]}_{k[1]}_{k[2]}" for k in members), across) for members, across in job.groups}
    assert found == real


def test_own_delays_reproduce_the_trace(job: SyntheticJob) -> None:
    for part in replay_of(execute(job).table, job.meta).parts:
        start, end = end_times(part.graph, part.times.work, launch_delays(part.shape, part.graph))
        active = sorted(part.graph.active)
        np.testing.assert_allclose(start[active], part.shape.start[active], atol=2e-5)
        observed = part.shape.start[active] + part.shape.duration[active]
        np.testing.assert_allclose(end[active], observed, atol=2e-5)


def ideal_times(job: SyntheticJob, times: list[list[Times]]) -> dict[str, float]:
    ideal = {}
    for optype in OP_TYPES:
        pooled = [v for step in times for one in step for key, v in one.items() if key[0] == optype.name]
        if pooled:
            ideal[optype.name] = float(np.mean(pooled) if optype.statistic == "mean" else np.median(pooled))
    return ideal


@pytest.mark.system
def test_results_of_both_engines_equal_brute_force(job: SyntheticJob) -> None:
    ran = execute(job, slow=lambda key, d, step: 1.5 if key[2] == 0 and d == job.dp - 1 else 1.0)
    answers = [what_if(replay_of(ran.table, job.meta, engine=engine)) for engine in ENGINES]
    ideal = ideal_times(job, ran.times)

    def check(seconds: Callable[[WhatIf], np.ndarray], keeps: Callable[[Key, int], bool]) -> None:
        """Operations that `keeps` selects take their own time, all others the ideal one."""
        expected = [
            step_seconds(
                job,
                [
                    {key: v if keeps(key, d) else ideal[key[0]] for key, v in one.items()}
                    for d, one in enumerate(step)
                ],
            )
            for step in ran.times
        ]
        for found in answers:
            np.testing.assert_allclose(seconds(found), expected, rtol=2e-4)

    check(lambda found: found.no_delay, lambda key, d: True)
    check(lambda found: found.ideal, lambda key, d: False)
    first, second = answers
    for name in ("by_stage", "by_data_rank", "by_type"):
        assert list(getattr(first, name).labels) == list(getattr(second, name).labels)
    for index, stage in enumerate(first.by_stage.labels):
        check(lambda found, i=index: found.by_stage.seconds[i], lambda key, d, s=stage: key[2] == s)
    for index, rank in enumerate(first.by_data_rank.labels):
        check(lambda found, i=index: found.by_data_rank.seconds[i], lambda key, d, r=rank: d == r)
    merged = {op.name: op.merged for op in OP_TYPES}
    for index, kind in enumerate(first.by_type.labels):
        check(lambda found, i=index: found.by_type.seconds[i], lambda key, d, k=kind: merged[key[0]] == k)
    workers = list(zip(first.workers.stage.tolist(), first.workers.data_rank.tolist(), strict=True))
    assert workers == list(zip(second.workers.stage.tolist(), second.workers.data_rank.tolist(), strict=True))
    for index, worker in enumerate(workers):
        check(lambda found, i=index: found.workers.seconds[i], lambda key, d, w=worker: (key[2], d) == w)


@for_each("name", [name for name in JOBS if JOBS[name].pp * JOBS[name].dp > 1])
def test_the_slow_worker_is_found(name: str) -> None:
    job = JOBS[name]

    def slow(key: Key, d: int, step: int) -> float:
        return 2.0 if key[2] == job.pp - 1 and d == 0 and key[0].endswith("compute") else 1.0

    found = what_if(execute(job, 6, slow=slow).table, job.meta)
    worst = int(np.argmax(found.workers.slowdown(found.ideal)))
    assert (found.workers.data_rank[worst], found.workers.stage[worst]) == (0, job.pp - 1)
    assert found.slowdown > 1.05
