"""Calibration, and how the beliefs of several heads become one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rca.classify.beliefs import combine
from rca.classify.head import Calibration, Head
from rca.errors import BundleError
from rca.window.causes import CAUSES, SLOW_CAUSES, STRAGGLER_TYPES

scores = st.floats(-500, 500)


@given(arrays(float, st.tuples(st.integers(1, 5), st.just(3)), elements=scores), st.floats(0.01, 20))
def test_calibrated_probabilities_sum_to_one(raw, scale: float) -> None:
    chance = Calibration(scale, (0.3, -0.2, 0.0)).probabilities(raw)
    assert chance.shape == raw.shape
    assert np.allclose(chance.sum(axis=1), 1.0)
    assert (chance >= 0).all()


@given(arrays(float, st.tuples(st.integers(1, 5), st.just(1)), elements=scores))
def test_a_binary_score_becomes_two_probabilities(raw) -> None:
    chance = Calibration(1.0, (0.0, 0.0)).probabilities(raw)
    assert chance.shape == (raw.shape[0], 2)
    with np.errstate(over="ignore"):
        assert np.allclose(chance[:, 1], 1 / (1 + np.exp(-raw[:, 0])))


def test_the_neutral_calibration_is_softmax_and_a_small_scale_is_doubt() -> None:
    raw = np.array([[2.0, 0.0, 0.0]])
    neutral = Calibration(1.0, (0.0, 0.0, 0.0)).probabilities(raw)[0]
    doubting = Calibration(0.1, (0.0, 0.0, 0.0)).probabilities(raw)[0]
    assert neutral[0] == pytest.approx(np.exp(2) / (np.exp(2) + 2))
    assert 1 / 3 < doubting[0] < neutral[0]


def test_a_shift_moves_belief_towards_its_class() -> None:
    raw = np.zeros((1, 3))
    assert Calibration(1.0, (0.0, 1.0, 0.0)).probabilities(raw)[0].argmax() == 1


def test_causes_share_the_belief_in_their_type() -> None:
    causes = dict.fromkeys(SLOW_CAUSES, 1 / len(SLOW_CAUSES))
    types = dict(zip(STRAGGLER_TYPES, (0.5, 0.2, 0.15, 0.1, 0.05), strict=True))
    together = combine(types, causes)
    for straggler_type, belief in types.items():
        members = [chance for cause, chance in together.items() if CAUSES[cause].type == straggler_type]
        assert sum(members) == pytest.approx(belief)
    assert list(together.values()) == sorted(together.values(), reverse=True)


def test_a_type_that_is_ruled_out_rules_out_its_causes() -> None:
    causes = {name: 0.9 if name == "gpu_throttling" else 0.01 for name in SLOW_CAUSES}
    types = dict.fromkeys(STRAGGLER_TYPES, 0.0) | {"input": 1.0}
    together = combine(types, causes)
    assert together["gpu_throttling"] == 0.0
    assert sum(together[name] for name in SLOW_CAUSES if CAUSES[name].type == "input") == pytest.approx(1.0)


ENTRY = {"features": ["a", "b"], "classes": ["no", "yes"], "calibration": {"scale": 1.0, "shift": [0, 0]}}


@pytest.fixture(scope="module")
def text() -> str:
    lightgbm = pytest.importorskip("lightgbm")
    rows = np.random.default_rng(0).normal(size=(60, 2))
    parameters = {"objective": "binary", "verbosity": -1, "num_threads": 1, "min_data_in_leaf": 5}
    return lightgbm.train(parameters, lightgbm.Dataset(rows, rows[:, 0] > 0), 3).model_to_string()


def test_a_head_picks_its_columns_by_name(text: str) -> None:
    rows = np.random.default_rng(1).normal(size=(20, 2))
    straight = Head.load("h", ENTRY, text, ("a", "b")).probabilities(rows)
    swapped = Head.load("h", ENTRY, text, ("b", "a")).probabilities(rows[:, ::-1])
    assert np.array_equal(straight, swapped)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"features": ["a", "no_such"]}, "does not compute"),
        ({"features": ["a"]}, "2 features in the model"),
        ({"classes": ["a", "b", "c"]}, "1 scores for 3 classes"),
    ],
)
def test_a_head_that_contradicts_its_model_is_refused(text: str, change, complaint: str) -> None:
    with pytest.raises(BundleError, match=complaint):
        Head.load("h", ENTRY | change, text, ("a", "b"))
