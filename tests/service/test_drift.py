"""Answers that change are seen to change; others are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from rca.classify.uncertainty import CONFIDENCE_BINS, AnswerShares, confidence_bin
from rca_api.shell.observability.drift import MIN_ANSWERS, RECENT, AnswerDrift, population_stability_index

USUAL = AnswerShares(
    {"healthy": 0.9, "fail_slow": 0.08, "fail_stop": 0.02}, (0.0,) * 5 + (0.05, 0.05, 0.1, 0.1, 0.7)
)
counts = st.lists(st.integers(0, 500), min_size=2, max_size=10)


class Watched:
    """A drift gauge and what it shows."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.drift = AnswerDrift(self.registry)

    def tell(self, mode: str, confidence: float, times: int, usual: AnswerShares | None = USUAL) -> None:
        for _ in range(times):
            self.drift.observe("one", mode, confidence, usual)

    def shown(self, of: str) -> float | None:
        return self.registry.get_sample_value("rca_answer_drift", {"of": of})


@given(counts)
def test_the_same_shares_have_not_moved(found: list[int]) -> None:
    n = sum(found)
    if n:
        assert population_stability_index([count / n for count in found], found) == pytest.approx(
            0.0, abs=1e-12
        )


@given(counts, st.data())
def test_it_is_never_negative_and_finite(found: list[int], data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.floats(0, 1), min_size=len(found), max_size=len(found)))
    total = sum(weights)
    if total > 0:
        value = population_stability_index([weight / total for weight in weights], found)
        assert 0 <= value < np.inf


def test_it_is_the_formula_where_nothing_is_empty() -> None:
    """Two bins, ninety and ten per cent expected, seventy and thirty found: 0.2 ln(0.9/0.7 x 0.3/0.1)."""
    value = population_stability_index([0.9, 0.1], [70_000, 30_000])
    assert value == pytest.approx(0.2 * np.log(0.9 / 0.7 * 3), rel=1e-3)


def test_without_drift_it_is_about_bins_less_one_over_answers() -> None:
    rng = np.random.default_rng(0)
    shares = np.full(10, 0.1)
    values = [population_stability_index(shares, rng.multinomial(RECENT, shares)) for _ in range(300)]
    assert np.mean(values) == pytest.approx(9 / RECENT, rel=0.1)


def test_nothing_is_shown_before_there_is_something_to_compare() -> None:
    watched = Watched()
    watched.tell("healthy", 0.95, MIN_ANSWERS - 1)
    assert watched.shown("failure_mode") is None
    watched.tell("healthy", 0.95, 1)
    assert watched.shown("failure_mode") is not None
    without = Watched()
    without.tell("healthy", 0.95, RECENT, usual=None)
    assert without.shown("failure_mode") is None


def test_usual_answers_show_little_and_others_much() -> None:
    watched = Watched()
    for mode, confidence, times in (("healthy", 0.95, 350), ("healthy", 0.85, 100), ("fail_slow", 0.55, 50)):
        watched.tell(mode, confidence, times)
    usual = watched.shown("failure_mode")
    assert usual is not None
    assert usual < 0.1
    watched.tell("fail_slow", 0.55, RECENT)
    assert (watched.shown("failure_mode") or 0.0) > 1.0
    assert (watched.shown("confidence") or 0.0) > 1.0


def test_only_the_last_answers_count() -> None:
    watched = Watched()
    watched.tell("fail_stop", 0.3, 10 * RECENT)
    for mode, times in (("healthy", 450), ("fail_slow", 40), ("fail_stop", 10)):
        watched.tell(mode, 0.95, times)
    assert (watched.shown("failure_mode") or 0.0) < 0.01


def test_another_model_starts_from_zero() -> None:
    watched = Watched()
    watched.tell("fail_slow", 0.5, RECENT)
    watched.drift.observe("two", "healthy", 0.9, USUAL)
    assert watched.shown("failure_mode") is None


@given(st.floats(0, 1))
def test_every_probability_has_a_bin(probability: float) -> None:
    assert 0 <= confidence_bin(probability) < CONFIDENCE_BINS


@pytest.mark.parametrize(
    "document",
    [
        {"mode": {"healthy": 0.5}, "confidence": [0.1] * 10},
        {"mode": {"healthy": 1.0}, "confidence": [0.5, 0.5]},
        {"mode": {"healthy": 1.5, "fail_slow": -0.5}, "confidence": [0.1] * 10},
        {"mode": {}, "confidence": [0.1] * 10},
    ],
)
def test_shares_that_are_none_are_refused(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="answers"):
        AnswerShares.load(document)
