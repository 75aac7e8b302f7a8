"""Impossible times are kept, and put right in the window that is diagnosed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from rca.window.step_times import ahead_of_arrival, steadied, with_arrival

N_RANKS, N_STEPS = 4, 30
BEGIN = 1e9


def steps() -> pa.Table:
    step, rank = (axis.ravel() for axis in np.indices((N_STEPS, N_RANKS)))
    return pa.table(
        {
            "rank": pa.array(rank, pa.int32()),
            "step": pa.array(step),
            "start_time": BEGIN + 2.0 * step + 0.01 * rank,
            "step_seconds": np.full(step.size, 1.9),
        }
    )


def timed(table: pa.Table, begin: np.ndarray) -> pa.Table:
    return table.set_column(table.column_names.index("start_time"), "start_time", pa.array(begin))


def of(rank: int | None, first: int, last: int = N_STEPS) -> np.ndarray:
    table = steps()
    step = table["step"].to_numpy()
    mine = np.ones(step.size, bool) if rank is None else table["rank"].to_numpy() == rank
    return mine & (step >= first) & (step < last)


@pytest.mark.parametrize(
    ("rank", "first", "last", "by"),
    [(2, 10, N_STEPS, -3600.0), (2, 10, N_STEPS, 3600.0), (2, 10, 11, 3600.0), (2, 10, 11, -3600.0)],
    ids=["back", "forward", "forward for a step", "back for a step"],
)
def test_a_clock_that_is_set_is_seen_and_put_right(rank: int, first: int, last: int, by: float) -> None:
    table = steps()
    begin = table["start_time"].to_numpy().copy()
    begin[of(rank, first, last)] += by
    found, notes = steadied(timed(table, begin), np.zeros(begin.size, bool))
    # The newest times stay.
    expected = table["start_time"].to_numpy().copy()
    expected[of(rank, 0)] += by if last == N_STEPS else 0.0
    assert found["start_time"].to_numpy() == pytest.approx(expected, abs=0.2)
    assert notes[0].startswith("the clock of 1 ranks was set by 3,600 s after step")


def test_clocks_of_all_ranks_that_are_set_back_are_put_right() -> None:
    table = steps()
    begin = table["start_time"].to_numpy().copy()
    begin[of(None, 15)] -= 3600.0
    found, [note] = steadied(timed(table, begin), np.zeros(begin.size, bool))
    assert found["start_time"].to_numpy() == pytest.approx(table["start_time"].to_numpy() - 3600.0, abs=0.2)
    assert "of 4 ranks" in note


def test_a_pause_of_all_ranks_and_a_rank_that_is_held_up_are_no_clocks() -> None:
    table = steps()
    begin = table["start_time"].to_numpy().copy()
    begin[of(None, 15)] += 1800.0
    # Rank 1 begins step 20 half an hour later; the others wait for it in that step.
    begin[of(None, 21)] += 1800.0
    begin[of(1, 20, 21)] += 1800.0
    given = timed(table, begin)
    assert steadied(given, np.zeros(begin.size, bool)) == (given, [])


def test_times_after_their_arrival_are_flagged_and_get_the_time_of_the_others() -> None:
    table = steps()
    begin = table["start_time"].to_numpy().copy()
    far = of(3, 20, 24) | of(None, 29)
    begin[far] = 4e9
    marked = with_arrival(timed(table, begin), BEGIN + 100.0)
    ahead = ahead_of_arrival(marked)
    assert np.array_equal(ahead, far)
    found, _ = steadied(marked, ahead)
    assert found["start_time"].to_numpy() == pytest.approx(table["start_time"].to_numpy(), abs=0.3)


def test_times_that_can_be_need_no_arrival() -> None:
    assert with_arrival(steps(), BEGIN) == steps()


def test_a_service_whose_clock_is_behind_flags_no_row() -> None:
    assert not ahead_of_arrival(with_arrival(steps(), BEGIN - 7200.0)).any()
