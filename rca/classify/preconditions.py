"""Whether a window is long, complete and calm enough for a verdict.

One long step is no straggler. A file server hangs, a page is read back, a log is flushed: one step of a
healthy job may then take a hundred times the usual. So a verdict has to hold without the few worst steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.classify.decision_table import (
    EVENT_SHARE,
    LARGE_LOSS,
    LASTING_STEPS,
    LONG_SECONDS,
    LONG_STEPS,
    MAX_PAUSES,
    MAX_PLANNED,
    MAX_SHARE_BETWEEN_STEPS,
    MAX_STALLS,
    MAX_UNTIMED,
    MIN_STEPS,
    MIN_STEPS_OF_ALARM,
    MOMENT,
    OUTLYING,
    OUTLYING_NOISE,
    SHORT_ALARM,
)
from rca.features import WINDOW_FEATURES, FeatureSet
from rca.features.work import LostTime
from rca.robust import MAD_TO_SIGMA, group_members, nan_max, nan_median, nan_min
from rca.window.job import Topology
from rca.window.times.hidden_waits import (
    BEFORE_EXCHANGE,
    MAX_END_RATIO,
    MIN_BEGIN_SPREAD,
    MIN_CASES,
    OPTIMIZER,
)
from rca.window.times.phases import PhaseArrays

FORWARD, BACKWARD = BEFORE_EXCHANGE[-2:]
#: Forwards of a replica's stages differ if the difference is this share of a usual forward, and
#: `MIN_BEGIN_SPREAD` of the step.
UNEQUAL = 0.1
#: Stages that are equally busy by design vary from step to step. Stages that wait for each other vary less at
#: their end than in their forward, by this factor.
STEADIER = 0.7
#: Planned work of the job. Where it explains two or more long steps, they are no single events.
PLANNED_PHASES = ("checkpoint_seconds", "gc_seconds")
_NOISE, _LATENESS, _SHARE = (
    WINDOW_FEATURES.index(name) for name in ("step_noise", "lateness", "slow_segment_share")
)


def stages_end_together(phases: PhaseArrays, topology: Topology, step_seconds: float) -> bool:
    """Whether a pipeline's stages wait for each other within phases of work.

    Parameters
    ----------
    step_seconds : float
        The job's usual step.
    """
    if topology.n_stages == 1 or not phases.seconds.keys() >= {FORWARD, BACKWARD} or not step_seconds > 0:
        return False
    forward, backward = phases.seconds[FORWARD], phases.seconds[BACKWARD]
    known = np.isfinite(forward) & np.isfinite(backward)
    forward = np.where(known, forward, np.nan)
    work = np.where(
        known, sum(np.nan_to_num(phases.phase(name)) for name in (*BEFORE_EXCHANGE, OPTIMIZER)), np.nan
    )
    return _equally_busy(forward, work, topology, MIN_BEGIN_SPREAD * step_seconds) and _steadier(
        forward, work, topology.stage
    )


def _equally_busy(forward: FloatArray, work: FloatArray, topology: Topology, apart: float) -> bool:
    """Whether a replica's stages work equally long although their forwards differ."""
    ratios = []
    for members in group_members(topology.data_rank):
        usual = nan_median(forward[members])
        differing, ends = (nan_max(part[members]) - nan_min(part[members]) for part in (forward, work))
        cases = differing > np.maximum(apart, UNEQUAL * usual)
        ratios.append(ends[cases] / differing[cases])
    found = np.concatenate(ratios)
    return found.size >= MIN_CASES and bool(np.median(found) <= MAX_END_RATIO)


def _steadier(forward: FloatArray, work: FloatArray, stage: IntArray) -> bool:
    """Whether stages vary less against each other from step to step at their end than in their forward.

    Each stage is represented by its last replica, which waits for no other replica.
    """
    jitter = []
    for seconds in (forward, work):
        last = np.stack([nan_max(seconds[members]) for members in group_members(stage)])
        relative = last - nan_median(last)
        relative = np.abs(relative - nan_median(relative, axis=1)[:, None])
        jitter.append(float(np.nansum(nan_median(relative, axis=1))))
    return jitter[1] <= STEADIER * jitter[0]


def single_events(features: FeatureSet) -> BoolArray | None:
    """The few outlier steps, bool of shape (n_steps,); None if there are none, or too many."""
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


def in_a_cycle(features: FeatureSet, steps: BoolArray) -> bool:
    """Whether some steps, bool of shape (n_steps,), are long by work in a fixed cycle of bearable cost."""
    planned = max(features.work.cycles.values(), key=lambda lost: lost.seconds, default=None)
    if planned is None or planned.every is None:
        return False
    apart = np.diff(features.work.steps[runs(steps)[0]])
    longer = float(_height(features)[steps].sum()) / steps.size
    cheap = planned.seconds <= MAX_PLANNED * features.work.step_reference
    return cheap and not (apart % planned.every).any() and planned.seconds >= 0.5 * longer


def runs(marked: BoolArray) -> tuple[IntArray, ...]:
    """First and past-the-last index of every run of marked steps."""
    edges = np.diff(np.concatenate([[0], marked.astype(np.int8), [0]]))
    return np.flatnonzero(edges > 0), np.flatnonzero(edges < 0)


def _height(features: FeatureSet) -> FloatArray:
    """How far a step with the pause after it, or its lateness, exceeds the median, shape (n_steps,), seconds.

    Work after the collective delays the other ranks in the next step only. In its own step it shows as
    lateness alone.
    """
    found = np.zeros(features.work.steps.size)
    for series in (features.work.job_step + features.work.pause_after, nan_max(features.comparison.excess)):
        above = series - nan_median(series[None, :], axis=1)[0]
        found = np.fmax(found, above)
    return found


def _planned(features: FeatureSet, outlying: BoolArray) -> bool:
    """Whether planned work explains most of the extra time of the outlier steps."""
    planned = [features.work.phases[name] for name in PLANNED_PHASES if name in features.work.phases]
    spent = sum((np.nan_to_num(nan_max(each[:, outlying])).sum() for each in planned), 0.0)
    return bool(spent >= 0.5 * _height(features)[outlying].sum())


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
    overwhelming: BoolArray = (steps >= MIN_STEPS_OF_ALARM) & (suspicion >= SHORT_ALARM)
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


def stopped_within_a_step(features: FeatureSet) -> bool:
    """Whether few ranks were left behind in a step that others began, and nothing came after it."""
    return bool(features.job_end.left_behind.any()) and stays_silent(features)


def has_stopped(features: FeatureSet) -> bool:
    """Whether the rows show for certain that the job stopped, whatever else is measured."""
    return features.job_end.broke_off or stopped_within_a_step(features)


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


def stalls_together(features: FeatureSet) -> bool:
    """Whether all ranks wait for input at the same time, much longer in some steps than in others."""
    return _loses(features.work.stalls, MAX_STALLS, features)


def lost_in_stalls(features: FeatureSet) -> float:
    """Time in which all ranks wait for input, seconds per step; 0 where it is too little to count."""
    return _counted(features.work.stalls, MAX_STALLS, features)


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


def alarm_thresholds(
    thresholds: Mapping[str, float], window: FloatArray, whole: BoolArray | bool = False
) -> FloatArray:
    """Probabilities of a fault from which on jobs are called faulty.

    Parameters
    ----------
    thresholds : mapping of str to float
        Of a bundle; older bundles have one threshold, ``fault``, for all kinds of jobs.
    window : ndarray of shape (..., n_window_features)
    whole : bool or ndarray of shape (...,)
        Whether the job would be a suspect as a whole: then a change is often harmless.

    Returns
    -------
    ndarray of shape (...,)
    """
    usual = thresholds["fault"]
    of_kind = np.where(whole, thresholds.get("fault_whole", usual), usual)
    seen = np.where(loses_much(window), thresholds.get("fault_costly", usual), of_kind)
    return np.where(work_seen(window), seen, thresholds.get("fault_unseen", usual))
