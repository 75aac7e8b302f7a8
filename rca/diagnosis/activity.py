"""Whether a device is as busy as its own computing makes it, or busier.

Peers of a slow rank wait, so its multiprocessors are active for longer than theirs whatever slowed it. Only
somebody else's work keeps them busier than the time that the rank itself computes.
"""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.features import FeatureSet
from rca.features.comparison import stretch_mean
from rca.robust import nan_median

ACTIVE = "sm_active"
#: Phases in which a rank's device works for itself.
COMPUTE_PHASES = ("forward_seconds", "backward_seconds", "optimizer_seconds")
#: Of ranks that compute less than this share of the step, activity tells nothing.
LEAST_DUTY = 0.05


def activity_per_compute(features: FeatureSet) -> FloatArray:
    """Activity over the share of the slow stretch spent computing, relative to the job's median rank.

    Returns
    -------
    ndarray of shape (n_ranks,), ratio
        NaN where either was not measured.
    """
    work, active = features.work, features.evidence.values.get(ACTIVE)
    phases = [work.phases[name] for name in COMPUTE_PHASES if name in work.phases]
    if active is None or not phases:
        return np.full(work.own.shape[0], np.nan)
    inside = features.comparison.segment.mask(work.steps.size)
    computing = np.nansum(phases, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        duty = stretch_mean(computing, inside) / stretch_mean(work.step, inside)
        per_compute = np.where(duty > LEAST_DUTY, active / duty, np.nan)
        usual = float(nan_median(per_compute[None, :], axis=1)[0])
        return np.where(usual > 0, per_compute / usual, np.nan)
