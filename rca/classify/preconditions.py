"""Whether a window is long and complete enough for a verdict."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.classify.decision_table import (
    FEWEST_STEPS,
    LARGE_LOSS,
    LONG_SECONDS,
    LONG_STEPS,
    MAX_PAUSES,
    MAX_PLANNED,
    MAX_SHARE_BETWEEN_STEPS,
    MAX_UNTIMED,
    MIN_STEPS,
    MOMENT,
    SHORT_ALARM,
)
from rca.classify.pipeline_bubbles import stages_end_together
from rca.features import WINDOW_FEATURES, FeatureSet
from rca.features.work import LostTime

_NOISE, _LATENESS, _SHARE = (
    WINDOW_FEATURES.index(name) for name in ("step_noise", "lateness", "slow_segment_share")
)


def long_enough(features: FeatureSet) -> bool:
    """Whether enough steps were finished for any verdict."""
    return features.work.steps.size >= MIN_STEPS


def shows_slowness(steps: FloatArray, suspicion: FloatArray) -> BoolArray:
    """Whether jobs with these finished steps may be called slow: few steps need a higher probability.

    Parameters
    ----------
    steps, suspicion : ndarray of one shape
        Finished steps; probability that the job is not healthy.
    """
    overwhelming: BoolArray = (steps >= FEWEST_STEPS) & (suspicion >= SHORT_ALARM)
    return overwhelming | (steps >= MIN_STEPS)


def silent_enough(features: FeatureSet) -> bool:
    """Whether there is evidence for a stop: more than `MOMENT` without rows, or any other sign.

    Events count only around the last progress and after it: the job survived earlier ones.
    """
    job_end = features.job_end
    trouble = job_end.trouble_events > 0 or job_end.unfinished.any()
    behind = np.nan_to_num(job_end.behind, nan=-1.0).min(initial=0.0) < 0
    return bool(trouble or behind or fell_silent(features))


def fell_silent(features: FeatureSet) -> bool:
    """Whether there were no rows for more than `MOMENT` at the window's end."""
    return silent_seconds(features) > MOMENT


def stays_silent(features: FeatureSet) -> bool:
    """Whether there were no rows for so long that the job has finished or stopped."""
    return (
        bool(features.job_end.steps_since_progress >= LONG_STEPS) and silent_seconds(features) >= LONG_SECONDS
    )


def silent_seconds(features: FeatureSet) -> float:
    """How long there were no rows at the window's end; NaN where no step has a length."""
    return float(features.job_end.steps_since_progress * features.work.step_reference)


def can_show_health(features: FeatureSet) -> bool:
    """Whether enough ranks and steps were timed to call the job healthy with certainty.

    At least half of the ranks need a known own work (timed phases or communication). The stages' timers must
    not include waiting for other stages.
    """
    seen = np.isfinite(features.work.own)
    ranks, steps = int(seen.any(axis=1).sum()), int(seen.any(axis=0).sum())
    return 2 * ranks >= seen.shape[0] and steps >= MIN_STEPS and not stages_wait_at_work(features)


def idles_between_steps(features: FeatureSet) -> bool:
    """Whether much of the job's time lies between steps, or pauses there cost it time.

    It is unknown what the ranks do there.
    """
    work = features.work
    return work.share_between_steps > MAX_SHARE_BETWEEN_STEPS or _loses(work.pauses, MAX_PAUSES, features)


def works_untimed(features: FeatureSet) -> bool:
    """Whether some steps take much longer outside every timer than others do."""
    return _loses(features.work.untimed, MAX_UNTIMED, features)


def lost_in_pauses(features: FeatureSet) -> float:
    """Pauses between steps, seconds per step; 0 where they are too short to count."""
    return _counted(features.work.pauses, MAX_PAUSES, features)


def lost_untimed(features: FeatureSet) -> float:
    """Untimed time of unusual steps, seconds per step; 0 where it is too little to count."""
    return _counted(features.work.untimed, MAX_UNTIMED, features)


def _counted(lost: LostTime, most: float, features: FeatureSet) -> float:
    return lost.seconds if lost.seconds > most * features.work.step_reference else 0.0


def _loses(lost: LostTime, most: float, features: FeatureSet) -> bool:
    return lost.seconds > (MAX_PLANNED if lost.planned else most) * features.work.step_reference


def stages_wait_at_work(features: FeatureSet) -> bool:
    """Whether the timers of a pipeline's work include waiting for other stages."""
    return stages_end_together(features.phases, features.topology, features.work.step_reference)


def work_seen(window: FloatArray) -> BoolArray:
    """Whether any rank's own work was timed, shape (...,); from window features (..., n_window_features)."""
    seen: BoolArray = np.isfinite(window[..., _NOISE])
    return seen


def loses_much(window: FloatArray) -> BoolArray:
    """Whether waiting for the last rank costs the job `LARGE_LOSS` or more; shapes as in `work_seen`."""
    lost: BoolArray = window[..., _LATENESS] * window[..., _SHARE] >= LARGE_LOSS
    return lost


def alarm_thresholds(thresholds: Mapping[str, float], window: FloatArray) -> FloatArray:
    """Probabilities of a fault from which on jobs are called faulty.

    Parameters
    ----------
    thresholds : mapping of str to float
        Of a bundle; older bundles have one threshold, ``fault``, for all kinds of jobs.
    window : ndarray of shape (..., n_window_features)

    Returns
    -------
    ndarray of shape (...,)
    """
    usual = thresholds["fault"]
    seen = np.where(loses_much(window), thresholds.get("fault_costly", usual), usual)
    return np.where(work_seen(window), seen, thresholds.get("fault_unseen", usual))
