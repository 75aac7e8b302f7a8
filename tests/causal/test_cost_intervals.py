"""Conformal margins: intervals are widened until held-out costs lie in them as often as promised."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca.causal.intervals import ANY, MIN_GROUP, Held, coverage, fit_margins, group_of, widened


def costs(n: int, seed: int, *, bias: float = 0.0, spread: float = 0.2, group: str = "past") -> list[Held]:
    """Estimates with an interval of 5 % around them, while the truth is further away."""
    rng = np.random.default_rng(seed)
    seconds = rng.uniform(0.01, 1.0, n)
    true = seconds * np.maximum(1 + bias + spread * rng.normal(size=n), 0.01)
    return [
        Held(group, float(s), float(0.95 * s), float(1.05 * s), float(s), float(t))
        for s, t in zip(seconds, true, strict=True)
    ]


@pytest.mark.parametrize("bias", [0.0, 0.3, -0.3])
def test_fresh_costs_are_covered_as_often_as_promised(bias: float) -> None:
    margins = fit_margins(costs(800, 1, bias=bias), 0.95)
    fresh = costs(4000, 2, bias=bias)
    assert coverage(fresh, {}) < 0.3
    assert 0.93 <= coverage(fresh, margins) <= 0.975


def test_groups_that_err_more_get_wider_intervals_and_small_ones_everybodys() -> None:
    sharp, vague = costs(300, 3, spread=0.02, group="sharp"), costs(300, 4, spread=0.4, group="vague")
    rare = costs(MIN_GROUP - 1, 5, group="rare")
    margins = fit_margins(sharp + vague + rare, 0.95)
    assert margins["sharp"] < margins[ANY] < margins["vague"]
    assert "rare" not in margins
    assert widened(margins, "rare", 1.0, 0.9, 1.1, 2.0) == widened(margins, ANY, 1.0, 0.9, 1.1, 2.0)


@given(st.floats(0.001, 100), st.floats(0, 1), st.floats(0, 1), st.integers(0, 5))
def test_intervals_are_never_narrowed(seconds: float, below: float, above: float, seed: int) -> None:
    margins = fit_margins(costs(100, seed, spread=0.001), 0.95)
    low, high = seconds * (1 - below), seconds * (1 + above)
    new_low, new_high = widened(margins, "past", seconds, low, high, seconds)
    assert 0 <= new_low <= low <= high <= new_high


def test_without_margins_an_interval_stays_as_it_is() -> None:
    assert widened({}, "past-own-sure", 1.0, 0.8, 1.3, 2.0) == (0.8, 1.3)
    assert fit_margins([], 0.95) == {ANY: 0.0}
    assert np.isnan(coverage([], {}))


def test_groups_tell_apart_what_errs_differently() -> None:
    names = {
        group_of(past=past, transfer=transfer, belief=belief)
        for past in (True, False)
        for transfer in (True, False)
        for belief in (0.5, 0.95)
    }
    assert len(names) == 8
