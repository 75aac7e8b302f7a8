"""Phases that most steps do not have: left out they count as zero, unless the trainer writes zeros."""

from __future__ import annotations

import numpy as np
import pytest
from telemetry_windows import START, steps, window

from rca.window.times.phases import PhaseArrays

N_STEPS = 6
UNKNOWN = [None] * N_STEPS
ONCE = [None, 3.0, None, None, None, None]


def told(name: str, first: list[float | None], second: list[float | None], **changes: list) -> np.ndarray:
    """The phase in `PhaseArrays`, for two ranks with a timed forward in every step."""
    n = len(first)
    columns = {
        "rank": [0] * n + [1] * n,
        "step": [*range(n)] * 2,
        "start_time": [START + step for step in range(n)] * 2,
        "forward_seconds": [0.4] * 2 * n,
        "step_seconds": [0.9] * 2 * n,
    }
    return PhaseArrays.from_window(window(steps=steps(**columns | changes | {name: first + second}))).phase(
        name
    )


def test_a_checkpoint_written_where_it_happened_is_zero_elsewhere() -> None:
    """Rank 0 alone writes: it does so for the other, which has no checkpoint of its own."""
    found = told("checkpoint_seconds", ONCE, UNKNOWN)
    np.testing.assert_array_equal(found, [[0, 3, 0, 0, 0, 0], [0] * 6])


def test_a_rank_without_a_collector_timer_is_unknown() -> None:
    found = told("gc_seconds", ONCE, UNKNOWN)
    np.testing.assert_array_equal(found, [[0, 3, 0, 0, 0, 0], [np.nan] * 6])


@pytest.mark.parametrize("name", ["checkpoint_seconds", "gc_seconds"])
def test_a_missing_value_among_zeros_stays_unknown(name: str) -> None:
    row = [0.0, 3.0, None, 0.0, 0.0, None]
    np.testing.assert_array_equal(told(name, row, row)[0], [0, 3, np.nan, 0, 0, np.nan])


def test_a_stray_zero_is_no_habit() -> None:
    """A timer that read nothing once: the other steps were left out all the same."""
    filled = told("gc_seconds", [2.0, 3.0, 0.0, *[None] * 6], UNKNOWN + [None] * 3)
    np.testing.assert_array_equal(filled[0], [2, 3, 0, *[0] * 6])


@pytest.mark.parametrize(
    "changes", [{"forward_seconds": [None] * 6 + [0.4] * 6}, {"step_seconds": [None] * 6 + [0.9] * 6}]
)
def test_a_rank_without_timers_has_not_worked_for_no_time(changes: dict) -> None:
    found = told("checkpoint_seconds", UNKNOWN, ONCE, **changes)
    assert np.isnan(found[0]).all()
    np.testing.assert_array_equal(found[1], [0, 3, 0, 0, 0, 0])


def test_a_phase_of_every_step_is_unknown_where_it_is_missing() -> None:
    assert np.isnan(told("forward_seconds", [0.4, *UNKNOWN[1:]], [0.4] * 6)[0, 1:]).all()
