"""Scenarios that select nothing are refused; they do not report "no effect"."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from synthetic_jobs import execute, make_job
from test_phase_analysis import window_of

from rca.errors import InvalidInput
from rca.whatif import scenarios_of
from rca.whatif.analysis import replay_of
from rca.whatif.graph.trace_replay import TraceReplay
from rca.window.window import Window
from tests.for_each import for_each

JOB = make_job(pp=2, dp=3, microbatches=4)


@pytest.fixture(scope="module")
def replay() -> TraceReplay:
    return replay_of(execute(JOB, 4).table, JOB.meta)


@pytest.fixture(scope="module")
def window() -> Window:
    return window_of(np.ones((8, 6)) + np.arange(8)[:, None] * 0.01, data=4, pipeline=2)


def one(to: str = "ideal", **select: Any) -> dict[str, Any]:
    return {"name": "mine", "changes": [{"select": select, "to": to}]}


NOTHING = [
    (one(steps=[50, 60]), "selects no operation"),
    (one(steps=[3, 1]), "back to 1"),
    (one(stages=[9]), "stage 9, which the job does not have"),
    (one(ranks=[0, 99]), "rank 99"),
    (one(data_ranks=[7]), "data rank 7"),
    (one(ranks=[]), "selects no operation"),
]


@for_each(
    ("description", "text"),
    [
        *NOTHING,
        (one(types=["separate-grads-all-reduce"]), "selects no operation"),
        (one(stages=[0], ranks=[4]), "selects no operation"),
        (one(types=["gc", "data_loading_seconds"]), "data_loading_seconds: phases of coarse jobs"),
        (one(nodes=["n0"]), "has no nodes of its ranks"),
        ({"changes": [{"to": "scale", "value": 1e300}]}, "1e\\+09"),
        ({"changes": [{"to": "scale", "value": 1e9}] * 6}, "overflow"),
    ],
)
def test_a_change_that_finds_no_operation_is_refused(
    replay: TraceReplay, description: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidInput, match=text):
        scenarios_of(replay, [description])


@for_each(
    ("description", "text"),
    [
        *NOTHING,
        (one(nodes=["n0", "nowhere"]), "node nowhere"),
        (one(types=["checkpoint_seconds"]), "selects no operation"),
        (one(types=["params-all-gather"]), "not measured separately"),
        ({"changes": [{"to": "scale", "value": 1e9}] * 40}, "overflow"),
    ],
)
def test_a_change_that_finds_no_phase_is_refused(
    window: Window, description: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidInput, match=text):
        scenarios_of(window, [description])


def test_the_error_names_the_scenario_the_change_and_the_available_values(replay: TraceReplay) -> None:
    described = {"name": "mine", "changes": [{"to": "ideal"}, {"select": {"stages": [5]}, "to": "ideal"}]}
    with pytest.raises(InvalidInput, match="'mine': change 2 names stage 5") as refused:
        scenarios_of(replay, [{}, described])
    assert refused.value.hint == "it has 0, 1"


def test_work_moves_to_another_stage_from_the_selected_ranks_only(replay: TraceReplay) -> None:
    def moved(**select: Any) -> dict[str, Any]:
        change = {"select": {"stages": [1], **select}, "to": "move_to_stage", "stage": 0, "value": 0.5}
        return {"changes": [change]}

    everywhere, of_one, split = scenarios_of(
        replay,
        [
            moved(),
            moved(ranks=[4]),
            {"changes": [moved(ranks=[rank])["changes"][0] for rank in (3, 4, 5)]},
        ],
    )
    np.testing.assert_allclose(split, everywhere, rtol=1e-6)
    assert not np.allclose(of_one, everywhere)
    with pytest.raises(InvalidInput, match="selects no operation"):
        scenarios_of(replay, [moved(ranks=[0])])
    with pytest.raises(InvalidInput, match="another stage"):
        scenarios_of(replay, [{"changes": [moved()["changes"][0] | {"stage": 1}]}])


def test_no_scenario_gives_no_answers(replay: TraceReplay, window: Window) -> None:
    assert scenarios_of(replay, []).shape == (0, 4)
    assert scenarios_of(window, []).shape == (0, 6)
