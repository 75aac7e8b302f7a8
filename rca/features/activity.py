"""Whether a device is as busy as its own computing makes it, or busier.

Peers of a slow rank wait, so its multiprocessors are active for longer than theirs whatever slowed it. Only
somebody else's work keeps them busier than the time that the rank itself computes.
"""

from __future__ import annotations

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.features.comparison import segment_mean
from rca.features.evidence import Evidence
from rca.features.work import Work
from rca.robust import nan_median

ACTIVE = "sm_active"
#: Phases in which a rank's device works for itself.
COMPUTE_PHASES = ("forward_seconds", "backward_seconds", "optimizer_seconds")
#: Of ranks that compute less than this share of the step, activity tells nothing.
LEAST_DUTY = 0.05
#: Times the usual; more says nothing new.
MOST_ACTIVE = 4.0


def activity_per_compute(work: Work, evidence: Evidence, inside: BoolArray) -> FloatArray:
    """Activity over the share of the slow stretch spent computing, relative to the job's median rank.

    Parameters
    ----------
    work : Work
    evidence : Evidence
    inside : ndarray of shape (n_steps,)
        The slow stretch.

    Returns
    -------
    ndarray of shape (n_ranks,), ratio
        NaN where either was not measured.
    """
    active = evidence.values.get(ACTIVE)
    phases = [work.phases[name] for name in COMPUTE_PHASES if name in work.phases]
    if active is None or not phases:
        return np.full(work.own.shape[0], np.nan)
    computing = np.nansum(phases, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        duty = segment_mean(computing, inside) / segment_mean(work.step, inside)
        per_compute = np.where(duty > LEAST_DUTY, active / duty, np.nan)
        usual = nan_median(per_compute[None, :], axis=1)[0]
        return np.where(usual > 0, np.minimum(per_compute / usual, MOST_ACTIVE), np.nan)
