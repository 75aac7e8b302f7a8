"""Features of the counted input: growth, excess and correlation with step time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from rca.features import RANK_FEATURES, WINDOW_FEATURES, extract

LATER = np.arange(60) >= 30


def feature(window, name: str):
    """A feature of every rank, or of the window."""
    features = extract(window)
    if name in WINDOW_FEATURES:
        return features.window[WINDOW_FEATURES.index(name)]
    return features.rank[:, RANK_FEATURES.index(name)]


def counting(window, **columns: np.ndarray):
    """The window with load columns, each of shape (n_ranks, n_steps) or (n_steps,)."""
    steps = window.steps
    for name, values in columns.items():
        whole = np.broadcast_to(values, (window.job.world_size, LATER.size))
        steps = steps.append_column(name, pa.array(whole.ravel().astype(float)))
    return type(window).from_tables(window.job, steps)


@pytest.fixture
def slower(make_window):
    """All ranks' steps are half as long again from step 30 on."""
    return make_window(8, 60, late=dict.fromkeys(range(8), 0.055), steps=slice(30, None), noise=1e-5)


@pytest.mark.parametrize("name", ["samples", "tokens", "sum_squared_sequence_length"])
def test_load_growth_of_longer_steps_with_more_input(slower, name: str) -> None:
    counted = counting(slower, **{name: 1000 + 500 * LATER})
    assert feature(counted, "load_growth") == pytest.approx(0.5)
    assert feature(counted, "slow_segment_ratio_per_load") == pytest.approx(
        feature(slower, "slow_segment_ratio") / 1.5
    )
    assert feature(counted, "load_step_correlation") == pytest.approx(1.0, abs=0.01)


def test_load_growth_of_longer_steps_with_equal_input_is_zero(slower) -> None:
    counted = counting(slower, samples=np.full(60, 8))
    assert feature(counted, "load_growth") == 0.0
    assert feature(counted, "slow_segment_ratio_per_load") == feature(slower, "slow_segment_ratio")
    assert np.isnan(feature(counted, "load_step_correlation"))


def test_tokens_show_growth_that_samples_do_not(slower) -> None:
    counted = counting(slower, samples=np.full(60, 8), tokens=1000 + 500 * LATER)
    assert feature(counted, "load_growth") == pytest.approx(0.5)


def test_tokens_are_preferred_to_squared_lengths_for_growth(slower) -> None:
    counted = counting(slower, tokens=np.full(60, 8), sum_squared_sequence_length=10 + 30 * LATER)
    assert feature(counted, "load_growth") == 0.0


@pytest.mark.parametrize(
    "name", ["load_growth", "slow_segment_ratio_per_load", "load_step_correlation", "load_imbalance"]
)
def test_load_features_are_unknown_without_counts(slower, name: str) -> None:
    assert np.isnan(feature(slower, name))
    assert np.isnan(feature(slower, "load_excess")).all()


def test_load_growth_is_unknown_without_a_slow_segment(make_window) -> None:
    assert np.isnan(feature(counting(make_window(8, 60), samples=np.full(60, 8)), "load_growth"))


def test_load_excess_of_a_rank_with_more_input(make_window) -> None:
    each = np.ones((8, 60))
    each[5] = 1.4
    counted = counting(make_window(8, 60, late={5: 0.02}), tokens=1000 * each)
    assert feature(counted, "load_excess")[5] == pytest.approx(0.4)
    assert feature(counted, "load_excess")[4] == 0.0


def test_steps_without_input_have_no_time_per_input(slower) -> None:
    """An evaluation may count no input."""
    counted = counting(slower, samples=8 * ~LATER)
    assert feature(counted, "load_growth") == -1.0
    assert np.isnan(feature(counted, "slow_segment_ratio_per_load"))


def test_counts_of_zero_have_no_growth(slower) -> None:
    counted = counting(slower, samples=np.zeros(60))
    assert np.isnan(feature(counted, "load_growth"))
    assert np.isnan(feature(counted, "load_excess")).all()
