"""Conformal margins: each end of an interval is moved until held-out costs lie within as often as said."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca.causal.intervals import ANY, Margin, group_of, widened
from rca.lab.training.interval_margins import (
    MIN_GROUP,
    HeldOutCost,
    coverage,
    fit_margins,
    share_beyond_lost,
)


def costs(
    n: int, seed: int, *, bias: float = 0.0, spread: float = 0.2, group: str = "past"
) -> list[HeldOutCost]:
    """Estimates within 5 %, of three times as much that was lost; the truth is further off."""
    rng = np.random.default_rng(seed)
    seconds = rng.uniform(0.01, 1.0, n)
    true = seconds * np.maximum(1 + bias + spread * rng.normal(size=n), 0.01)
    return [
        HeldOutCost(group, float(0.95 * s), float(1.05 * s), float(3 * s), float(t))
        for s, t in zip(seconds, true, strict=True)
    ]


@pytest.mark.parametrize("bias", [0.0, 0.3, -0.3])
def test_fresh_costs_are_covered_as_often_as_promised(bias: float) -> None:
    margins = fit_margins(costs(800, 1, bias=bias), 0.95)
    fresh = costs(4000, 2, bias=bias)
    assert coverage(fresh, {}) < 0.3
    assert 0.93 <= coverage(fresh, margins) <= 0.975


@pytest.mark.parametrize("bias", [0.0, 0.3, -0.3])
def test_no_end_is_moved_for_the_others_errors(bias: float) -> None:
    """A cause that costs more than was said says nothing against the lower end, and the reverse."""
    margin = fit_margins(costs(800, 1, bias=bias), 0.95)[ANY]
    truth = 1 + bias + 1.96 * 0.2 * np.array([-1, 1])
    assert 0.95 * margin.below == pytest.approx(min(truth[0], 0.95), abs=0.08)
    assert 1.05 + margin.above * (3 - 1.05) == pytest.approx(max(truth[1], 1.05), abs=0.12)


def test_few_wild_costs_do_not_make_an_interval_say_nothing() -> None:
    wild = [HeldOutCost("past", 0.0, 1e-9, 1.0, 0.9)] * 15 + [HeldOutCost("past", 0.9, 1.1, 1.2, 3.0)] * 30
    margin = fit_margins(costs(955, 7, spread=0.03) + wild, 0.95)[ANY]
    assert margin.below > 0.9
    assert margin.above < 0.2
    assert share_beyond_lost(wild) == pytest.approx(2 / 3)


def test_groups_that_err_more_get_wider_intervals_and_small_groups_the_common_one() -> None:
    sharp, vague = costs(300, 3, spread=0.02, group="sharp"), costs(300, 4, spread=0.4, group="vague")
    rare = costs(MIN_GROUP - 1, 5, group="rare")
    margins = fit_margins(sharp + vague + rare, 0.95)
    assert margins["sharp"].below > margins[ANY].below > margins["vague"].below
    assert margins["sharp"].above < margins[ANY].above < margins["vague"].above
    assert "rare" not in margins
    assert widened(margins, "rare", 0.9, 1.1, 2.0) == widened(margins, ANY, 0.9, 1.1, 2.0)


def test_a_small_group_takes_the_next_wider_ones_margin() -> None:
    vague = costs(90, 3, spread=0.4, group="peers-unsure-most") + costs(20, 4, group="peers-unsure-part")
    margins = fit_margins(costs(2000, 5, spread=0.02, group="past-sure-most") + vague, 0.95)
    assert "peers-unsure-part" not in margins

    def of(group: str) -> tuple[float, float]:
        return widened(margins, group, 0.9, 1.1, 2.0)

    assert of("peers-unsure-part") == of("peers-unsure-nobody") != of("else")
    assert of("peers-unsure-part")[0] < of("else")[0]


def test_what_lies_within_from_the_beginning_needs_no_margin() -> None:
    within = [HeldOutCost("past", 0.0, 0.0, 1.0, 0.0)] * 100
    assert fit_margins(within, 0.95)[ANY] == Margin(1.0, 0.0)
    beyond_reach = [HeldOutCost("past", 1.0, 1.0, 1.0, 2.0)] * 100
    assert fit_margins(beyond_reach, 0.95)[ANY] == Margin(1.0, 1.0)


def test_too_few_to_tell_an_end_take_the_widest() -> None:
    assert fit_margins(costs(20, 6), 0.95) == {ANY: Margin(0.0, 1.0)}


@given(
    st.floats(0.001, 100), st.floats(0, 1), st.floats(0, 1), st.floats(0, 3), st.floats(0, 1), st.floats(0, 1)
)
def test_intervals_are_never_narrowed_and_never_beyond_all_that_was_lost(
    seconds: float, below: float, above: float, rest: float, lower: float, upper: float
) -> None:
    low, high, lost = seconds * (1 - below), seconds * (1 + above), seconds * (1 + rest)
    new_low, new_high = widened({ANY: Margin(lower, upper)}, "past", low, high, lost)
    assert 0 <= new_low <= low
    assert min(high, lost) <= new_high <= lost * (1 + 1e-12)


def test_without_margins_an_interval_stays_as_it_is() -> None:
    assert widened({}, "past-sure-most", 0.8, 1.3, 2.0) == (0.8, 1.3)
    assert fit_margins([], 0.95) == {ANY: Margin()}
    assert np.isnan(coverage([], {}))
    assert np.isnan(share_beyond_lost([]))


def test_groups_tell_apart_what_errs_differently() -> None:
    names = {
        group_of(past=past, belief=belief, share=share)
        for past in (True, False)
        for belief in (0.5, 0.95)
        for share in (0.2, 0.9)
    }
    assert len(names) == 8
