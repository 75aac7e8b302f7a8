"""The slowdown of a job: its cost by the replay, time that no timer saw, and steps slow on all ranks."""

from __future__ import annotations

import numpy as np

from rca.classify.classifier import Classification
from rca.classify.decision_table import MAX_PLANNED
from rca.classify.preconditions import can_show_health, lost_in_pauses, lost_in_stalls, lost_untimed
from rca.diagnosis.data_quality import listed
from rca.diagnosis.pricing import Pricing
from rca.diagnosis.result import Slowdown
from rca.features import WINDOW_FEATURES, FeatureSet
from rca.robust import nan_max, nan_median
from rca.window.window import Window

_VERSUS_PAST = WINDOW_FEATURES.index("slow_segment_ratio")
_SHOWN = 3
#: Late ranks of an event have at least this share of the last rank's lateness.
ALSO_LATE = 0.5
WHAT_CHANGED = (
    "find what changed for the whole job (sequence lengths, evaluation, checkpoints, data, a shared network "
    "or storage)"
)
#: Least cost of planned work that is worth a sentence, as a share of the usual step.
MIN_PLANNED = 0.01
#: Least ratio of the steps in the slow segment to the other steps.
MIN_SEGMENT_RATIO = 1.2
#: The last rank became later by less than this share of the growth of the steps.
MAX_LATENESS_SHARE = 0.5
_VERSUS_PAST, _LONGER, _LATER = (
    WINDOW_FEATURES.index(name) for name in ("slow_segment_ratio", "slow_segment_contrast", "lateness_growth")
)


def slowdown_of(
    window: Window, features: FeatureSet, pricing: Pricing, since: int | None, together: float = 0.0
) -> Slowdown:
    """The slowdown of a window, seconds as means over its steps (from the number `since` on).

    Parameters
    ----------
    since : int, optional
        First step that counts.
    together : float, seconds per step
        Least loss: what all ranks lose together.
    """
    replayed = pricing.attribution.slowdown
    # The replay has all steps, and no pauses between them.
    pauses = lost_in_pauses(features)
    unseen = pauses + max(lost_untimed(features) + lost_in_stalls(features) - replayed, 0.0)
    unseen += max(together - replayed - unseen, 0.0)
    seconds, measured = replayed + unseen, pricing.measured + pauses
    ideal = measured - seconds
    past = features.window[_VERSUS_PAST]
    steps = features.work.steps
    n_steps = steps.size if since is None else int((steps >= since).sum())
    low, high = pricing.attribution.slowdown_interval
    return Slowdown(
        ratio=float(measured / ideal) if ideal > 0 and np.isfinite(ideal) else 1.0,
        seconds_per_step=seconds,
        versus_own_past=float(past) if np.isfinite(past) else None,
        interval=(low + unseen, high + unseen),
        gpu_hours_lost=seconds * n_steps * window.job.world_size / 3600,
    )


def single_events_sentence(classification: Classification, features: FeatureSet) -> str:
    """One sentence that names the steps without which the job is healthy."""
    events = classification.events
    numbers = ", ".join(str(int(features.work.steps[column])) for column in events[:_SHOWN])
    more = f" and {len(events) - _SHOWN} more" if len(events) > _SHOWN else ""
    plural = "s" if len(events) > 1 else ""
    without = f"without {'them' if plural else 'it'} the job is healthy"
    if pause := _pause(classification, features):
        return f"the job paused after step{plural} {numbers}{more} (up to {pause:,.0f} s); {without}"
    step = features.work.job_step
    longer = float(np.nanmax(step[list(events)]) - nan_median(step))
    return (
        f"only step{plural} {numbers}{more} took long (up to {max(longer, 0.0):.3g} s more than usual"
        f"{_late(classification, features)}); {without}"
    )


def _pause(classification: Classification, features: FeatureSet) -> float:
    """The longest pause after single events in seconds; 0 where the steps themselves were long."""
    columns = list(classification.events)
    pause = float(features.work.pause_after[columns].max())
    step = features.work.job_step[columns]
    return pause if pause > float(np.nanmax(step, initial=0.0)) else 0.0


def events_check(classification: Classification, features: FeatureSet) -> str:
    """The next check after a single event."""
    step = int(features.work.steps[classification.events[0]])
    if _pause(classification, features):
        return f"find what ran after step {step}: a restart, an evaluation or a save would explain the pause"
    return (
        f"check the logs and file systems{_late(classification, features, ' of ')} around step {step}; "
        "if such steps come again, send a longer window"
    )


def _late(classification: Classification, features: FeatureSet, before: str = ", last ") -> str:
    """The ranks that were late in the worst of the steps; empty where no rank clearly was."""
    columns = list(classification.events)
    excess = features.comparison.excess[:, columns]
    worst = nan_max(excess)
    if not np.isfinite(worst).any():
        return ""
    column = int(np.nanargmax(worst))
    if worst[column] < 0.1 * features.work.step_reference:
        return ""
    late = np.flatnonzero(np.nan_to_num(excess[:, column]) >= ALSO_LATE * worst[column])
    return f"{before}{listed(late.tolist())}"


def planned_check(features: FeatureSet, *, decided: bool) -> str | None:
    """The next check for a job without a straggler that works in a fixed cycle of steps; None without it.

    Cheap work answers only a job whose health is decided.
    """
    cycles = features.work.cycles
    where = max(cycles, key=lambda each: cycles[each].seconds, default=None)
    if where is None or cycles[where].seconds < MIN_PLANNED * features.work.step_reference:
        return None
    seconds, every = cycles[where].seconds, cycles[where].every
    found = f"work every {every} steps, {where}, costs {seconds:.3g} s per step"
    if seconds > MAX_PLANNED * features.work.step_reference:
        return f"{found}: time it (saves, evaluation, logging); make it asynchronous or less frequent"
    return (
        f"nothing to do; planned {found}; save or evaluate less often if that is too much"
        if decided
        else None
    )


def job_wide_check(features: FeatureSet) -> str | None:
    """The next check for a job without a straggler that was slower for some time.

    Returns
    -------
    str or None
        None if it was not slower, if some rank was late, or if too few ranks were timed to exclude that.
    """
    segment, steps = features.comparison.segment, features.work.steps
    ratio = float(features.window[_VERSUS_PAST])
    if segment.whole or not ratio >= MIN_SEGMENT_RATIO or not can_show_health(features):
        return None
    if not features.window[_LATER] < MAX_LATENESS_SHARE * features.window[_LONGER]:
        return None
    first, last = int(steps[segment.first]), int(steps[segment.last])
    when = f"from step {first} on" if segment.last == steps.size - 1 else f"in steps {first} to {last}"
    return f"{when} steps took {ratio:.2f} times as long as the others, on all ranks alike: {WHAT_CHANGED}"
