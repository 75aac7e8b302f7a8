"""The forward replay runs the what-if's own graph: the same ends, and the closed forms of known schedules."""

from __future__ import annotations

import numpy as np
import pytest

from rca.lab.simulation.forward_replay import Durations, Feed, n_rows, op_starts, run_forward, work_of
from rca.lab.simulation.schedule import SimulatedStepShape, StepPlan, compute_order, plan_of
from rca.whatif.graph.replay import end_times
from rca.whatif.optypes import ALL_GATHER, BACKWARD, CLIP, FORWARD, REDUCE_SCATTER
from rca.window.job import Parallelism
from tests.for_each import for_each

SHAPES = {
    "data parallel": SimulatedStepShape(),
    "sharded optimizer": SimulatedStepShape(gathered=True),
    "1F1B": SimulatedStepShape(4, 1, 8),
    "1F1B, fewer microbatches than stages": SimulatedStepShape(4, 1, 2),
    "1F1B without data ranks": SimulatedStepShape(4, 1, 8, exchanged=False),
    "interleaved": SimulatedStepShape(4, 2, 8, gathered=True),
    "three chunks": SimulatedStepShape(2, 3, 6),
}
FORWARD_SECONDS, BACKWARD_SECONDS = 1.0, 2.0


def _random_durations(plan: StepPlan, n_data: int, n_steps: int, rng: np.random.Generator) -> Durations:
    stages, microbatches = plan.shape.pipeline, plan.shape.microbatches
    seconds = rng.random((n_steps, n_rows(plan.shape), n_data))
    seconds[:, -1] = 0.0
    parts = rng.random((n_steps, 2 * microbatches + 1, n_data))
    parts[:, microbatches] = 1.0
    lump = rng.random((n_steps, 2 * stages, n_data))
    return Durations(seconds, parts, lump, rng.integers(0, microbatches, (n_steps, n_data)))


def _even(shape: SimulatedStepShape, n_data: int = 2) -> float:
    """A step in which every microbatch of every stage takes one second forward and two back."""
    plan, stages, microbatches = plan_of(shape), shape.pipeline, shape.microbatches
    seconds = np.zeros((1, n_rows(shape), n_data))
    seconds[:, :stages] = FORWARD_SECONDS * microbatches
    seconds[:, stages : 2 * stages] = BACKWARD_SECONDS * microbatches
    parts = np.ones((1, 2 * microbatches + 1, n_data))
    parts[:, :microbatches] = 1 / microbatches
    nothing = np.zeros((stages * n_data, 1))
    durations = Durations(seconds, parts, np.zeros((1, 2 * stages, n_data)), np.zeros((1, n_data), np.int64))
    return float(run_forward(plan, durations, Feed(nothing, nothing, nothing, nothing, 1, 0)).exchanged.max())


@for_each("shape", SHAPES.values(), ids=SHAPES)
def test_starts_and_ends_are_those_of_the_what_if_replay(shape):
    rng, plan = np.random.default_rng(3), plan_of(shape)
    durations = _random_durations(plan, n_data=3, n_steps=2, rng=rng)
    feed = Feed(*rng.random((4, shape.pipeline * 3 * 2, 2)), workers=1, depth=2, link=3, sharing=0.5)
    replay = run_forward(plan, durations, feed, keep_ends=True)
    delays = np.zeros((plan.optype.size, 3, 2))
    for op, before in plan.graph.predecessors.items():
        if not before:
            delays[op] = replay.ready[plan.stage[op]]
    start, end = end_times(plan.graph, work_of(plan, durations), delays)
    np.testing.assert_allclose(replay.ends, end, rtol=1e-12)
    np.testing.assert_allclose(op_starts(plan, replay), start, rtol=1e-12)


@for_each(("stages", "microbatches"), [(1, 1), (2, 2), (2, 8), (4, 8), (4, 3), (8, 32)])
def test_equal_stages_take_as_many_turns_as_microbatches_and_stages_but_one(stages, microbatches):
    turns = microbatches + stages - 1 if stages > 1 else 1
    each = FORWARD_SECONDS + BACKWARD_SECONDS
    assert _even(SimulatedStepShape(stages, 1, microbatches)) == pytest.approx(each * turns)


@pytest.mark.parametrize(("stages", "chunks", "microbatches"), [(4, 2, 8), (4, 4, 16), (2, 2, 4)])
def test_chunks_divide_the_bubble(stages, chunks, microbatches):
    each = FORWARD_SECONDS + BACKWARD_SECONDS
    interleaved = _even(SimulatedStepShape(stages, chunks, microbatches))
    assert interleaved == pytest.approx(each * (microbatches + (stages - 1) / chunks))
    assert interleaved < _even(SimulatedStepShape(stages, 1, microbatches))


def test_every_stage_computes_every_microbatch_of_every_chunk_once_each_way():
    shape = SimulatedStepShape(4, 2, 8)
    for stage in range(4):
        order = compute_order(shape, stage)
        for optype in (FORWARD, BACKWARD):
            seen = sorted((chunk, microbatch) for kind, chunk, microbatch in order if kind == optype)
            assert seen == [(chunk, microbatch) for chunk in range(2) for microbatch in range(8)]


def test_later_stages_begin_their_first_backward_after_fewer_forwards():
    ahead = [
        [op[0] for op in compute_order(SimulatedStepShape(4, 1, 8), stage)].index(BACKWARD)
        for stage in range(4)
    ]
    assert ahead == [4, 3, 2, 1]


def test_a_data_parallel_step_is_a_handful_of_operations():
    plan = plan_of(SimulatedStepShape.of(Parallelism(data=64), 32, gathered=False))
    assert plan.optype.size == 4
    assert CLIP not in plan.optype
    pipelined = plan_of(SimulatedStepShape.of(Parallelism(data=2, pipeline=2), 4, gathered=True))
    assert {CLIP, ALL_GATHER, REDUCE_SCATTER} <= set(pipelined.optype.tolist())


def test_a_rank_begins_its_next_step_when_it_ended_the_one_before():
    rng, plan = np.random.default_rng(0), plan_of(SimulatedStepShape())
    durations = _random_durations(plan, n_data=4, n_steps=6, rng=rng)
    feed = Feed(*rng.random((4, 4, 6)), workers=1, depth=0)
    replay = run_forward(plan, durations, feed)
    np.testing.assert_allclose(replay.start[:, 1:], replay.exchanged + feed.after)
    np.testing.assert_allclose(replay.fetched, replay.start[:, :-1] + feed.service)
