"""Whether a window is long and complete enough to be certain: silence is not health, and a blink no trend."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.classify.pipeline_bubbles import stages_end_together
from rca.features import WINDOW_FEATURES, FeatureSet

#: Not one healthy window in a hundred of the training corpus is shorter, so nobody knows how often those
#: would be called slow; of the few real ones that are, one was.
MIN_STEPS = 20
#: ... unless next to nothing speaks for health: that passed 0.5 % of 1,111 healthy stretches of 6 to 18 steps
#: cut out of simulated windows and 1.3 % of 2,076 from strangers', and more than half of the slow ones.
FEWEST_STEPS, SHORT_ALARM = 6, 0.99
#: What is lost per step, relative to a usual one, from which losing it unseen is as bad as an alarm too many.
LARGE_LOSS = 0.05
_NOISE, _LATENESS, _SHARE = (
    WINDOW_FEATURES.index(name) for name in ("step_noise", "lateness", "slow_segment_share")
)
#: Seconds without a row that a flush or a job's last moments take; less is no stop unless something says so.
MOMENT = 1.0
#: Neither a step nor what comes between steps takes as long as that in a job that goes on.
LONG_STEPS, LONG_SECONDS = 10.0, 10.0


def long_enough(features: FeatureSet) -> bool:
    """Whether enough steps were finished for every verdict."""
    return features.work.steps.size >= MIN_STEPS


def shows_slowness(steps: FloatArray, suspicion: FloatArray) -> BoolArray:
    """Whether jobs with these finished steps may be called slow: few steps ask for more than an alarm does.

    Parameters
    ----------
    steps, suspicion : ndarray of one shape
        Finished steps; probability that the job is not healthy.
    """
    overwhelming: BoolArray = (steps >= FEWEST_STEPS) & (suspicion >= SHORT_ALARM)
    return overwhelming | (steps >= MIN_STEPS)


def silent_enough(features: FeatureSet) -> bool:
    """Whether a stop may be called: more than a moment without rows, or anything else that speaks for one.

    Events do only around the last sign of progress and since: what the job outlived did not stop it.
    """
    job_end = features.job_end
    told = job_end.trouble_events > 0 or job_end.unfinished.any()
    behind = np.nan_to_num(job_end.behind, nan=-1.0).min(initial=0.0) < 0
    return bool(told or behind or fell_silent(features))


def fell_silent(features: FeatureSet) -> bool:
    """Whether there were no rows for more than a moment at the window's end."""
    return silent_seconds(features) > MOMENT


def stays_silent(features: FeatureSet) -> bool:
    """Whether there were no rows for so long that the job is over, one way or the other."""
    return (
        bool(features.job_end.steps_since_progress >= LONG_STEPS) and silent_seconds(features) >= LONG_SECONDS
    )


def silent_seconds(features: FeatureSet) -> float:
    """How long there were no rows at the window's end; NaN where no step has a length."""
    return float(features.job_end.steps_since_progress * features.work.step_reference)


def can_show_health(features: FeatureSet) -> bool:
    """Whether enough ranks over enough steps were seen working to call the job healthy with certainty.

    A rank's own work has to be known (phases or communication were timed), of half of the ranks at least, and
    no stage may seem as busy as it is long in waiting for another.
    """
    seen = np.isfinite(features.work.own)
    ranks, steps = int(seen.any(axis=1).sum()), int(seen.any(axis=0).sum())
    return 2 * ranks >= seen.shape[0] and steps >= MIN_STEPS and not stages_wait_at_work(features)


def stages_wait_at_work(features: FeatureSet) -> bool:
    """Whether the timers of a pipeline's work hold the waiting of its stages for each other."""
    return stages_end_together(features.phases, features.topology, features.work.step_reference)


def work_seen(window: FloatArray) -> BoolArray:
    """Whether anybody's own work was timed, shape (...,); from window features (..., n_window_features)."""
    seen: BoolArray = np.isfinite(window[..., _NOISE])
    return seen


def loses_much(window: FloatArray) -> BoolArray:
    """Whether waiting for whoever comes last costs the job `LARGE_LOSS` or more; shapes as in `work_seen`."""
    lost: BoolArray = window[..., _LATENESS] * window[..., _SHARE] >= LARGE_LOSS
    return lost


def alarm_thresholds(thresholds: Mapping[str, float], window: FloatArray) -> FloatArray:
    """Probabilities of a fault from which jobs are called faulty.

    Parameters
    ----------
    thresholds : mapping of str to float
        Of a bundle; those made before it had one for each kind of job use ``fault`` for all.
    window : ndarray of shape (..., n_window_features)

    Returns
    -------
    ndarray of shape (...,)
    """
    usual = thresholds["fault"]
    seen = np.where(loses_much(window), thresholds.get("fault_costly", usual), usual)
    return np.where(work_seen(window), seen, thresholds.get("fault_unseen", usual))
