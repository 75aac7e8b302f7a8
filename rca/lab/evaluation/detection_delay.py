"""Detection delay: steps from the onset of a fault to the end of the first window that shows it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rca.arrays import FloatArray
from rca.lab.evaluation.intervals import Estimate, bootstrap
from rca.lab.evaluation.judged_rows import JudgedRow
from rca.lab.evaluation.scores import onset_step
from rca.sources.labels import WindowLabel
from rca.window.times.step_clock import StepClock
from rca.window.window import Window

#: Steps before the onset that a test for an early alarm needs.
MIN_STEPS_BEFORE = 8


def detection_delay(window: Window, label: WindowLabel, mode_of: Callable[[Window], str]) -> float:
    """Steps from the onset to the end of the first truncated window with the right failure mode.

    In a healthy window the steps are counted from its beginning to the first false alarm.

    Parameters
    ----------
    mode_of : callable
        Failure mode of a window by a method.

    Returns
    -------
    float
        0 if it is detected before the onset, inf if the whole window does not show it, NaN if the label
        of a fault names no step.

    Notes
    -----
    Windows are truncated at 1, 2, 4, ... steps after the onset. A delay is exact within a factor of 2, and a
    window needs at most ``log2(steps) + 2`` more diagnoses.
    """
    clock = StepClock.of(window)
    healthy = label.failure_mode == "healthy"
    onset = clock.first if healthy else onset_step(label)
    if onset is None:
        return math.nan

    def detected(cut: Window) -> bool:
        return (mode_of(cut) == label.failure_mode) != healthy

    if onset - clock.first >= MIN_STEPS_BEFORE and detected(clock.cut(onset)):
        return 0.0
    return next((float(delay) for delay, cut in _cuts(window, onset, clock) if detected(cut)), math.inf)


def _cuts(window: Window, onset: int, clock: StepClock) -> Iterator[tuple[int, Window]]:
    """Windows of growing length, with the steps from the onset to their end; the whole one is last."""
    delay = 1
    while clock.ends(onset + delay) < window.job.end:
        # A fault may begin before the first step that is reported.
        if onset + delay > clock.first:
            yield delay, clock.cut(onset + delay)
        delay *= 2
    yield max(1, clock.steps_until_end(onset)), window


class DelaySummary(NamedTuple):
    """Delays of windows with a known onset.

    Attributes
    ----------
    before_onset : int
        Detected before the onset, which is chance; left out of the median.
    never : int
        Not detected in the whole window; infinite in the median.
    median : Estimate
        Steps after the onset.
    """

    windows: int
    before_onset: int
    never: int
    median: Estimate


def delay_summary(rows: Sequence[JudgedRow], seed: int = 0) -> DelaySummary:
    """Summarise the rows that have a delay."""
    delays = np.array([row.delay_steps for row in rows], dtype=float)
    known = delays[~np.isnan(delays)]
    after = known[known > 0]
    return DelaySummary(
        windows=int(known.size),
        before_onset=int((known == 0).sum()),
        never=int(np.isinf(known).sum()),
        median=bootstrap(after, np.random.default_rng(seed), _lower_median),
    )


def _lower_median(values: FloatArray, axis: int = 0) -> FloatArray:
    """Median without a mean of the two middle values, because one of them may be infinite."""
    return np.asarray(np.quantile(values, 0.5, axis=axis, method="inverted_cdf"))
