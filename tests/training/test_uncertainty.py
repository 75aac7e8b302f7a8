"""A bundle's answers to held-out windows: decided as a diagnosis decides, absent from older bundles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from made_up_corpus import made_up_corpus

from rca.classify.decision_table import MIN_STEPS, MIN_STEPS_OF_ALARM
from rca.classify.uncertainty import AnswerShares, Doubt
from rca.diagnosis.bundle import baseline
from rca.features import WINDOW_FEATURES
from rca.lab.training.uncertainty import fit_answers

CLASSES = ("healthy", "fail_slow", "fail_stop")


class FixedHead:
    """Believes the same of every window."""

    classes = CLASSES

    def __init__(self, *chances: float) -> None:
        self._chances = chances

    def probabilities(self, rows: np.ndarray) -> np.ndarray:
        return np.tile(self._chances, (len(rows), 1))


class ScopeHead(FixedHead):
    """Believes that every fault is one of some ranks, or of the whole job."""

    classes = ("some", "job")


SOME, WHOLE = ScopeHead(1.0, 0.0), ScopeHead(0.0, 1.0)


def shares(*chances: float, fault: float = 0.5, log2_steps: float = 10.0, **changes: Any) -> AnswerShares:
    corpus = made_up_corpus(200, **changes)
    corpus.window[:, WINDOW_FEATURES.index("log2_steps")] = log2_steps
    heads: Any = {"mode": FixedHead(*chances), "scope": SOME}
    return AnswerShares.load(fit_answers(corpus, heads, {"fault": fault}))


@pytest.mark.parametrize(
    ("chances", "fault", "said", "place"),
    [
        ((0.7, 0.2, 0.1), 0.5, "healthy", 7),
        ((0.7, 0.2, 0.1), 0.25, "fail_slow", 2),
        ((0.1, 0.3, 0.6), 0.5, "fail_stop", 6),
        ((0.0, 1.0, 0.0), 0.5, "fail_slow", 9),
    ],
)
def test_the_alarm_threshold_decides(chances: tuple[float, ...], fault: float, said: str, place: int) -> None:
    found = shares(*chances, fault=fault)
    assert found.mode[said] == pytest.approx(1.0)
    assert found.confidence[place] == pytest.approx(1.0)


@pytest.mark.parametrize(("lateness", "said"), [(0.09, "healthy"), (0.11, "fail_slow"), (np.nan, "healthy")])
def test_what_costs_much_alarms_earlier(lateness: float, said: str) -> None:
    """The loss is that of half of the steps."""
    corpus = made_up_corpus(200)
    for name, value in {"log2_steps": 10.0, "lateness": lateness, "slow_segment_share": 0.5}.items():
        corpus.window[:, WINDOW_FEATURES.index(name)] = value
    heads: Any = {"mode": FixedHead(0.12, 0.88, 0.0), "scope": SOME}
    found = AnswerShares.load(fit_answers(corpus, heads, {"fault": 0.9, "fault_costly": 0.85}))
    assert found.mode[said] == pytest.approx(1.0)


@pytest.mark.parametrize(("scope", "said"), [(SOME, "fail_slow"), (WHOLE, "healthy")])
def test_what_changes_the_whole_job_alarms_later(scope: ScopeHead, said: str) -> None:
    corpus = made_up_corpus(200)
    corpus.window[:, WINDOW_FEATURES.index("log2_steps")] = 10.0
    corpus.window[:, WINDOW_FEATURES.index("lateness")] = 0.0
    heads: Any = {"mode": FixedHead(0.08, 0.92, 0.0), "scope": scope}
    found = AnswerShares.load(fit_answers(corpus, heads, {"fault": 0.9, "fault_whole": 0.95}))
    assert found.mode[said] == pytest.approx(1.0)


def test_few_steps_are_called_slow_where_next_to_nothing_speaks_for_health() -> None:
    short, blink = float(np.log2(MIN_STEPS - 1)), float(np.log2(MIN_STEPS_OF_ALARM - 1))
    assert shares(0.011, 0.989, 0.0, log2_steps=short).mode["healthy"] == pytest.approx(1.0)
    assert shares(0.009, 0.991, 0.0, log2_steps=short).mode["fail_slow"] == pytest.approx(1.0)
    assert shares(0.0, 1.0, 0.0, log2_steps=blink).mode["healthy"] == pytest.approx(1.0)
    assert shares(0.1, 0.8, 0.1, log2_steps=short).mode["healthy"] == pytest.approx(1.0)
    assert shares(0.1, 0.8, 0.1, log2_steps=float(np.log2(MIN_STEPS))).mode["fail_slow"] == pytest.approx(1.0)
    assert shares(0.1, 0.1, 0.8, log2_steps=short).mode["fail_stop"] == pytest.approx(1.0)


def test_weights_count_and_other_parts_do_not() -> None:
    part = ("validation",) * 2 + ("train",) * 198
    weight = np.array([3.0, 1.0, *[100.0] * 198])
    corpus = made_up_corpus(200, part=part, weight=weight)
    corpus.window[:, WINDOW_FEATURES.index("log2_steps")] = 10.0

    class Picky(FixedHead):
        def probabilities(self, rows: np.ndarray) -> np.ndarray:
            assert len(rows) == 2
            return np.array([[0.9, 0.1, 0.0], [0.0, 0.9, 0.1]])

    heads: Any = {"mode": Picky(), "scope": SOME}
    assert fit_answers(corpus, heads, {"fault": 0.5})["mode"] == {
        "healthy": 0.75,
        "fail_slow": 0.25,
        "fail_stop": 0.0,
    }


def test_without_held_out_windows_nothing_is_said() -> None:
    corpus = made_up_corpus(20, part=("train",) * 20)
    heads: Any = {"mode": FixedHead(1.0, 0.0, 0.0), "scope": SOME}
    assert fit_answers(corpus, heads, {"fault": 0.5}) == {}


def test_a_bundle_without_them_is_read_and_one_with_them_too() -> None:
    assert Doubt.load({}).answers is None
    document = {"mode": {"healthy": 0.25, "fail_slow": 0.75}, "confidence": [0.1] * 10}
    read = Doubt.load({"answers": document}).answers
    assert read is not None
    assert read.mode == document["mode"]


def test_the_shipped_bundle_loads_whatever_it_knows() -> None:
    known = baseline().classifier.doubt.answers
    assert known is None or set(known.mode) == set(CLASSES)
