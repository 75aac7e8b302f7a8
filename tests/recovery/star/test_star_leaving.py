"""Which ranks leave a ring, and when they come back."""

from __future__ import annotations

import numpy as np
import pytest

from rca.errors import InvalidInput
from rca.runtime.star.leaving import StragglersLeave

SLOW = np.array([0.1, 0.1, 0.15, 0.1])


def test_a_straggler_leaves_and_comes_back_when_it_is_at_speed() -> None:
    rule = StragglersLeave(every=4)
    assert rule(4, SLOW, ()) == (2,)
    # At 15 % more it is no straggler, but not at speed.
    nearly = np.array([0.1, 0.1, 0.115, 0.1])
    assert rule(4, nearly, ()) == ()
    assert rule(8, nearly, (2,)) == (2,)
    assert rule(8, np.full(4, 0.1), (2,)) == ()


def test_ranks_with_steps_of_milliseconds_stay() -> None:
    short = SLOW / 100
    assert StragglersLeave(every=4)(4, short, ()) == ()
    assert StragglersLeave(least_seconds=0.0, every=4)(4, short, ()) == (2,)


def test_nothing_changes_between_two_looks_or_without_times() -> None:
    rule = StragglersLeave(every=4)
    assert rule(5, SLOW, (1,)) == (1,)
    assert rule(4, np.full(4, np.nan), (1,)) == (1,)


def test_a_rank_without_a_time_is_no_straggler() -> None:
    lost = np.array([0.1, np.nan, 0.15, 0.1])
    assert StragglersLeave(every=4)(4, lost, ()) == (2,)
    assert StragglersLeave(16, 64.0, every=4)(4, np.array([0.1, np.nan, 0.4, 0.1]), ()) == (2,)


def test_a_straggler_stays_where_staleness_costs_more_than_the_wait() -> None:
    seconds = np.array([0.1, 0.13])
    assert StragglersLeave(every=1)(1, seconds, ()) == (1,)
    assert StragglersLeave(16, 0.0, every=1)(1, seconds, ()) == ()
    assert StragglersLeave(16, 1e4, every=1)(1, np.array([0.1, 0.5]), ()) == (1,)


@pytest.mark.parametrize(
    "wrong", [{"every": 0}, {"share": 0.0}, {"share": float("nan")}, {"least_seconds": -1.0}]
)
def test_a_rule_that_cannot_hold_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match="cannot leave"):
        StragglersLeave(**wrong)
