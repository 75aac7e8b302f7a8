"""Outlier steps: one long step is no straggler, so a verdict has to hold without the few worst steps.

A file server hangs, a page is read back, a log is flushed. One step of a healthy job may then take a hundred
times the usual. The mean step is longer and a rank was late in it, but no rank is a straggler.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.classify.decision_table import EVENT_SHARE, LASTING_STEPS, OUTLYING, OUTLYING_NOISE
from rca.features import FeatureSet
from rca.robust import MAD_TO_SIGMA, nan_max, nan_median

#: Planned work of the job. Where it explains two or more long steps, they are no single events.
PLANNED_PHASES = ("checkpoint_seconds", "gc_seconds")


def single_events(features: FeatureSet) -> BoolArray | None:
    """The few outlier steps, bool of shape (n_steps,); None if there are none, or too many.

    Parameters
    ----------
    features : FeatureSet
    """
    work = features.work
    if not np.isfinite(work.step_reference):
        return None
    height = _height(features)
    spread = MAD_TO_SIGMA * float(np.median(np.abs(height)))
    outlying = height > max(OUTLYING * work.step_reference, OUTLYING_NOISE * spread)
    begins, ends = runs(outlying)
    allowed = max(1, ceil(EVENT_SHARE * height.size))
    if not 0 < begins.size <= allowed or (ends - begins).max() >= LASTING_STEPS:
        return None
    if begins.size > 1 and _planned(features, outlying):
        return None
    return outlying


def runs(marked: BoolArray) -> tuple[IntArray, ...]:
    """First and past-the-last index of every run of marked steps."""
    edges = np.diff(np.concatenate([[0], marked.astype(np.int8), [0]]))
    return np.flatnonzero(edges > 0), np.flatnonzero(edges < 0)


def _height(features: FeatureSet) -> FloatArray:
    """How far each step, or the lateness of its last rank, is above the median, shape (n_steps,), seconds.

    Work after the collective delays the other ranks in the next step only. In its own step it shows as
    lateness alone.
    """
    found = np.zeros(features.work.steps.size)
    for series in (features.work.job_step, nan_max(features.comparison.excess)):
        above = series - nan_median(series[None, :], axis=1)[0]
        found = np.fmax(found, above)
    return found


def _planned(features: FeatureSet, outlying: BoolArray) -> bool:
    """Whether planned work explains most of the extra time of the outlier steps."""
    planned = [features.work.phases[name] for name in PLANNED_PHASES if name in features.work.phases]
    spent = sum((np.nan_to_num(nan_max(each[:, outlying])).sum() for each in planned), 0.0)
    return bool(spent >= 0.5 * _height(features)[outlying].sum())
