"""A row is one of an earlier attempt if two of number, arrival and clock say so."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from rca.errors import InvalidWindow
from rca.window.rows.attempts import (
    UNKNOWN,
    _goes_on,
    earlier_attempts,
    latest_attempt,
    rank_of_two_trainers,
)
from rca.window.window import Window
from tests.for_each import for_each


def table(rows: Sequence[tuple[int, int, float, int | None]]) -> pa.Table:
    """Rows of rank, step, start_time and attempt, in the order of arrival."""
    rank, step, start_time, attempt = (list(column) for column in zip(*rows, strict=True))
    return pa.table(
        {
            "rank": pa.array(rank, pa.int32()),
            "step": pa.array(step, pa.int64()),
            "start_time": pa.array(start_time, pa.float64()),
            "step_seconds": pa.array([1.0] * len(rank)),
            "attempt": pa.array(attempt, pa.int64()),
        }
    )


def kept(rows: Sequence[tuple[int, int, float, int | None]]) -> list[tuple[int, float]]:
    found, _ = latest_attempt(table(rows))
    return sorted(zip(found["step"].to_pylist(), found["start_time"].to_pylist(), strict=True))


def run(
    first: int, end: int, begin: float, attempt: int | None = None
) -> list[tuple[int, int, float, int | None]]:
    return [(0, step, begin + step - first, attempt) for step in range(first, end)]


def of(*runs: list[tuple[int, int, float, int | None]]) -> list[tuple[int, int, float, int | None]]:
    return [row for each in runs for row in each]


OLD, NEW = run(0, 8, 100.0), run(4, 7, 200.0)


def test_arrival_and_clock_tell_attempts_apart() -> None:
    assert kept(of(OLD, NEW)) == sorted((step, begin) for _, step, begin, _ in of(OLD[:4], NEW))


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (of(run(4, 8, 104.0), run(0, 4, 100.0)), "a late fragment"),
        (of(run(0, 8, 100.0), run(8, 12, -3500.0)), "a clock that is set back"),
        (of(run(0, 4, 100.0), run(4, 8, 900.0)), "a clock that is set forward, or a pause"),
    ],
)
def test_one_sign_alone_leaves_no_row_out(rows: list[tuple[int, int, float, int | None]], why: str) -> None:
    assert len(kept(rows)) == len(rows), why


def test_numbers_tell_attempts_apart_in_any_order_of_arrival() -> None:
    old, new = run(0, 8, 100.0, 0), run(4, 7, 200.0, 1)
    expected = sorted((step, begin) for _, step, begin, _ in of(old[:4], new))
    assert kept(of(old, new)) == kept(of(new, old)) == kept(of(new, old)[::-1]) == expected


def test_numbers_tell_attempts_apart_although_the_clock_was_set_back() -> None:
    old, new = run(0, 8, 100.0, 0), run(4, 7, -3000.0, 1)
    assert kept(of(old, new)) == sorted((step, begin) for _, step, begin, _ in of(old[:4], new))


def test_a_restart_without_a_new_number_is_told_by_arrival_and_clock() -> None:
    # torchrun counts no restart in which only the members change.
    old, new = run(0, 8, 100.0, 3), run(4, 7, 200.0, 3)
    assert kept(of(old, new)) == sorted((step, begin) for _, step, begin, _ in of(old[:4], new))


def test_a_number_that_arrival_and_clock_contradict_does_not_count() -> None:
    # The rank moved to a node whose agent has counted fewer restarts.
    old, new = run(0, 8, 100.0, 2), run(8, 12, 200.0, 1)
    assert len(kept(of(old, new))) == 12


def test_of_rows_with_one_rank_and_step_the_last_counts() -> None:
    assert kept([(0, 5, 100.0, None), (0, 5, 90.0, None)]) == [(5, 90.0)]


def test_the_signs_agree_with_a_search_of_all_pairs() -> None:
    draw = np.random.default_rng(0)
    for _ in range(60):
        n = int(draw.integers(1, 40))
        rank, step = draw.integers(0, 3, n), draw.integers(0, 8, n)
        begin = draw.integers(0, 12, n).astype(float)
        begin[draw.random(n) < 0.1] = np.nan
        # A later begin that no next step follows is another test's.
        counted = _goes_on(rank, np.arange(n), begin, step)
        attempt = draw.integers(UNKNOWN, 3, n)
        place = np.arange(n)
        numbered = (attempt[:, None] != UNKNOWN) & (attempt[None, :] != UNKNOWN)
        arrived, began = place[None, :] > place[:, None], begin[None, :] > begin[:, None]
        higher = numbered & (attempt[None, :] > attempt[:, None])
        later = (arrived & began & counted[None, :]) | (higher & (arrived | began))
        same = (rank[None, :] == rank[:, None]) & (step[None, :] <= step[:, None])
        assert np.array_equal(earlier_attempts(rank, step, begin, attempt), (same & later).any(axis=1))


@pytest.mark.parametrize("ahead", [300.0, 590.0])
def test_a_lone_row_of_a_clock_set_forward_leaves_no_row_out(ahead: float) -> None:
    rows = of(run(0, 200, 100.0), [(0, 0, 300.0 + ahead, None)], run(200, 400, 301.0))
    assert {step for step, _ in kept(rows)} == set(range(400))


@pytest.mark.parametrize("unit", [1, 10**6, 10**18])
def test_numbers_may_be_times_in_nanoseconds(unit: int) -> None:
    old, new = run(0, 100, 100.0, unit), run(50, 150, 1000.0, 2 * unit)
    rows = [(rank, *row[1:]) for rank in range(64) for row in of(old, new)]
    found, _ = latest_attempt(table(rows))
    assert found.num_rows == 64 * 150


def test_a_window_has_the_rows_of_its_latest_attempt(make_window) -> None:
    window: Window = make_window(2, 30)
    steps = window.steps
    again = steps.filter(pa.array(steps["step"].to_numpy() >= 10))
    place = again.column_names.index("start_time")
    later = again.set_column(place, "start_time", pa.array(again["start_time"].to_numpy() + 60.0))
    both = pa.concat_tables(
        [
            part.append_column("attempt", pa.array(np.full(part.num_rows, number)))
            for number, part in enumerate((steps, later))
        ]
    )
    job = window.job.model_copy(update={"end": window.job.end + 60.0})
    found = Window.from_tables(job, both.take(np.random.default_rng(0).permutation(both.num_rows)))
    assert found.steps.num_rows == steps.num_rows
    assert set(found.steps["attempt"].to_pylist()) == {0, 1}
    assert any("the job went back to an earlier step" in note for note in found.notes)
    for again_read in (Window.from_json(found.to_json()), Window.from_arrow(found.to_arrow())):
        assert again_read.steps == found.steps


def test_one_attempt_has_each_step_once(make_window) -> None:
    window: Window = make_window(2, 30)
    twice = pa.concat_tables([window.steps, window.steps])
    numbered = twice.append_column("attempt", pa.array(np.full(twice.num_rows, 1)))
    with pytest.raises(InvalidWindow, match="is repeated"):
        Window.from_tables(window.job, numbered)


def trainer(n_steps: int, step: float, start: float, first: int = 0) -> pa.Table:
    """Steps of two ranks, in the order of their ends."""
    number = np.repeat(np.arange(n_steps), 2)
    return pa.table(
        {
            "rank": np.tile([0, 1], n_steps),
            "step": first + number,
            "start_time": start + step * number,
            "step_seconds": np.full(number.size, step),
        }
    )


def in_turns(*runs: pa.Table, rows: int = 12) -> pa.Table:
    """Rows of several runs as they arrive: those of one fragment of each, then of the next."""
    pieces = [run.slice(at, rows) for at in range(0, runs[0].num_rows, rows) for run in runs]
    return pa.concat_tables(pieces)


@for_each(
    ("steps", "rank"),
    [
        (in_turns(trainer(60, 0.1, 1e9), trainer(60, 0.1, 1e9 + 0.03)), 0),
        (in_turns(trainer(200, 0.03, 1e9, 500), trainer(200, 0.06, 1e9)), 0),
        (trainer(300, 0.1, 1e9), None),
        # Restarts from a checkpoint, of which one follows a clock that was set back.
        (pa.concat_tables([trainer(100, 0.1, 1e9 + 11.0 * n, 20 * n) for n in range(6)]), None),
        (pa.concat_tables([trainer(100, 0.1, 1e9), trainer(100, 0.1, 1e9 + 2.0, 40)]), None),
        # Steps of a look-ahead loop begin a little before the last one ends.
        (trainer(100, 0.1, 1e9).set_column(3, "step_seconds", pa.array(np.full(200, 0.14))), None),
    ],
)
def test_two_trainers_are_told_from_restarts(steps: pa.Table, rank: int | None) -> None:
    assert rank_of_two_trainers(steps, np.zeros(steps.num_rows, dtype=bool)) == rank
