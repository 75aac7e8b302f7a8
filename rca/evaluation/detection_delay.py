"""Detection delay: how many steps after its onset a fault is told from windows that end there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rca.arrays import FloatArray
from rca.evaluation.intervals import Estimate, bootstrap
from rca.evaluation.judged_rows import JudgedRow
from rca.evaluation.scores import onset_step
from rca.telemetry.labels import Label
from rca.telemetry.step_clock import StepClock
from rca.telemetry.window import Window

#: Steps before the onset that a window needs before an early alarm can be looked for.
MIN_STEPS_BEFORE = 8


def detection_delay(window: Window, label: Label, mode_of: Callable[[Window], str]) -> float:
    """Steps from the onset to the end of the first truncated window that tells the fault.

    The right failure mode tells it. In a healthy window, which should tell nothing at any length, steps are
    counted from its beginning to the first false alarm.

    Parameters
    ----------
    window : Window
    label : Label
    mode_of : callable
        Failure mode that a method answers to a window.

    Returns
    -------
    float
        0 if it was told before anything had happened, inf if even the whole window does not tell it,
        NaN where the label of a fault names no step.

    Notes
    -----
    Truncated at 1, 2, 4, ... steps after the onset, so a delay is exact within a factor of two, and a window
    costs at most ``log2(steps) + 2`` further diagnoses.
    """
    clock = StepClock.of(window)
    healthy = label.failure_mode == "healthy"
    onset = clock.first if healthy else onset_step(label)
    if onset is None:
        return math.nan

    def told(cut: Window) -> bool:
        return (mode_of(cut) == label.failure_mode) != healthy

    if onset - clock.first >= MIN_STEPS_BEFORE and told(clock.cut(onset)):
        return 0.0
    return next((float(delay) for delay, cut in _cuts(window, onset, clock) if told(cut)), math.inf)


def _cuts(window: Window, onset: int, clock: StepClock) -> Iterator[tuple[int, Window]]:
    """Windows that end ever later, with the steps from the onset to their end; the whole one last."""
    delay = 1
    while clock.ends(onset + delay) < window.job.end:
        # A fault may begin before the first step that is reported.
        if onset + delay > clock.first:
            yield delay, clock.cut(onset + delay)
        delay *= 2
    yield max(1, clock.steps_until_end(onset)), window


class DelaySummary(NamedTuple):
    """Delays of windows whose onset is known.

    Attributes
    ----------
    windows : int
    before_onset : int
        Told before anything had happened: right by chance, and left out of the median.
    never : int
        Not told by the whole window either; infinite in the median.
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
    """Median without averaging the middle two, of which one may be infinite."""
    return np.asarray(np.quantile(values, 0.5, axis=axis, method="inverted_cdf"))
