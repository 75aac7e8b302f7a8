"""When each step of a window ended, and windows cut at steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rca.arrays import FloatArray, IntArray
from rca.robust import nan_median
from rca.window.times.phases import PhaseArrays
from rca.window.window import Window


class StepClock:
    """When each step of a window ended: all tables can be cut at one moment.

    Parameters
    ----------
    steps : ndarray of shape (n_steps,), int64
    begin : ndarray of shape (n_steps,), Unix seconds
        The ranks' median start of each step.
    usual : float, seconds
        Median step. Time after a stop is counted in steps of this length.
    """

    def __init__(self, window: Window, steps: IntArray, begin: FloatArray, usual: float) -> None:
        self.window, self.steps, self.begin, self.usual = window, steps, begin, usual

    @classmethod
    def of(cls, window: Window) -> StepClock:
        """Read the clock from a window's steps."""
        phases = PhaseArrays.from_window(window, only=("step_seconds",))
        usual = nan_median(nan_median(phases.phase("step_seconds"))[None, :], axis=1)[0]
        begin = nan_median(phases.start_time)
        known = np.isfinite(begin)
        return cls(window, phases.steps[known], begin[known], float(usual) if usual > 0 else 1.0)

    @property
    def first(self) -> int:
        """Number of the first step."""
        return int(self.steps[0])

    def ends(self, before: int) -> float:
        """Time at which all steps numbered below `before` are over, Unix seconds."""
        position = int(np.searchsorted(self.steps, before))
        if position < self.steps.size:
            return float(self.begin[position])
        return float(self.begin[-1]) + self.usual * (before - int(self.steps[-1]))

    def steps_until_end(self, onset: int) -> int:
        """Steps between the onset and the window's end; after the last step at the usual pace."""
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

    def between(self, first: int, end: int) -> Window:
        """The steps from `first` up to, not including, `end`, with the samples of that time.

        Samples before the window's first step belong to it, and samples after its last step to that one.
        """
        window = self.window
        begin = window.job.start if first <= self.first else self.ends(first)
        finish = window.job.end if end > int(self.steps[-1]) else self.ends(end)
        step = window.steps.column("step")
        inside = pc.and_(
            pc.greater_equal(step, pa.scalar(first, pa.int64())), pc.less(step, pa.scalar(end, pa.int64()))
        )
        return replace(
            window,
            job=window.job.model_copy(update={"start": begin, "end": finish}),
            steps=window.steps.filter(inside),
            metrics=sampled_within(window.metrics, begin, finish),
            events=sampled_within(window.events, begin, finish),
            ops=window.ops.slice(0, 0),
        )


def sampled_within(table: pa.Table, begin: float, end: float) -> pa.Table:
    """Rows of a metrics or events table from `begin` up to, not including, `end` (Unix seconds)."""
    if not table.num_rows:
        return table
    time = table.column("time")
    return table.filter(pc.and_(pc.greater_equal(time, begin), pc.less(time, end)))
