"""The false-alarm threshold keeps to its budget with confidence, and asks the impossible of nobody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_up_corpus import made_up_corpus

from rca.features import WINDOW_FEATURES
from rca.lab.training.thresholds import FALSE_ALARM_BUDGET, GRID, _alarm, choose_thresholds


def chances(n: int, loud: int) -> np.ndarray:
    """`n` innocent windows, of which `loud` look 0.8 faulty."""
    return np.where(np.arange(n) < loud, 0.8, 0.1)


@pytest.mark.parametrize(("n", "loud", "expected"), [(10_000, 4, 0.30), (2000, 60, 0.801), (400, 1, 0.801)])
def test_the_upper_bound_of_the_rate_decides(n: int, loud: int, expected: float) -> None:
    assert loud / n <= FALSE_ALARM_BUDGET or expected > 0.8
    assert _alarm(chances(n, loud), FALSE_ALARM_BUDGET) == expected


def test_a_small_validation_set_asks_for_no_alarm_at_all() -> None:
    """Forty windows cannot prove one per cent; they can still tell 0.8 from 0.1."""
    assert _alarm(chances(40, 0), FALSE_ALARM_BUDGET) == 0.30
    assert _alarm(chances(40, 1), FALSE_ALARM_BUDGET) == 0.801


def test_guilty_windows_raise_no_false_alarm() -> None:
    """Half of the windows are faulty and look it."""
    guilty = np.arange(4000) % 4 == 1
    assert chosen(mode=tuple(np.where(guilty, "fail_slow", "healthy")), loud=guilty)["fault"] == 0.351


@pytest.mark.system
def test_more_healthy_windows_move_the_alarm_and_nothing_else() -> None:
    """Two of a hundred more look 0.9 faulty: more than the budget of either kind."""
    more = np.full((4000, len(WINDOW_FEATURES)), 0.35)
    more[::50, 0] = 0.9
    plain, moved = chosen(), chosen(more_healthy=losing(0.2, more))
    assert plain | {"fault_costly": 0.901} == moved
    # The limit of changes of the whole job is not below that of others.
    assert plain | {"fault": 0.901, "fault_whole": 0.901} == chosen(more_healthy=losing(0.02, more))


def test_where_much_is_lost_more_alarms_are_allowed() -> None:
    """Four of a thousand: more than the budget of cheap jobs, less than that of costly ones."""
    more = np.full((20_000, len(WINDOW_FEATURES)), 0.35)
    more[::250, 0] = 0.9
    assert chosen(more_healthy=losing(0.2, more)) == chosen()
    assert chosen(more_healthy=losing(0.02, more))["fault"] == 0.901


def test_changes_of_the_whole_job_have_a_limit_of_their_own() -> None:
    """Two of a hundred of them look 0.9 faulty: they move their own limit, and not that of other jobs."""
    more = np.full((4000, len(WINDOW_FEATURES)), 0.35)
    more[:, -1] = -1.0
    more[::50, 0] = 0.9
    assert chosen() | {"fault_whole": 0.901} == chosen(more_healthy=losing(0.02, more))


def test_without_changes_of_the_whole_job_their_limit_is_that_of_other_jobs() -> None:
    found = chosen()
    assert found["fault_whole"] == found["fault"] > GRID[0]


def losing(share: float, windows: np.ndarray) -> np.ndarray:
    """The windows, in which half of the steps are `2 * share` longer than they need be."""
    found = windows.copy()
    found[:, WINDOW_FEATURES.index("lateness")] = 2 * share
    found[:, WINDOW_FEATURES.index("slow_segment_share")] = 0.5
    return found


class Read:
    """A head that reads the probability of a fault, or of a straggler, off the first column."""

    classes = ("healthy", "fail_slow", "fail_stop")

    def probabilities(self, rows: np.ndarray) -> np.ndarray:
        return np.column_stack([1.0 - rows[:, 0], rows[:, 0], np.zeros(len(rows))])


class Scope:
    """A head that takes a fault for one of some ranks, or of the job where the last column is negative."""

    classes = ("some", "job")

    def probabilities(self, rows: np.ndarray) -> np.ndarray:
        whole = rows[:, -1] < 0
        return np.column_stack([~whole, whole]).astype(float)


def chosen(
    *, more_healthy: np.ndarray | None = None, loud: np.ndarray | None = None, **changes: Any
) -> dict[str, float]:
    """Thresholds of 4,000 windows, healthy ones without timed work looking 0.8 faulty, the others 0.35."""
    corpus = made_up_corpus(4000)
    unseen = np.arange(4000) % 2 == 0
    corpus.window[:, 0] = np.where(unseen, 0.8, 0.35)
    corpus.window[unseen, WINDOW_FEATURES.index("step_noise")] = np.nan
    if loud is not None:
        corpus.window[loud, 0] = 0.99
    corpus.rank[:, 0] = 0.5
    heads = {"mode": Read(), "straggler": Read(), "scope": Scope()}
    return choose_thresholds(replace(corpus, **changes), heads, more_healthy)


def test_jobs_whose_work_nobody_timed_have_a_threshold_of_their_own() -> None:
    found = chosen()
    assert (found["fault"], found["fault_unseen"]) == (0.351, 0.801)


@pytest.mark.system
def test_thresholds_are_told_by_simulated_windows_that_no_tree_was_fitted_on() -> None:
    assert chosen(part=("train",) * 4000)["fault"] == chosen(real=(True,) * 4000)["fault"] == GRID[0]
    assert chosen(part=("calibration",) * 4000)["fault"] == 0.351
