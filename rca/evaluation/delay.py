"""Detection delay: how many steps after its onset a fault is told from windows that end there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rca.evaluation.intervals import Estimate, bootstrap
from rca.evaluation.rows import JudgedRow
from rca.robust import FloatArray, IntArray, nan_median
from rca.telemetry.labels import Label
from rca.telemetry.phases import PhaseArrays
from rca.telemetry.window import Window

#: Steps before the onset that a window needs before an early alarm can be looked for.
MIN_STEPS_BEFORE = 8


def onset_step(label: Label) -> int | None:
    """First step in which any labelled cause acts; None where no label says."""
    return min((cause.first_step for cause in label.causes if cause.first_step is not None), default=None)


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
        yield delay, clock.cut(onset + delay)
        delay *= 2
    yield max(1, clock.steps_until_end(onset)), window


class StepClock:
    """When each step of a window ended, so that all its tables can be cut at one moment.

    Parameters
    ----------
    window : Window
    steps : ndarray of shape (n_steps,), int64
    begin : ndarray of shape (n_steps,), Unix seconds
        The ranks' median start of each step.
    usual : float, seconds
        Median step; time goes on at this pace where a stopped job has no steps.
    """

    def __init__(self, window: Window, steps: IntArray, begin: FloatArray, usual: float) -> None:
        self.window, self.steps, self.begin, self.usual = window, steps, begin, usual

    @classmethod
    def of(cls, window: Window) -> StepClock:
        """Read the clock from a window's steps."""
        phases = PhaseArrays.from_window(window)
        usual = nan_median(nan_median(phases.phase("step_seconds"))[None, :], axis=1)[0]
        begin = nan_median(phases.start_time)
        known = np.isfinite(begin)
        return cls(window, phases.steps[known], begin[known], float(usual) if usual > 0 else 1.0)

    @property
    def first(self) -> int:
        """Number of the first step."""
        return int(self.steps[0])

    def ends(self, before: int) -> float:
        """Moment at which all steps numbered below `before` are over, Unix seconds."""
        position = int(np.searchsorted(self.steps, before))
        if position < self.steps.size:
            return float(self.begin[position])
        return float(self.begin[-1]) + self.usual * (before - int(self.steps[-1]))

    def steps_until_end(self, onset: int) -> int:
        """Steps, real or at the usual pace, between the onset and the window's end."""
        rest = (self.window.job.end - float(self.begin[-1])) / self.usual
        return int(np.ceil(int(self.steps[-1]) + rest - onset))

    def cut(self, before: int) -> Window:
        """The window as it was when the steps numbered below `before` were over."""
        window, moment = self.window, self.ends(before)
        past = pc.less(window.steps.column("step"), pa.scalar(before, pa.int64()))
        return replace(
            window,
            job=window.job.model_copy(update={"end": min(moment, window.job.end)}),
            steps=window.steps.filter(past),
            metrics=sampled_within(window.metrics, -np.inf, moment),
            events=sampled_within(window.events, -np.inf, moment),
            ops=window.ops.slice(0, 0),
        )


def sampled_within(table: pa.Table, begin: float, end: float) -> pa.Table:
    """Rows of a metrics or events table from `begin` up to, not including, `end` (Unix seconds)."""
    if not table.num_rows:
        return table
    time = table.column("time")
    return table.filter(pc.and_(pc.greater_equal(time, begin), pc.less(time, end)))


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
