"""Times and durations in another unit are numbers like any other; the window's bounds give them away."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from telemetry_windows import START, job, metrics, refusal, steps, window

UNITS = [(1e3, "milliseconds"), (1e6, "microseconds"), (1e9, "nanoseconds")]


@pytest.mark.parametrize(("factor", "unit"), UNITS)
def test_start_times_in_another_unit(factor: float, unit: str) -> None:
    error = refusal(table=steps(start_time=[t * factor for t in (START, START + 1, START, START + 1)]))
    assert (error.column, error.n_rows, error.hint) == (
        "start_time",
        4,
        f"the values look like {unit}: convert them to seconds",
    )


@pytest.mark.parametrize(("factor", "unit"), UNITS)
def test_one_producers_samples_in_another_unit(factor: float, unit: str) -> None:
    late = START * factor - START
    error = refusal(metrics=metrics((1, "node_load1", 1.0), (late, "node_load1", 1.0, "node-b")))
    assert (error.table, error.column, error.n_rows) == ("metrics", "time", 1)
    assert error.hint == f"the values look like {unit}: convert them to seconds"
    assert error.rows[0]["node"] == "node-b"


def test_a_clock_in_another_time_zone() -> None:
    error = refusal(metrics=metrics((2 * 3600, "node_load1", 1.0)))
    assert "time zone" in str(error.hint)


def test_times_since_the_start_of_the_job() -> None:
    error = refusal(table=steps(start_time=[0.0, 1.0, 0.0, 1.0]))
    assert "count from the start" in str(error.hint)


def test_a_year_off_has_no_hint() -> None:
    assert refusal(table=steps(start_time=[START + 4e7] * 4)).hint is None


def test_clocks_may_be_seconds_off_and_steps_may_begin_before_the_window() -> None:
    assert window(steps=steps(start_time=[START - 30, START + 1, START, START + 45])).steps.num_rows == 4


@pytest.mark.parametrize(("factor", "unit"), UNITS)
def test_durations_in_another_unit(factor: float, unit: str) -> None:
    error = refusal(table=steps(forward_seconds=[0.5 * factor * 40, 0.0, 0.4, 0.4]))
    assert error.column == "forward_seconds"
    assert error.rows == [{"row": 0, "rank": 0, "step": 7, "forward_seconds": 20 * factor}]
    assert f"look like {unit}" in str(error.hint)


def test_many_short_steps_in_milliseconds_are_caught_by_their_sum() -> None:
    short = pa.table(
        {
            "rank": np.zeros(100, np.int32),
            "step": np.arange(100),
            "start_time": START + np.arange(100) * 0.1,
            "step_seconds": np.full(100, 90.0),
        }
    )
    error = refusal(table=short)
    assert (error.column, error.n_rows) == ("step_seconds", 100)


def test_a_step_longer_than_its_window_is_possible() -> None:
    assert window(steps=steps(step_seconds=[60.0, 0.9, 0.9, 0.9])).steps.num_rows == 4


def test_absurd_durations_have_no_unit() -> None:
    error = refusal(table=steps(step_seconds=[1e300] * 4))
    assert error.column == "step_seconds"
    assert error.hint is None


def test_a_rank_cannot_be_in_two_steps_at_once() -> None:
    """Bounds far apart do not hide that durations are milliseconds."""
    n = 40
    table = pa.table(
        {
            "rank": [number % 2 for number in range(n)],
            "step": [number // 2 for number in range(n)],
            "start_time": [START + 0.5 * (number // 2) for number in range(n)],
            "step_seconds": [480.0] * n,
        }
    )
    wide = job(end=START + 200_000.0)
    error = refusal(wide, table)
    assert (error.column, error.n_rows) == ("step_seconds", n)
    assert "two steps at once" in str(error)
    assert error.hint == "the values look like milliseconds: convert them to seconds"
    # Times that are rounded to a minute are no contradiction.
    rounded = table.set_column(2, "start_time", pa.array([START] * n))
    rounded = rounded.set_column(3, "step_seconds", pa.array([0.5] * n))
    assert window(steps=rounded, job=wide).steps.num_rows == n
