"""The job as it was before: what a fault that acts from the first step to the last can be compared with.

Ranks are compared with their peers, and a slow stretch with the steps beside it. What slows all ranks alike,
all along, has neither; seen alone such a window is a healthy job's. Beside an earlier window of the same job,
in which it ran as usual, the whole window is the slow stretch, and every phase and counter has its past.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rca.diagnosis.merge_diagnoses import doubts_only_causes
from rca.diagnosis.result import Diagnosis, EarlierWindow, Straggler
from rca.diagnosis.slowdown_without_straggler import WHAT_CHANGED, job_wide_check
from rca.features import FeatureSet
from rca.robust import nan_median
from rca.telemetry.baseline_window import after_earlier
from rca.telemetry.causes import Pattern
from rca.telemetry.phases import PhaseArrays
from rca.telemetry.step_clock import StepClock
from rca.telemetry.window import Window

#: Usual steps have to take so many times as long as in the earlier window.
SLOWER = 1.05
#: Belief from which the comparison raises the alarm; whoever asks twice has to be surer.
BASELINE_ALARM = 0.97
#: Least share of the window's steps, and most of the earlier one's, in the slow stretch of both: what began
#: in between is no settling of a restart.
MOST_STEPS, STEPS_BEFORE = 0.5, 0.1
#: An alarm of the comparison alone is one only if this share of what steps take longer is lost to stragglers
#: and shared faults: everybody may simply have more to compute.
MAJORITY_OF_STEPS = 0.5
#: A straggler that is late until so many steps before the window's end is not over.
MAX_STEPS_AFTER = 3
#: Whether the job is slow at all is not certain.
_UNDECIDED = "undecided_mode"
#: Doubts that a comparison may settle; the others are about how the window ends, or how short it is.
_OPEN = frozenset({_UNDECIDED, "too_few_ranks", "nobody_stands_out", "cause_not_certain"})

Ask = Callable[[Window, int], tuple[Diagnosis, FeatureSet]]


def with_earlier(
    alone: Diagnosis, window: Window, features: FeatureSet, earlier: Window, ask: Ask
) -> Diagnosis:
    """The diagnosis, with what a comparison with an earlier window of the job adds.

    Parameters
    ----------
    alone : Diagnosis
        Of the window alone.
    window : Window
    features : FeatureSet
        Of the window.
    earlier : Window
    ask : callable
        Diagnoses both as one window, with seconds as means over the steps from a number on.

    Returns
    -------
    Diagnosis
        The answer alone and how long steps took before; or, where the window in itself shows no change and
        the comparison does, the answer of the comparison.

    Raises
    ------
    InvalidInput
        If the windows cannot be compared.
    """
    first, part = int(features.work.steps[0]), window
    if features.work.warmup:
        # A restarted job's first steps are no sign of a fault; between two windows they would look like one.
        part = StepClock.of(window).between(first, int(features.work.steps[-1]) + 1)
    both = after_earlier(part, earlier)
    before = _compared(window, earlier, both, first)
    told = _with_past(alone, before)
    ratio = before.ratio or 0.0
    if not _is_open(alone, features) or not ratio >= SLOWER:
        return told
    compared, seen = ask(both, first)
    if not _is_all_along(seen, first):
        return told
    if _says_more(compared, alone, before):
        return _adopt_comparison(told, compared, before, seen, first)
    unchanged = features.comparison.segment.whole and _is_healthy(told) and _is_healthy(compared)
    if unchanged and job_wide_check(seen) is not None:
        slower = f"usual steps take {ratio:.2f} times as long as in the earlier window, on all ranks alike"
        return told.model_copy(update={"next_check": f"{slower}: {WHAT_CHANGED}"})
    return told


def _compared(window: Window, earlier: Window, both: Window, first: int) -> EarlierWindow:
    phases = PhaseArrays.from_window(both)
    job_step, now = nan_median(phases.phase("step_seconds")), phases.steps >= first
    then_usual, now_usual = (float(nan_median(job_step[part, None])[0]) for part in (~now, now))
    known = then_usual > 0 and np.isfinite(now_usual)
    return EarlierWindow(
        window_id=earlier.job.window_id,
        job_id=earlier.job.job_id,
        seconds_before=window.job.start - earlier.job.end,
        steps=int((~now).sum()),
        step_seconds=then_usual if known else None,
        ratio=now_usual / then_usual if known else None,
    )


def _with_past(alone: Diagnosis, before: EarlierWindow) -> Diagnosis:
    """The answer with what was compared; the job's past where the window holds none of its own."""
    slowdown = alone.slowdown
    if slowdown.versus_own_past is None:
        slowdown = slowdown.model_copy(update={"versus_own_past": before.ratio})
    return alone.model_copy(update={"earlier": before, "slowdown": slowdown})


def _is_open(alone: Diagnosis, features: FeatureSet) -> bool:
    """Whether a comparison may say more: nothing changed within the window, or nobody is blamed for it."""
    reason = alone.abstention_reason
    if alone.failure_mode == "fail_stop" or (reason is not None and reason.code not in _OPEN):
        return False
    return alone.failure_mode == "healthy" or features.comparison.segment.whole


def _is_healthy(told: Diagnosis) -> bool:
    return told.failure_mode == "healthy" and not told.abstained


def _says_more(compared: Diagnosis, alone: Diagnosis, before: EarlierWindow) -> bool:
    """Whether the comparison is sure of a fault, or doubts health of which the window alone is sure.

    Of a job that is slow by the window alone it says more about why and at what cost, unless it is less sure.
    """
    if compared.quality.out_of_distribution:
        return False
    reason = compared.abstention_reason
    if _is_healthy(alone) and reason is not None and reason.code == _UNDECIDED:
        return True
    if compared.failure_mode != "fail_slow" or not doubts_only_causes(compared):
        return False
    if alone.failure_mode == "fail_slow" and doubts_only_causes(alone):
        return _is_surer(compared, alone)
    sure = compared.failure_mode_probability["fail_slow"] >= BASELINE_ALARM
    longer = (before.step_seconds or 0.0) * ((before.ratio or 1.0) - 1.0)
    return sure and compared.slowdown.seconds_per_step >= MAJORITY_OF_STEPS * longer


def _is_surer(compared: Diagnosis, alone: Diagnosis) -> bool:
    """Whether an answer may take the place of one that stands: as firm, and as likely where it differs."""
    if alone.abstained or not alone.causes:
        return True
    if compared.abstained or not compared.causes:
        return False
    one, other = compared.causes[0], alone.causes[0]
    return (one.cause, one.ranks) == (other.cause, other.ranks) or one.probability >= other.probability


def _is_all_along(seen: FeatureSet, first: int) -> bool:
    """Whether the slow stretch is most of the window, and hardly any of the earlier one."""
    segment, steps = seen.comparison.segment, seen.work.steps
    slow, now = segment.mask(steps.size), steps >= first
    if now.all():
        # The few steps before were taken for a warm-up.
        return False
    return bool(slow[now].mean() >= MOST_STEPS and slow[~now].mean() <= STEPS_BEFORE)


def _adopt_comparison(
    told: Diagnosis, compared: Diagnosis, before: EarlierWindow, seen: FeatureSet, first: int
) -> Diagnosis:
    """The comparison's answer for the window; what of the window was used and lacking stays as it was."""
    segment, steps = seen.comparison.segment, seen.work.steps
    stretch = max(int(steps[segment.first]), first), int(steps[segment.last])
    known, past = {tuple(each.ranks): each.pattern for each in told.stragglers}, told.slowdown.versus_own_past
    return compared.model_copy(
        update={
            "quality": told.quality,
            "missing_signals": told.missing_signals,
            "slowdown": compared.slowdown.model_copy(update={"versus_own_past": past}),
            "stragglers": [
                _within(each, stretch, int(steps[-1]), known.get(tuple(each.ranks)))
                for each in compared.stragglers
            ],
            "earlier": before.model_copy(update={"decided": True}),
        }
    )


def _within(straggler: Straggler, stretch: tuple[int, int], end: int, pattern: Pattern | None) -> Straggler:
    """The straggler in the window's own steps, in its pattern there; who is late to the end is not over."""
    first, last = straggler.first_step, straggler.last_step
    if first is None or last is None or first < stretch[0]:
        # Late in the earlier window, too, or there alone by its own measure.
        first, last = stretch[0], stretch[1] if last is None or last < stretch[0] else last
    lasts = straggler.pattern == "transient" and last >= end - MAX_STEPS_AFTER
    pattern = pattern or ("persistent" if lasts else straggler.pattern)
    return straggler.model_copy(update={"first_step": first, "last_step": last, "pattern": pattern})
