"""Where most ranks became slow the healthy ones look fast: a quiet past shows which ranks changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import rca
from rca.features import extract
from rca.features.comparison import most_slowed, past_reference
from rca.high_segment import Segment


@pytest.mark.parametrize("n", [9, 10, 12, 14])
def test_the_ranks_that_became_slow_are_named_and_priced(make_window, n: int) -> None:
    window = make_window(16, 60, late=dict.fromkeys(range(n), 0.05), steps=slice(20, None), ranks_per_node=4)
    diagnosis = rca.diagnose(window)
    assert diagnosis.failure_mode == "fail_slow"
    assert [each.ranks for each in diagnosis.stragglers] == [list(range(n))]
    assert diagnosis.slowdown.seconds_per_step == pytest.approx(0.05 * 2 / 3, rel=0.2)
    assert "sequence_length_imbalance" not in {each.cause for each in diagnosis.causes}


def test_all_ranks_alike_or_a_minority_leave_the_peers_as_reference(make_window) -> None:
    for n in (0, 4, 8, 16):
        window = make_window(16, 60, late=dict.fromkeys(range(n), 0.05), steps=slice(20, None))
        assert extract(window).comparison.slowed is None


def test_where_the_exchange_is_not_timed_most_ranks_may_only_wait_for_the_others(make_window) -> None:
    window = make_window(16, 60, late=dict.fromkeys(range(12), 0.05), steps=slice(20, None))
    assert extract(window).comparison.slowed is not None
    exchange = [name for name in window.steps.schema.names if name.startswith("communication")]
    untimed = replace(window, steps=window.steps.drop_columns(exchange))
    assert extract(untimed).comparison.slowed is None


def test_without_a_quiet_past_nobody_can_tell() -> None:
    own = np.ones((4, 20))
    own[:3] *= 1.5
    assert most_slowed(own, Segment(0, 19, 0.0, 0.0, True)) is None


def test_the_past_moves_as_the_others_moved() -> None:
    own = np.ones((4, 20))
    own[:3, 10:] *= 1.5
    own[:, 15:] *= 1.2  # longer batches for everybody
    segment = Segment(10, 19, 0.5, 20.0, False)
    slowed = most_slowed(own, segment)
    assert slowed is not None
    assert slowed.tolist() == [True, True, True, False]
    np.testing.assert_allclose(past_reference(own, slowed, segment)[0, [5, 12, 17]], [1.0, 1.0, 1.2])
