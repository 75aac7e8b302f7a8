"""A lasting change of the step time is seen soon, and a passing one is not."""

from __future__ import annotations

import numpy as np
import pytest

from rca.arrays import FloatArray
from rca.features.step_time_change import change_in
from tests.for_each import for_each

ONSET = 150


def series(seed: int, n_steps: int = 400) -> FloatArray:
    """Step times with a heavy upper tail and a slow drift, as a busy cluster has."""
    draw = np.random.default_rng(seed)
    drift = 2e-4 * draw.standard_normal(n_steps).cumsum()
    times: FloatArray = 1.0 + drift + 0.03 * np.abs(draw.standard_normal(n_steps))
    return times


def first_seen(seconds: FloatArray, first: int = 40) -> int | None:
    steps = np.arange(seconds.size)
    ends = range(first, seconds.size + 1)
    return next((end for end in ends if change_in(steps[:end], seconds[:end]) is not None), None)


@for_each("factor", [1.1, 1.3, 3.0])
@for_each("seed", range(5))
def test_a_change_is_seen_within_twenty_steps(factor: float, seed: int) -> None:
    seconds = series(seed)
    seconds[ONSET:] *= factor
    seen = first_seen(seconds, ONSET - 5)
    assert seen is not None
    assert ONSET < seen <= ONSET + 20
    found = change_in(np.arange(seen), seconds[:seen])
    assert found is not None
    assert found.step == pytest.approx(ONSET, abs=8)


@for_each("seed", range(20))
def test_noise_is_no_change(seed: int) -> None:
    seconds = series(seed)
    for end in range(40, 400, 12):
        assert change_in(np.arange(end), seconds[:end]) is None


@pytest.mark.parametrize("length", [1, 3, 5])
def test_a_few_long_steps_are_no_change(length: int) -> None:
    seconds = series(0)
    for begin in range(60, 380, 50):
        seconds[begin : begin + length] *= 4.0
    for end in range(60, 400, 3):
        assert change_in(np.arange(end), seconds[:end]) is None


@for_each("every", [4, 8, 11])
def test_much_longer_steps_now_and_then_are_seen_soon(every: int) -> None:
    seconds = series(0)
    seconds[ONSET::every] += 7.0
    seen = first_seen(seconds, ONSET - 5)
    assert seen is not None
    assert seen <= ONSET + 20
    found = change_in(np.arange(seen), seconds[:seen])
    assert found is not None
    assert found.step == ONSET


@for_each("case", [(1.3, 7), (1.15, 7)])
@for_each("seed", range(5))
def test_a_clear_change_is_seen_after_a_few_steps(case: tuple[float, int], seed: int) -> None:
    factor, within = case
    seconds = series(seed)
    seconds[ONSET:] *= factor
    seen = first_seen(seconds, ONSET - 5)
    assert seen is not None
    assert seen <= ONSET + within


def test_a_faster_job_is_no_change() -> None:
    seconds = series(0)
    seconds[ONSET:] *= 0.7
    assert first_seen(seconds, 380) is None


def test_warm_up_is_no_reference() -> None:
    seconds = series(0)
    seconds[:5] *= 20.0
    assert first_seen(seconds, 380) is None


def test_a_change_is_still_seen_long_after_its_onset() -> None:
    seconds = series(0)
    seconds[ONSET:] *= 1.5
    found = change_in(np.arange(300), seconds[:300])
    assert found is not None
    assert found.step == pytest.approx(ONSET, abs=8)


@for_each("seed", range(5))
def test_a_change_early_in_a_job_stays_seen(seed: int) -> None:
    seconds = series(seed, 80)
    seconds[30:] *= 1.3
    seen = [end for end in range(30, 81) if change_in(np.arange(end), seconds[:end]) is not None]
    assert seen == list(range(seen[0], 81))
    assert seen[0] <= 36


def test_values_that_are_not_known_are_left_out() -> None:
    seconds = series(0)
    seconds[ONSET:] *= 1.3
    seconds[::7] = np.nan
    found = change_in(np.arange(ONSET + 25), seconds[: ONSET + 25])
    assert found is not None
