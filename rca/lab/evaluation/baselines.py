"""Two published rules that find slow ranks by their times; they name no causes."""

from __future__ import annotations

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.lab.evaluation.answer import MethodAnswer
from rca.lab.evaluation.baseline_inputs import Observed
from rca.robust import MAD_TO_SIGMA, group_members, nan_median

#: Relative score below which a rank counts as a straggler.
RELATIVE_THRESHOLD = 0.75
#: Robust standard deviations below the cohort's median.
MAD_DEVIATIONS = 2.0


def relative_scores(time: FloatArray, cohort: IntArray) -> FloatArray:
    """Median time of a rank's peers over its own.

    Parameters
    ----------
    time : ndarray of shape (n_ranks,), seconds
        Median time of each rank; NaN where unknown.
    cohort : ndarray of shape (n_ranks,), int
        Ranks with the same number are peers.

    Returns
    -------
    ndarray of shape (n_ranks,), ratio
        1 = as fast as the peers, below 1 slower; NaN without a measured peer.

    References
    ----------
    NVIDIA Resiliency Extension, straggler detection: relative scores of section medians, straggler
    below 0.75. The reference here is the median of the other ranks.
    """
    score = np.full(time.shape, np.nan)
    for members in group_members(cohort):
        for position, rank in enumerate(members):
            others = nan_median(np.delete(time[members], position))
            if time[rank] > 0:
                score[rank] = others / time[rank]
    return score


def below_mad(speed: FloatArray, cohort: IntArray, deviations: float = MAD_DEVIATIONS) -> BoolArray:
    """Ranks with a speed below their cohort's ``median - deviations x 1.4826 x MAD``.

    Parameters
    ----------
    speed : ndarray of shape (n_ranks,), 1/seconds
        NaN is never below.
    cohort : ndarray of shape (n_ranks,), int

    References
    ----------
    Leys et al., "Detecting outliers: do not use standard deviation around the mean, use absolute
    deviation around the median", J. Exp. Soc. Psychology 49 (2013), with their factor 1.4826 for normal data.
    """
    below = np.zeros(speed.shape, dtype=bool)
    for members in group_members(cohort):
        middle = nan_median(speed[members])
        mad = nan_median(np.abs(speed[members] - middle))
        below[members] = speed[members] < middle - deviations * MAD_TO_SIGMA * mad
    return below


def relative_median(observed: Observed) -> MethodAnswer:
    """Blame ranks with a relative score below 0.75 in the slow segment."""
    return _blaming(relative_scores(_usual(observed), observed.stage) < RELATIVE_THRESHOLD)


def mad_per_cohort(observed: Observed) -> MethodAnswer:
    """Blame ranks with an outlying speed among their stage's ranks in the slow segment."""
    usual = _usual(observed)
    speed = np.divide(1.0, usual, out=np.full(usual.shape, np.nan), where=usual > 0)
    return _blaming(below_mad(speed, observed.stage))


def _usual(observed: Observed) -> FloatArray:
    """Median time per rank over the slow segment, shape (n_ranks,), seconds."""
    return nan_median(observed.time[:, observed.inside], axis=1)


def _blaming(slow: BoolArray) -> MethodAnswer:
    ranks = frozenset(int(rank) for rank in np.flatnonzero(slow))
    return MethodAnswer(mode="fail_slow" if ranks else "healthy", ranks=ranks, aspects=frozenset({"ranks"}))
