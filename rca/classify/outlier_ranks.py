"""Outlier ranks of a job that looks slow as a whole.

Some symptoms belong to the job: garbage collection, checkpoints and slow collectives on all ranks. A job may
show them while one rank makes it slow. A rank is an outlier if it is nearly certain to straggle and the other
ranks are not suspected. Without it the last arrival would come clearly earlier. The job is a suspect as well
if a job-wide cause is likely, or if its steps are slower than the outliers explain.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.classify.decision_table import CERTAIN_STRAGGLER, JOB_CAUSE_CERTAIN, MAX_OUTLIER_SHARE, NOT_SUSPECTED
from rca.features import FeatureSet
from rca.robust import REFERENCE_QUANTILE, nan_max, nan_mean, nan_quantile

#: Least number of slow steps.
MIN_STEPS = 10
#: Without the outliers the last arrival comes earlier by at least this share of a step.
MIN_LATENESS_REMOVED = 0.03
#: Slowdown that the outliers do not explain and that makes the job a suspect, as a share of a step.
MIN_RESIDUAL_SLOWDOWN = 0.1
#: A job-wide cause that every job shows.
COMMON_JOB_CAUSE = "runtime_gc"


def outlier_ranks_of(per_rank: FloatArray, features: FeatureSet) -> BoolArray:
    """Ranks without which the job would be faster, shape (n_ranks,); all false if there is no outlier.

    Parameters
    ----------
    per_rank : ndarray of shape (n_ranks,)
        Straggler probability.
    features : FeatureSet
    """
    certain: BoolArray = per_rank.ravel() >= CERTAIN_STRAGGLER
    none = np.zeros(per_rank.size, dtype=bool)
    few = certain.any() and certain.mean() <= MAX_OUTLIER_SHARE and per_rank[~certain].max() <= NOT_SUSPECTED
    segment = features.comparison.segment
    # With uneven batches the same rank is sometimes last in a few steps by chance.
    if not few or segment.last - segment.first + 1 < MIN_STEPS:
        return none
    removed = _lateness_removed(certain, features)
    return certain if removed >= MIN_LATENESS_REMOVED * features.work.step_reference else none


def job_is_suspect(causes: Mapping[str, float], named: list[int], features: FeatureSet) -> bool:
    """Whether the job as a whole is a suspect next to its outlier ranks.

    Parameters
    ----------
    causes : mapping of cause to float
        Probabilities of the job's causes, the likeliest first.
    named : list of int
        The outlier ranks.
    features : FeatureSet
    """
    first = next(iter(causes), None)
    if first is not None and first != COMMON_JOB_CAUSE and causes[first] >= JOB_CAUSE_CERTAIN:
        return True
    outliers = np.isin(np.arange(features.topology.n_ranks), named)
    longer = _longer(features) - _lateness_removed(outliers, features, newly=True)
    return longer >= MIN_RESIDUAL_SLOWDOWN * features.work.step_reference


def _longer(features: FeatureSet) -> float:
    """Seconds by which the slow steps are longer than the others; if all are slow, than the quick ones."""
    step = features.work.job_step
    inside = features.comparison.segment.mask(step.size)
    others, share = (step, REFERENCE_QUANTILE) if inside.all() else (step[~inside], 0.5)
    usual = float(nan_quantile(others[:, None], share)[0])
    return float(nan_mean(step[inside][:, None])[0]) - min(usual, features.work.step_reference)


def _lateness_removed(outliers: BoolArray, features: FeatureSet, *, newly: bool = False) -> float:
    """Seconds per slow step by which the last rank arrives later than the last non-outlier.

    Ranks of a heavy stage are as late as their peers, so the stage is compared with the next slowest. With
    `newly`, its difference outside the slow segment is subtracted.
    """
    excess, stage = features.comparison.excess, features.topology.stage
    inside = features.comparison.segment.mask(excess.shape[1])
    if features.topology.n_stages > 1 and (stage[outliers] == stage[outliers][0]).all():
        heavy = int(stage[outliers][0])
        if outliers[stage == heavy].all():
            gain = features.comparison.gain_stage[heavy]
            always = float(np.median(gain[~inside])) if newly and not inside.all() else 0.0
            return float(nan_mean(gain[inside][:, None])[0]) - always
    last = np.maximum(nan_max(excess[:, inside]), 0.0)
    others = np.maximum(nan_max(excess[~outliers][:, inside]), 0.0)
    return float(nan_mean((last - others)[:, None])[0])
