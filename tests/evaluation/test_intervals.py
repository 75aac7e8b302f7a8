"""Coverage of the intervals, and their values for few windows or none."""

from __future__ import annotations

from math import exp, inf, isnan, log

import numpy as np
import pytest

from rca.lab.evaluation.intervals import bootstrap, calibration_estimate, poisson_rate, score, share_interval
from tests.for_each import for_each


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_a_bootstrap_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    draws = np.random.default_rng(1).random((200, 60)) < 0.7
    found = [bootstrap(sample.astype(float), rng()) for sample in draws]
    covered = np.mean([each.low <= 0.7 <= each.high for each in found])
    assert 0.88 <= covered <= 0.99


def test_windows_to_which_a_score_does_not_apply_do_not_count() -> None:
    found = bootstrap(np.array([1.0, np.nan, 0.0, np.nan]), rng())
    assert (found.value, found.n) == (0.5, 2)
    nothing = bootstrap(np.array([np.nan]), rng())
    assert isnan(nothing.value)
    assert nothing.n == 0


def test_the_median_of_delays_that_never_end_stays_a_number_or_infinite() -> None:
    def median(values, axis=0):
        return np.quantile(values, 0.5, axis=axis, method="inverted_cdf")

    found = bootstrap(np.array([1.0, 2.0, 4.0, inf, inf, inf, inf]), rng(), median)
    assert (found.value, found.high) == (inf, inf)
    assert not isnan(found.low)


def test_no_alarm_in_n_hours_is_bounded_by_the_rule_of_three_and_two_thirds() -> None:
    rate, low, high = poisson_rate(0, 10.0)
    assert (rate, low) == (0.0, 0.0)
    assert high == pytest.approx(-log(0.025) / 10.0)


def test_a_poisson_interval_leaves_out_a_fortieth_on_either_side() -> None:
    rate, low, high = poisson_rate(1, 2.0)
    assert rate == 0.5
    # At the lower end one or more events have probability 1/40, at the upper end none or one.
    assert 1 - exp(-2 * low) == pytest.approx(0.025)
    assert exp(-2 * high) * (1 + 2 * high) == pytest.approx(0.025)


@pytest.mark.parametrize("events", [2, 17, 2500])
def test_the_ends_of_a_poisson_interval_leave_out_a_fortieth(events: int) -> None:
    from scipy.stats import poisson

    _, low, high = poisson_rate(events, 1.0)
    assert poisson.sf(events - 1, low) == pytest.approx(0.025)
    assert poisson.cdf(events, high) == pytest.approx(0.025)


def test_without_any_healthy_hour_there_is_no_rate() -> None:
    assert all(isnan(number) for number in poisson_rate(0, 0.0))


def test_a_calibration_interval_is_not_moved_by_its_own_noise() -> None:
    """Drawn errors are larger on average: uncorrected, this interval would lie 0.012 higher."""
    source = np.random.default_rng(3)
    confidence = source.uniform(0.5, 1.0, 300)
    right = (source.random(300) < confidence).astype(float)
    found = calibration_estimate(confidence, right, rng())
    assert (found.low + found.high) / 2 == pytest.approx(found.value, abs=0.006)
    assert found.n == 300


def test_answers_without_confidence_have_no_calibration() -> None:
    found = calibration_estimate(np.array([np.nan, np.nan]), np.array([1.0, 0.0]), rng())
    assert found.n == 0


@for_each(("successes", "n"), [(0, 8), (8, 8), (3, 8), (1, 1), (0, 1), (2700, 2876)])
def test_the_interval_of_a_share_is_the_exact_one(successes: int, n: int) -> None:
    from scipy.stats import binomtest

    exact = binomtest(successes, n).proportion_ci(method="exact")
    assert share_interval(successes, n) == pytest.approx((exact.low, exact.high))


def test_no_false_alarm_among_eight_is_no_proof_that_there_are_none() -> None:
    found = score(np.zeros(8), rng())
    assert (found.value, found.low) == (0.0, 0.0)
    assert found.high > 0.3
