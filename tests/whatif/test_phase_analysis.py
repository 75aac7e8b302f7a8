"""What-if results of windows with per-step phases only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rca.errors import InvalidInput
from rca.sources.read import read_window
from rca.whatif import PhaseReplay, scenarios_of, what_if
from rca.whatif.report import table
from rca.window.window import Window

REAL = Path(__file__).parents[2] / "data" / "windows"


def window_of(own: np.ndarray, columns: dict[str, np.ndarray] | None = None, **sizes: int) -> Window:
    n_ranks, n_steps = own.shape
    rank, step = (axis.ravel() for axis in np.indices(own.shape))
    wait = own.max(axis=0) - own
    tables = (
        columns
        if columns is not None
        else {
            "data_loading_seconds": 0.1 * own,
            "forward_seconds": 0.4 * own,
            "backward_seconds": 0.5 * own,
            "communication_wait_seconds": wait,
            "communication_transfer_seconds": np.full(own.shape, 0.1),
            "step_seconds": own + wait + 0.1,
        }
    )
    steps = pa.table(
        {"rank": rank, "step": step, "start_time": 1.7e9 + 10.0 * step}
        | {name: values.ravel() for name, values in tables.items()}
    )
    job: dict[str, Any] = {
        "format": 1,
        "job_id": "job",
        "world_size": n_ranks,
        "parallelism": sizes or {"data": n_ranks},
        "ranks": [{"rank": r, "node": f"n{r // 2}"} for r in range(n_ranks)],
        "start": 1.7e9,
        "end": 1.7e9 + 10.0 * n_steps,
    }
    return Window.from_tables(job, steps)


@pytest.fixture
def slow() -> np.ndarray:
    own = np.full((8, 20), 1.0) + 0.01 * np.random.default_rng(0).random((8, 20))
    own[5] *= 1.5
    return own


def test_the_slow_rank_costs_what_it_makes_others_wait(slow: np.ndarray) -> None:
    found = what_if(window_of(slow))
    usual = np.sort(slow.mean(axis=1))[3]
    exact = found.workers.slowdown(found.ideal)
    assert int(exact.argmax()) == 5
    assert np.delete(exact, 5).max() < 1.01
    assert found.slowdown == pytest.approx((slow.max(axis=0).mean() + 0.1) / (usual + 0.1))
    assert found.m_w.exact == pytest.approx(1.0, abs=0.03)
    assert [(finding.pattern, finding.ranks) for finding in found.findings] == [("worker", (5,))]
    assert found.fidelity < 1e-9


def test_phases_that_agree_cost_nothing(slow: np.ndarray) -> None:
    found = what_if(window_of(slow))
    costs = found.by_type.slowdown(found.ideal)
    assert costs["backward"] > costs["forward"] > costs["data_loading"]
    assert costs["communication_transfer"] == pytest.approx(1.0)


def test_the_last_stage_is_found() -> None:
    own = np.full((8, 20), 1.0)
    own[6:] = 1.6
    sizes = {"data": 2, "pipeline": 4}
    found = what_if(window_of(own, **sizes))
    assert found.by_stage.labels[int(found.by_stage.seconds.mean(axis=1).argmax())] == 3
    assert "stage" in {finding.pattern for finding in found.findings}


def test_exact_ranks_equal_one_by_one_replays() -> None:
    rng = np.random.default_rng(2)
    own = 1 + rng.random((8, 5))
    for sizes in ({"data": 8}, {"data": 2, "pipeline": 4}, {"data": 2, "tensor": 2, "pipeline": 2}):
        window = window_of(own, **sizes)
        found = what_if(window)
        select = {"select": {"ranks": [3]}, "to": "measured"}
        named = [{"base": "ideal"}, {"base": "ideal", "changes": [select]}]
        ideal, kept = scenarios_of(window, named)
        np.testing.assert_allclose(ideal, found.ideal)
        assert (kept >= ideal - 1e-12).all()
        if "tensor" not in sizes:
            np.testing.assert_allclose(found.workers.seconds[3], kept)


def test_scenarios_by_node_peers_and_step(slow: np.ndarray) -> None:
    window = window_of(slow)
    changes = [
        [],
        [{"select": {"nodes": ["n2"]}, "to": "peers"}],
        [{"select": {"nodes": ["n1"]}, "to": "peers"}],
        [{"select": {"ranks": [5], "steps": [3, 4]}, "to": "peers"}],
        [{"select": {"kind": "communication"}, "to": "scale", "value": 0.5}],
    ]
    as_is, cured, other, part, faster = scenarios_of(window, [{"changes": one} for one in changes])
    np.testing.assert_allclose(cured, 1.1, atol=0.02)
    np.testing.assert_allclose(other, as_is)
    assert (np.flatnonzero(part < as_is - 0.1) == [3, 4]).all()
    np.testing.assert_allclose(as_is - faster, 0.05)


def test_whole_steps_alone_give_no_finding() -> None:
    own = np.ones((4, 6))
    found = what_if(window_of(own, {"step_seconds": own}))
    assert found.slowdown == 1.0
    assert found.findings == ()
    assert any("no rank or phase can be named" in note for note in found.notes)
    assert json.loads(found.to_json())["m_w"]["exact"] is None


def test_warm_up_is_left_out(slow: np.ndarray) -> None:
    slow[:, 0] = 30.0
    found = what_if(window_of(slow))
    assert 0 not in found.steps
    assert any("warm-up" in note for note in found.notes)


def test_a_window_without_a_finished_step_is_refused() -> None:
    own = np.ones((2, 2))
    with pytest.raises(InvalidInput, match="no step"):
        what_if(window_of(own, {"forward_seconds": own, "step_seconds": np.full(own.shape, np.nan)}))


def test_real_windows_are_replayed_faithfully() -> None:
    windows = sorted(path.parent for path in REAL.glob("*/window.json"))
    assert windows
    for path in windows:
        window = read_window(path)
        found = what_if(window)
        assert found.fidelity < 0.05, path.name
        assert found.source == "phases"


def test_ten_thousand_ranks_give_the_slowest_rank_of_every_step() -> None:
    own = np.random.default_rng(0).random((10_240, 100)) + 1
    replay = PhaseReplay.from_arrays(*_large(own))
    assert np.allclose(replay.replayed - replay.transfer, own.max(axis=0))


def _large(own: np.ndarray) -> tuple[Any, Any]:
    from rca.window.job import Job
    from rca.window.times.phases import PhaseArrays

    wait = own.max(axis=0) - own
    seconds = {"communication_wait_seconds": wait, "step_seconds": own + wait}
    phases = PhaseArrays(
        np.arange(own.shape[1]), np.ones(own.shape, dtype=bool), np.zeros(own.shape), seconds, {}
    )
    sizes = {"data": own.shape[0] // 32, "tensor": 8, "pipeline": 4}
    job = {"job_id": "job", "world_size": own.shape[0], "parallelism": sizes, "start": 0, "end": 1}
    return phases, Job.model_validate(job)


def test_of_two_ranks_the_whole_excess_of_the_slow_one_is_lost() -> None:
    own = np.ones((2, 20))
    own[1] = 3.0
    assert what_if(window_of(own)).slowdown == pytest.approx(3.1 / 1.1)


def test_longer_whole_steps_are_lost_on_all_ranks() -> None:
    seconds = np.ones((4, 40))
    seconds[:, 30:] = 3.0
    found = what_if(window_of(seconds, {"step_seconds": seconds}))
    assert found.slowdown == pytest.approx(1.5)
    assert found.seconds_lost_per_step == pytest.approx(0.5)


def test_ranks_without_steps_are_no_rows_and_one_rank_has_no_table() -> None:
    whole = window_of(np.tile([1.0, 1.2, 1.0, 1.0], (8, 10)))
    few, one = (whole.steps.filter(pc.less(whole.steps.column("rank"), n)) for n in (2, 1))
    found = what_if(Window.from_tables(whole.job, few))
    assert found.workers.rank.tolist() == [0, 1]
    assert "slowest 2 of 2" in table(found)
    alone = what_if(Window.from_tables(whole.job, one))
    assert alone.workers.rank.tolist() == [0]
    assert "data rank" not in table(alone)
