"""Inputs of the baselines: own work, phases and binned channels of one window, as plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.features.comparison import Comparison
from rca.features.work import Work
from rca.robust import nan_median
from rca.window.signals.signal_arrays import SignalArrays
from rca.window.times.hidden_waits import without_hidden_waits
from rca.window.times.phases import PhaseArrays
from rca.window.window import Window

#: Time bins of a window's channels: fine enough for a slow segment, coarse enough for slow exporters.
N_BINS = 48


@dataclass(frozen=True)
class Observed:
    """Arrays of one window; warm-up steps are left out.

    Attributes
    ----------
    time : ndarray of shape (n_ranks, n_steps), seconds
        Own work (the step without communication), or whole steps without phase timings.
    stage : ndarray of shape (n_ranks,), int
        Pipeline stage: ranks of one stage do the same work.
    phases : mapping of str to ndarray of shape (n_ranks, n_steps), seconds
        Measured own phases, ``wait`` and ``transfer``.
    inside : ndarray of shape (n_steps,), bool
        The slow segment; all steps if there is none.
    channels : mapping of str to ndarray of shape (n_ranks, n_bins)
        In the channel's unit; NaN if unknown.
    bins_inside : ndarray of shape (n_bins,), bool
    segment_found : bool
        Whether there is a slow segment.
    """

    time: FloatArray
    stage: IntArray
    phases: Mapping[str, FloatArray]
    inside: BoolArray
    channels: Mapping[str, FloatArray]
    bins_inside: BoolArray
    segment_found: bool

    @classmethod
    def from_window(cls, window: Window) -> Observed:
        """Compute the arrays of a validated window.

        Hidden waiting is removed and the slow segment is found as in the product, so that a baseline has no
        disadvantage by them.
        """
        topology = window.job.topology
        phases = without_hidden_waits(PhaseArrays.from_window(window), topology)
        work = Work.from_phases(phases, topology)
        segment = Comparison.from_work(work, topology).segment
        begin, finish = nan_median(work.start), nan_median(work.start + work.step)
        edges = _edges(begin, finish, window)
        middle = (edges[:-1] + edges[1:]) / 2
        whole = segment.whole
        informative = np.isfinite(work.own).any()
        return cls(
            time=work.own if informative else work.step,
            stage=topology.stage,
            phases={**work.phases, "wait": work.wait, "transfer": work.transfer},
            inside=segment.mask(work.steps.size),
            channels=SignalArrays.from_window(window, edges).values,
            bins_inside=np.full(middle.size, whole)
            | ((middle >= begin[segment.first]) & (middle <= finish[segment.last])),
            segment_found=not whole,
        )


def _edges(begin: FloatArray, finish: FloatArray, window: Window) -> FloatArray:
    """Equal time bins over the steps used, Unix seconds."""
    known = begin[np.isfinite(begin)]
    start = float(known[0]) if known.size else window.job.start
    ends = finish[np.isfinite(finish)]
    end = float(ends[-1]) if ends.size else window.job.end
    return np.linspace(start, end if end > start else start + 1.0, N_BINS + 1)
