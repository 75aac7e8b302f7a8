"""Predicted step times: the regression where it helps, the usual step where it does not."""

from __future__ import annotations

import numpy as np
import pytest

from rca.errors import InvalidInput
from rca.runtime.star import prediction
from rca.runtime.star.prediction import (
    LOOK_BACK,
    Predictor,
    StepHistory,
    is_straggler,
    usual_seconds,
)

N_WORKERS, N_STEPS = 6, 160


def history(seed: int = 0, *, informative: bool = True) -> StepHistory:
    """Worker 2 has bursts of ten busy steps. Its processors are busy a step before it slows down."""
    draw = np.random.default_rng(seed)
    cpu = draw.uniform(0.2, 0.5, (N_WORKERS, N_STEPS))
    busy = (np.arange(N_STEPS) + draw.integers(20)) % 20 < 10
    cpu[2, busy] = 0.95
    late = np.roll(busy, 1)
    seconds = 0.1 * draw.lognormal(0, 0.02, (N_WORKERS, N_STEPS))
    seconds[2, late] *= 1.6
    if not informative:
        cpu = draw.uniform(0.2, 0.5, cpu.shape)
        seconds = 0.1 * draw.lognormal(0, 0.02, (N_WORKERS, N_STEPS))
    return StepHistory(seconds, cpu, draw.uniform(1, 2, cpu.shape))


@pytest.fixture(scope="module")
def fitted() -> Predictor:
    return Predictor(history())


def test_busy_processors_announce_a_straggler(fitted: Predictor) -> None:
    other = history(seed=1)
    steps = range(100, N_STEPS)
    predicted = [fitted.predict(other.until(step)) for step in steps]
    assert {each.method for each in predicted} == {"regression"}
    truth = [bool(is_straggler(other.seconds[:, step])[2]) for step in steps]
    found = [bool(each.stragglers[2]) for each in predicted]
    usual = [bool(is_straggler(usual_seconds(other.seconds[:, :step]))[2]) for step in steps]
    hits = np.mean(np.array(found) == truth)
    assert hits > 0.95
    # The median follows a burst when half of it is over.
    assert hits > np.mean(np.array(usual) == truth) + 0.15
    assert not any(each.stragglers[[0, 1, 3, 4, 5]].any() for each in predicted)


def test_the_errors_on_held_out_steps_are_reported(fitted: Predictor) -> None:
    assert fitted.errors is not None
    regression, usual = fitted.errors
    assert regression < 0.6 * usual


def test_without_information_no_straggler_is_predicted() -> None:
    pure = history(informative=False)
    found = Predictor(pure).predict(pure)
    assert not found.stragglers.any()
    assert found.seconds == pytest.approx(np.full(N_WORKERS, 0.1), rel=0.05)


def test_a_regression_that_is_worse_than_the_usual_step_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class Worse:
        def predict(self, rows: np.ndarray) -> np.ndarray:
            return np.ones(len(rows))

    monkeypatch.setattr(prediction, "_fitted", lambda rows, ratios: Worse())
    predictor = Predictor(history())
    assert predictor.errors is not None
    assert predictor.errors[0] > predictor.errors[1]
    assert predictor.predict(history()).method == "usual step"


def test_few_rows_give_the_usual_step(fitted: Predictor) -> None:
    few = history().until(40)
    found = Predictor(few)
    assert found.errors is None
    assert found.predict(few).method == "usual step"
    assert np.array_equal(found.predict(few).seconds, usual_seconds(few.seconds))
    assert fitted.predict(few.until(LOOK_BACK - 1)).method == "usual step"


def test_the_usual_step_follows_a_lasting_change_and_ignores_one_pause() -> None:
    seconds = np.full((3, 30), 0.1)
    seconds[0, -1] = 5.0
    seconds[1, -6:] = 0.3
    seconds[2, -10:] = np.nan
    assert usual_seconds(seconds).tolist() == [0.1, 0.3, 0.1]
    assert np.isnan(usual_seconds(np.full((1, 4), np.nan))).all()


def test_missing_measurements_do_not_stop_the_regression() -> None:
    gaps = history()
    draw = np.random.default_rng(5)
    for values in (gaps.seconds, gaps.cpu, gaps.bandwidth):
        values[draw.random(values.shape) < 0.1] = np.nan
    found = Predictor(gaps).predict(gaps)
    assert found.method == "regression"
    assert np.isfinite(found.seconds).all()
    assert (found.seconds > 0).all()


def test_predictions_are_the_same_each_time(fitted: Predictor) -> None:
    again = Predictor(history())
    assert np.array_equal(again.predict(history()).seconds, fitted.predict(history()).seconds)


def test_a_straggler_is_more_than_a_fifth_slower_than_the_fastest() -> None:
    assert is_straggler(np.array([1.0, 1.2, 1.25, np.nan])).tolist() == [False, False, True, False]
    assert is_straggler(np.array([1.0, 1.2]), share=0.1).tolist() == [False, True]
    for wrong in ([np.nan], [], [0.0, 1.0]):
        with pytest.raises(InvalidInput, match="step time"):
            is_straggler(np.array(wrong))


@pytest.mark.parametrize(
    ("seconds", "cpu", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 4)), "shapes"),
        (np.ones(3), np.ones(3), "shapes"),
        (np.array([[1.0, np.nan], [np.nan, np.nan]]), np.ones((2, 2)), "worker 1 has no measured step"),
        (np.array([[1.0, -1.0]]), np.ones((1, 2)), "not positive"),
    ],
)
def test_bad_input_is_refused(seconds: np.ndarray, cpu: np.ndarray, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        StepHistory(seconds, cpu, seconds)
