"""Ranks that stand out of a job that looks slow as a whole.

Some symptoms belong to jobs: everybody collects garbage, everybody writes checkpoints, collectives are slow
for all. A job may show them while it is one rank that makes it slow. Who is nearly certain to straggle, while
nobody else is suspected, and without whom the last arrival would come clearly earlier, is to blame whatever
the job looks like; the job is as well if a cause of its own is likely, or its steps take longer than that.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.features import FeatureSet
from rca.robust import REFERENCE_QUANTILE, nan_max, nan_mean, nan_quantile

#: Straggler probability of who stands out, at least, and of everybody else, at most.
CERTAIN_STRAGGLER, NOT_SUSPECTED = 0.9, 0.1
#: Most ranks cannot stand out.
MAX_OUTLIER_SHARE = 0.5
#: Slow steps, at least.
MIN_STEPS = 10
#: Without them the last arrival comes earlier by this share of a step.
MIN_LATENESS_REMOVED = 0.03
#: What slow steps take beyond the quick ones, and beyond what is gained, is the job's: a share of a step.
MIN_RESIDUAL_SLOWDOWN = 0.1
#: A cause of the job that is believed in like this stands beside theirs, but for one that every job shows.
JOB_CAUSE_CERTAIN, COMMON_JOB_CAUSE = 0.75, "runtime_gc"


def outlier_ranks_of(per_rank: FloatArray, features: FeatureSet) -> BoolArray:
    """Ranks without whom the job would be quicker, shape (n_ranks,); all false where nobody stands out.

    Parameters
    ----------
    per_rank : ndarray of shape (n_ranks,)
        Straggler probability.
    features : FeatureSet
    """
    certain: BoolArray = per_rank.ravel() >= CERTAIN_STRAGGLER
    nobody = np.zeros(per_rank.size, dtype=bool)
    few = certain.any() and certain.mean() <= MAX_OUTLIER_SHARE and per_rank[~certain].max() <= NOT_SUSPECTED
    segment = features.comparison.segment
    # Uneven batches make the same one the last in a few steps, now and then.
    if not few or segment.last - segment.first + 1 < MIN_STEPS:
        return nobody
    removed = _lateness_removed(certain, features)
    return certain if removed >= MIN_LATENESS_REMOVED * features.work.step_reference else nobody


def job_is_suspect(causes: Mapping[str, float], named: list[int], features: FeatureSet) -> bool:
    """Whether the job as a whole is suspected beside who stands out of it.

    Parameters
    ----------
    causes : mapping of cause to float
        Beliefs about the job, the likeliest first.
    named : list of int
        Who stands out.
    features : FeatureSet
    """
    first = next(iter(causes), None)
    if first is not None and first != COMMON_JOB_CAUSE and causes[first] >= JOB_CAUSE_CERTAIN:
        return True
    standing = np.isin(np.arange(features.topology.n_ranks), named)
    longer = _longer(features) - _lateness_removed(standing, features, newly=True)
    return longer >= MIN_RESIDUAL_SLOWDOWN * features.work.step_reference


def _longer(features: FeatureSet) -> float:
    """Seconds that the slow steps take beyond the others; where all are slow, beyond the quick ones."""
    step = features.work.job_step
    inside = features.comparison.segment.mask(step.size)
    others, share = (step, REFERENCE_QUANTILE) if inside.all() else (step[~inside], 0.5)
    usual = float(nan_quantile(others[:, None], share)[0])
    return float(nan_mean(step[inside][:, None])[0]) - min(usual, features.work.step_reference)


def _lateness_removed(standing: BoolArray, features: FeatureSet, *, newly: bool = False) -> float:
    """Seconds per slow step by which the last of all arrives later than the last of the others.

    Those of a heavy stage are as late as their peers: what counts is how much slower it is than the next,
    `newly` only as far as it is not always so.
    """
    excess, stage = features.comparison.excess, features.topology.stage
    inside = features.comparison.segment.mask(excess.shape[1])
    if features.topology.n_stages > 1 and (stage[standing] == stage[standing][0]).all():
        heavy = int(stage[standing][0])
        if standing[stage == heavy].all():
            gain = features.comparison.gain_stage[heavy]
            always = float(np.median(gain[~inside])) if newly and not inside.all() else 0.0
            return float(nan_mean(gain[inside][:, None])[0]) - always
    last = np.maximum(nan_max(excess[:, inside]), 0.0)
    others = np.maximum(nan_max(excess[~standing][:, inside]), 0.0)
    return float(nan_mean((last - others)[:, None])[0])
