"""The next check for a job that became slower on all ranks at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rca.diagnosis.slowdown import MIN_SEGMENT_RATIO, job_wide_check
from rca.features import WINDOW_FEATURES, FeatureSet, extract
from rca.high_segment import Segment

ALL = tuple(range(8))


def slower(make_window, steps: slice) -> FeatureSet:
    window = make_window(n_steps=60, late=dict.fromkeys(ALL, 0.1), steps=steps, phase="backward_seconds")
    return extract(window)


def test_when_and_how_much_is_told(make_window) -> None:
    answer = job_wide_check(slower(make_window, slice(30, None)))
    assert answer is not None
    assert answer.startswith("from step 30 on steps took 1.")
    assert "on all ranks alike" in answer


def test_what_is_over_has_an_end(make_window) -> None:
    answer = job_wide_check(slower(make_window, slice(20, 40)))
    assert answer is not None
    assert answer.startswith("in steps 20 to 39 steps took")


@pytest.mark.parametrize(("times", "wanted"), [(MIN_SEGMENT_RATIO, True), (MIN_SEGMENT_RATIO - 0.01, False)])
def test_a_little_longer_is_not_worth_asking(make_window, times: float, wanted: bool) -> None:
    features = extract(make_window(n_steps=60))
    window = features.window.copy()
    window[WINDOW_FEATURES.index("slow_segment_ratio")] = times
    window[WINDOW_FEATURES.index("slow_segment_contrast")] = times - 1.0
    window[WINDOW_FEATURES.index("lateness_growth")] = 0.0
    comparison = replace(features.comparison, segment=Segment(10, 29, 0.1, 20.0, False))
    answer = job_wide_check(replace(features, window=window, comparison=comparison))
    assert (answer is not None) == wanted


@pytest.mark.parametrize("by", [0.1, 0.3])
def test_one_late_rank_is_not_everybody(make_window, by: float) -> None:
    assert job_wide_check(extract(make_window(n_steps=60, late={3: by}, steps=slice(30, None)))) is None


def test_who_does_not_know_who_worked_does_not_say_everybody(make_window) -> None:
    features = slower(make_window, slice(30, None))
    assert job_wide_check(features) is not None
    unseen = replace(features.work, own=np.full(features.work.own.shape, np.nan))
    assert job_wide_check(replace(features, work=unseen)) is None
