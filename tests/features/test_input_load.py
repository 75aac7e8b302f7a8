"""Whether longer steps had more input, as trainers count it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from rca.features import RANK_FEATURES, WINDOW_FEATURES, extract

LATER = np.arange(60) >= 30


def told(window, name: str):
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
def test_more_input_in_longer_steps_is_told(slower, name: str) -> None:
    counted = counting(slower, **{name: 1000 + 500 * LATER})
    assert told(counted, "load_growth") == pytest.approx(0.5)
    assert told(counted, "slow_segment_ratio_per_load") == pytest.approx(
        told(slower, "slow_segment_ratio") / 1.5
    )
    assert told(counted, "load_step_correlation") == pytest.approx(1.0, abs=0.01)


def test_as_much_input_in_longer_steps_is_told_as_well(slower) -> None:
    counted = counting(slower, samples=np.full(60, 8))
    assert told(counted, "load_growth") == 0.0
    assert told(counted, "slow_segment_ratio_per_load") == told(slower, "slow_segment_ratio")
    assert np.isnan(told(counted, "load_step_correlation"))


def test_as_many_samples_may_be_longer(slower) -> None:
    counted = counting(slower, samples=np.full(60, 8), tokens=1000 + 500 * LATER)
    assert told(counted, "load_growth") == pytest.approx(0.5)


def test_squares_do_not_hide_what_the_others_tell(slower) -> None:
    counted = counting(slower, tokens=np.full(60, 8), sum_squared_sequence_length=10 + 30 * LATER)
    assert told(counted, "load_growth") == 0.0


@pytest.mark.parametrize(
    "name", ["load_growth", "slow_segment_ratio_per_load", "load_step_correlation", "load_imbalance"]
)
def test_where_nobody_counts_nothing_is_known(slower, name: str) -> None:
    assert np.isnan(told(slower, name))
    assert np.isnan(told(slower, "load_excess")).all()


def test_one_stretch_has_nothing_to_grow_from(make_window) -> None:
    assert np.isnan(told(counting(make_window(8, 60), samples=np.full(60, 8)), "load_growth"))


def test_who_has_more_input_than_the_others(make_window) -> None:
    each = np.ones((8, 60))
    each[5] = 1.4
    counted = counting(make_window(8, 60, late={5: 0.02}), tokens=1000 * each)
    assert told(counted, "load_excess")[5] == pytest.approx(0.4)
    assert told(counted, "load_excess")[4] == 0.0


def test_steps_that_count_nothing_have_no_pace(slower) -> None:
    """As where a job evaluates from some step on."""
    counted = counting(slower, samples=8 * ~LATER)
    assert told(counted, "load_growth") == -1.0
    assert np.isnan(told(counted, "slow_segment_ratio_per_load"))


def test_nothing_counted_at_all_is_no_growth(slower) -> None:
    counted = counting(slower, samples=np.zeros(60))
    assert np.isnan(told(counted, "load_growth"))
    assert np.isnan(told(counted, "load_excess")).all()
