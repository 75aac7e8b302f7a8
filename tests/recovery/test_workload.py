"""Stage balance, sequence packing and planned collection: optimal where small, verified by replay."""

from __future__ import annotations

import gc
import os
from itertools import combinations, pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rca.errors import InvalidInput
from rca.runtime.workload.collection import PlannedCollection, planned_pauses
from rca.runtime.workload.sequences import fit_square, pack, sequence_costs
from rca.runtime.workload.stages import StageBalance, as_scenario, balance_stages, layer_costs
from rca.whatif.optypes import NAMES
from tests.for_each import for_each

TRACES = Path(os.environ.get("RCA_WHAT_IF_TRACES", "../shared/traces/what-if"))
TIMES = st.lists(st.floats(0.0, 10.0), min_size=4, max_size=9)


@settings(max_examples=60, deadline=None)
@given(times=TIMES, extra=st.lists(st.floats(0.0, 10.0), min_size=3, max_size=3))
def test_no_other_split_has_a_faster_slowest_stage(times: list[float], extra: list[float]) -> None:
    found = balance_stages(times, 3, extra=extra)
    assert sum(found.layers) == len(times)
    splits = [(0, *cuts, len(times)) for cuts in combinations(range(1, len(times)), 2)]
    best = min(
        max(sum(times[a:b]) + extra[stage] for stage, (a, b) in enumerate(pairwise(cut))) for cut in splits
    )
    assert found.slowest == pytest.approx(best)


def test_the_loss_on_the_last_stage_takes_the_place_of_layers() -> None:
    found = balance_stages([1.0] * 32, 4, extra=[0, 0, 0, 4.0])
    assert found.layers == (9, 9, 9, 5)
    assert found.seconds == (9.0, 9.0, 9.0, 9.0)


def test_costs_of_layers_follow_from_measured_stages() -> None:
    assert layer_costs([8.0, 8.0, 8.0, 12.0], [8] * 4) == (1.0, [0.0, 0.0, 0.0, 4.0])


@for_each(
    ("times", "stages", "more"),
    [
        ([1.0], 2, {}),
        ([1.0, -1.0], 2, {}),
        ([1.0, float("nan")], 1, {}),
        ([1.0, 1.0], 2, {"extra": [1.0]}),
        ([1.0], 0, {}),
    ],
)
def test_impossible_stages_are_refused(times, stages, more) -> None:
    with pytest.raises(InvalidInput):
        balance_stages(times, stages, **more)


@pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not here (RCA_WHAT_IF_TRACES)")
def test_a_replay_of_the_balanced_trace_takes_away_the_loss() -> None:
    """The trace ST: its last stage is 1.36 times as slow. 32 layers in stages of 8 are assumed."""
    from rca.whatif.analysis import analysed_scenarios, replay_of

    replay = replay_of(TRACES / "trace-ST.parquet", TRACES / "meta-ST.yaml")
    compute = stage_compute(replay)
    equal = [8] * 4
    per_layer, extra = layer_costs(compute, equal)
    before = StageBalance(tuple(equal), tuple(compute))
    after = balance_stages([per_layer] * 32, 4, extra=extra)
    assert after.layers[3] < 8
    scenario = as_scenario(before, after, per_layer)
    trace, meta = TRACES / "trace-ST.parquet", TRACES / "meta-ST.yaml"
    result, (changed,) = analysed_scenarios(trace, [scenario], meta, replay=replay)
    now, ideal = float(result.no_delay.mean()), float(result.ideal.mean())
    gained = now - float(np.mean(changed))
    # Whole layers leave a part; the slowdown of ST is 1.1787, nearly all of it from the stage.
    assert 0.6 * (now - ideal) < gained < 1.1 * (now - ideal)


def stage_compute(replay) -> list[float]:
    """Mean forward and backward time of each stage, seconds per step."""
    found = np.zeros(4)
    (part,) = replay.parts
    for code, name in enumerate(NAMES):
        if name in ("forward-compute", "backward-compute"):
            for stage in range(4):
                ops = (part.shape.optype == code) & (part.shape.stage == stage)
                found[stage] += part.times.work[ops].mean(axis=(1, 2)).sum()
    return [float(each) for each in found]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=3, max_size=7))
def test_packing_is_near_the_best_of_all_distributions(lengths: list[int]) -> None:
    found = pack(lengths, 2, square=0.1)
    cost = sequence_costs(lengths, 0.1)
    best = min(
        max(sum(cost[i] for i, rank in enumerate(place) if rank == each) for each in (0, 1))
        for place in product((0, 1), repeat=len(lengths))
    )
    assert sorted(each for rank in found.ranks for each in rank) == list(range(len(lengths)))
    assert best - 1e-9 <= found.cost.max() <= 7 / 6 * best + 1e-9


def test_packing_evens_out_what_arrival_order_does_not() -> None:
    lengths = (np.random.default_rng(0).pareto(1.5, 512) * 200 + 50).astype(int).clip(max=2048)
    in_order = sequence_costs(lengths, 1e-3).reshape(16, -1).sum(axis=1)
    assert in_order.max() / in_order.mean() > 1.3
    assert pack(lengths, 16, square=1e-3).slowdown < 1.001


def test_ranks_keep_within_their_memory() -> None:
    found = pack([5, 5, 5, 5, 1], 3, square=0.0, most_tokens=10)
    assert all(sum([5, 5, 5, 5, 1][each] for each in rank) <= 10 for rank in found.ranks)
    with pytest.raises(InvalidInput, match="fits on no rank"):
        pack([11], 3, square=0.0, most_tokens=10)


def test_the_square_is_found_in_measured_times() -> None:
    rng = np.random.default_rng(1)
    tokens, squares = rng.uniform(1e3, 1e4, 50), rng.uniform(1e6, 1e8, 50)
    assert fit_square(0.01 + 1e-6 * tokens + 2e-10 * squares, tokens, squares) == pytest.approx(2e-4)
    assert fit_square(0.01 + 1e-6 * tokens, tokens, squares) == pytest.approx(0.0, abs=1e-9)
    with pytest.raises(InvalidInput, match="do not vary"):
        fit_square(0.01 + 1e-6 * tokens, tokens, np.full(50, 1e6))


def test_planned_pauses_overlap() -> None:
    """Eight ranks that collect every eighth step, each at a step of its own."""
    pauses = np.zeros((8, 64))
    for rank in range(8):
        pauses[rank, rank::8] = 0.1
    assert pauses.max(axis=0).mean() == pytest.approx(0.1)
    planned = planned_pauses(pauses, 8)
    assert planned.sum() == pytest.approx(pauses.sum())
    assert planned.max(axis=0).mean() == pytest.approx(0.1 / 8)


def test_garbage_is_collected_at_planned_steps_only() -> None:
    collections: list[str] = []

    def seen(phase: str, _info: object) -> None:
        collections.append(phase)

    assert gc.isenabled()
    with PlannedCollection(every=3) as planned:
        assert not gc.isenabled()
        gc.callbacks.append(seen)
        try:
            assert [planned.step() for _ in range(6)] == [False, False, True] * 2
        finally:
            gc.callbacks.remove(seen)
    assert collections.count("start") == 2
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
