"""From where on a rank is late in a step, and for how much one step counts."""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.robust import MAD_TO_SIGMA, nan_max, nan_median

#: A rank is late in a step when it is above its peers by this share of the step and by this much noise.
LATE_SHARE = 0.03
LATE_NOISE = 4.0
#: No step counts for more than this share of the usual step.
CAP = 0.3


def healthy_spread(excess: FloatArray) -> float:
    """Robust spread of the excess of ranks most of which are healthy, seconds."""
    return float(MAD_TO_SIGMA * nan_median(np.abs(excess).ravel()[:, None])[0])


def late_from(usual: float, noise: float) -> float:
    """Excess above which a rank is late in a step, seconds; infinite where there is no usual step."""
    return max(LATE_SHARE * usual, LATE_NOISE * noise) if np.isfinite(usual) else np.inf


def capped(excess: FloatArray, usual: float) -> FloatArray:
    """Excess of no more than `CAP` of the usual step either way, seconds; NaN stays."""
    result: FloatArray = np.clip(excess, -CAP * usual, CAP * usual)
    return result


def capped_lateness(excess: FloatArray, usual: float) -> FloatArray:
    """How late whoever comes last is, up to `CAP` of the usual step; shape (n_steps,), seconds.

    Parameters
    ----------
    excess : ndarray of shape (n_ranks, n_steps), seconds
    usual : float, seconds
    """
    lateness: FloatArray = np.clip(nan_max(excess), 0.0, CAP * usual)
    return lateness
