"""A lasting change of the step time, found on arrival: a cheap sign that a diagnosis is due.

The last steps are compared with those before them: most of them are longer, or some are much longer now and
then. A few slow steps together, such as an evaluation or a checkpoint, are no change. A false sign costs one
diagnosis; the diagnosis decides about an alarm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rca.arrays import FloatArray, IntArray
from rca.robust import nan_median
from rca.window.times.phases import PhaseArrays

#: Steps before the last ones that they are compared with.
MIN_REFERENCE_STEPS = 24
MAX_REFERENCE_STEPS = 240
#: First steps of a job are warm-up.
WARM_UP_STEPS = 5
#: Steps above this quantile of the reference count as slow.
REFERENCE_QUANTILE = 0.9
#: A change is seen when so many of the last steps are slow, and longer by this factor in the median.
#: Large changes are seen after fewer steps.
LOOKS: tuple[tuple[int, int, float], ...] = ((6, 6, 1.1), (12, 10, 1.04))
#: Much longer steps now and then are a change: of so many last steps,
RARE_STEPS = 16
#: the first and the last of them, which no burst of long steps reaches both, are this many.
RARE_END_STEPS = 6
#: The mean of each end grows by this factor,
RARE_FACTOR = 1.25
#: and so many times more than those of the reference ever did.
RARE_RATIO = 2.0
#: Distance of the onsets that are tried, steps.
ONSET_STRIDE = 4


@dataclass(frozen=True)
class StepTimeChange:
    """Steps became longer and stayed so until the end of the window.

    Attributes
    ----------
    step : int
        First long step.
    """

    step: int


def job_step_seconds(phases: PhaseArrays) -> tuple[IntArray, FloatArray]:
    """Time from the start of each step to the start of the next one, the ranks' median.

    Returns
    -------
    steps : ndarray of shape (n_steps,), int
    seconds : ndarray of shape (n_steps,)
        The last step has its own duration. NaN where no rank has both starts.
    """
    own = nan_median(phases.phase("step_seconds"))
    begin = phases.start_time
    pace = np.full(phases.steps.size, np.nan)
    if phases.steps.size > 1:
        pace[:-1] = nan_median(np.diff(begin, axis=1)) / np.diff(phases.steps)
    return phases.steps, np.where(np.isfinite(pace) & (pace > 0), pace, own)


def change_in(steps: IntArray, seconds: FloatArray) -> StepTimeChange | None:
    """The change that the last values of a series show.

    Parameters
    ----------
    steps : ndarray of shape (n_steps,), int
    seconds : ndarray of shape (n_steps,)
        NaN values are left out.
    """
    known = np.isfinite(seconds) & (steps >= WARM_UP_STEPS)
    steps, seconds = steps[known], seconds[known]
    for length, least, factor in LOOKS:
        if seconds.size < length + MIN_REFERENCE_STEPS:
            continue
        found = _change(steps, seconds, length, least, factor)
        if found is not None:
            return found
    return _rare_change(steps, seconds)


def _rare_change(steps: IntArray, seconds: FloatArray) -> StepTimeChange | None:
    if seconds.size < RARE_STEPS + MIN_REFERENCE_STEPS:
        return None
    spans = np.lib.stride_tricks.sliding_window_view(seconds, RARE_STEPS)
    means = np.minimum(spans[:, :RARE_END_STEPS].mean(axis=1), spans[:, -RARE_END_STEPS:].mean(axis=1))
    last = float(means[-1])
    # Nearly the factor: the median itself is compared below.
    lower = _counted(means * (RARE_FACTOR - 1e-9) <= last)
    for first in tried_onsets(seconds.size - RARE_STEPS, MIN_REFERENCE_STEPS, ONSET_STRIDE):
        begin, end = max(0, first - MAX_REFERENCE_STEPS), first - RARE_STEPS + 1
        if 2 * (lower[end] - lower[begin]) < end - begin:
            continue
        earlier = means[begin:end]
        usual = float(np.median(earlier))
        grown = min(last, float(seconds[first:].mean())) - usual
        if grown >= max((RARE_FACTOR - 1.0) * usual, RARE_RATIO * float(earlier.max() - usual)):
            excess = seconds[begin:] - usual
            # The reference may hold the first long step.
            onset = begin + int(np.argmax(excess > excess[-RARE_STEPS:].max() / 2))
            return StepTimeChange(int(steps[onset]))
    return None


def _change(
    steps: IntArray, seconds: FloatArray, length: int, least: int, factor: float
) -> StepTimeChange | None:
    last = float(np.median(seconds[-length:]))
    lower = _counted(factor * seconds <= last)
    # A change that began earlier must not be compared with itself, so earlier onsets are tried as well.
    for first in tried_onsets(seconds.size - length, MIN_REFERENCE_STEPS, ONSET_STRIDE):
        begin = max(0, first - MAX_REFERENCE_STEPS)
        if 2 * (lower[first] - lower[begin]) < first - begin:
            continue
        reference = seconds[begin:first]
        usual = float(np.median(reference))
        if last < factor * usual:
            continue
        slow = seconds[first:] > np.quantile(reference, REFERENCE_QUANTILE)
        if slow[-length:].sum() >= least and slow.mean() >= least / length:
            onset = first + int(np.argmax(slow))
            # The reference may hold the first long steps.
            while onset > 0 and seconds[onset - 1] > (usual + last) / 2:
                onset -= 1
            return StepTimeChange(int(steps[onset]))
    return None


def tried_onsets(latest: int, earliest: int, stride: int) -> list[int]:
    """Places from which a change may last to the end, the latest first, and always the earliest one.

    A short reference that begins a stride later may hold too many steps of the change.
    """
    found = list(range(latest, earliest, -stride))
    return [*found, earliest] if latest >= earliest else found


def _counted(wanted: NDArray[np.bool_]) -> list[int]:
    """How many are wanted before each place, and in all.

    A median is at most a limit only if half of its values are. To count them is much faster.
    """
    return [0, *np.cumsum(wanted).tolist()]
