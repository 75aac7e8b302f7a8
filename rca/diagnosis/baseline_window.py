"""Comparison with an earlier, healthy window of the same job.

Ranks are compared with their peers, and a slow segment with the other steps. A fault that slows all ranks in
all steps has neither reference, so such a window looks healthy. Appended to an earlier healthy window, the
whole window is the slow segment, and every phase and counter has its past.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rca.arrays import IntArray
from rca.classify.decision_table import (
    BASELINE_ALARM,
    CERTAIN_PLACE,
    MAJORITY_OF_STEPS,
    MAX_STEPS,
    MUCH_SLOWER,
    SLOWER,
    STEPS_BEFORE,
)
from rca.diagnosis.causes import opened
from rca.diagnosis.result import AbstentionReason, Diagnosis, EarlierWindow, Straggler
from rca.diagnosis.slowdown import WHAT_CHANGED, job_wide_check
from rca.diagnosis.when_and_where import MAX_STEPS_AFTER
from rca.features import RANK_FEATURES, WINDOW_FEATURES, FeatureSet
from rca.robust import nan_median
from rca.window.baseline_window import after_earlier
from rca.window.causes import Pattern
from rca.window.times.phases import PhaseArrays
from rca.window.times.step_clock import StepClock
from rca.window.window import Window

#: Why the cause of such a slowdown is open.
_ON_ALL_RANKS = "usual steps take {ratio:.2f} times as long as in the earlier window, on all ranks"
#: Reason of an answer that is not certain whether the job is slow.
_UNDECIDED = "undecided_mode"
#: Reasons of abstention that a comparison may resolve; the others concern the window's end or length.
_OPEN = frozenset({_UNDECIDED, "too_few_ranks", "nobody_stands_out", "cause_not_certain"})

_PER_LOAD = WINDOW_FEATURES.index("slow_segment_ratio_per_load")
_PAUSES, _PAUSES_OF_RANK = WINDOW_FEATURES.index("pauses"), RANK_FEATURES.index("pauses")

#: Reasons of abstention that doubt only the cause.
_OF_CAUSES = frozenset({"nobody_stands_out", "cause_not_certain"})

JointDiagnosis = Callable[[Window, int], tuple[Diagnosis, FeatureSet]]


class Outline(NamedTuple):
    """The steps of a diagnosed window. It stays while both windows are diagnosed; features are too large.

    Attributes
    ----------
    steps : ndarray of shape (n_steps,), int64
        Step numbers, without warm-up.
    whole : bool
        Whether the slow segment is the whole window.
    """

    steps: IntArray
    warmup: int
    whole: bool

    @classmethod
    def of(cls, features: FeatureSet) -> Outline:
        """The outline of a window with these features."""
        return cls(features.work.steps, features.work.warmup, features.comparison.segment.whole)


def without_gap(features: FeatureSet, first: int) -> FeatureSet:
    """Features of two windows as one, in which the time between the two is unknown and no pause.

    Parameters
    ----------
    features : FeatureSet
        Of both windows.
    first : int
        First step of the later window.
    """
    start = features.work.start.copy()
    start[:, np.flatnonzero(features.work.steps < first)[-1:]] = np.nan
    work = replace(features.work, start=start)
    per_rank, per_window = features.rank.copy(), features.window.copy()
    per_rank[:, _PAUSES_OF_RANK] = per_window[_PAUSES] = work.pauses.seconds / work.step_reference
    return replace(features, work=work, rank=per_rank, window=per_window)


def with_earlier(
    alone: Diagnosis, window: Window, outline: Outline, earlier: Window, diagnose_both: JointDiagnosis
) -> Diagnosis:
    """Add to a diagnosis what a comparison with an earlier window of the job shows.

    Parameters
    ----------
    alone : Diagnosis
        Of the window alone.
    outline : Outline
        Of the window.
    diagnose_both : callable
        Diagnoses both as one window, with seconds as means over the steps from a number on.

    Returns
    -------
    Diagnosis
        The answer of the window alone with the earlier step time. Where only the comparison shows a change,
        the answer of the comparison.

    Raises
    ------
    InvalidInput
        If the windows cannot be compared.
    """
    first, part = int(outline.steps[0]), window
    if outline.warmup:
        # Warm-up steps between two windows would look like a fault.
        part = StepClock.of(window).between(first, int(outline.steps[-1]) + 1)
    both = after_earlier(part, earlier)
    before = _compared(window, earlier, both, first)
    with_past = _with_past(alone, before)
    ratio = before.ratio or 0.0
    if not _is_open(alone, whole=outline.whole) or not ratio >= SLOWER:
        return with_past
    compared, both_features = diagnose_both(both, first)
    if not _is_all_along(both_features, first):
        return with_past
    if _says_more(compared, alone, before):
        return _opened(_adopt_comparison(with_past, compared, before, both_features, first))
    if ratio >= MUCH_SLOWER and alone.failure_mode == "healthy" and not _has_more_input(both_features):
        return _much_slower(with_past, compared, before, both_features, first)
    unchanged = outline.whole and _is_healthy(with_past) and _is_healthy(compared)
    if unchanged and job_wide_check(both_features) is not None:
        slower = f"usual steps take {ratio:.2f} times as long as in the earlier window, on all ranks alike"
        return with_past.model_copy(update={"next_check": f"{slower}: {WHAT_CHANGED}"})
    return with_past


def _compared(window: Window, earlier: Window, both: Window, first: int) -> EarlierWindow:
    phases = PhaseArrays.from_window(both, only=("step_seconds",))
    job_step, now = nan_median(phases.phase("step_seconds")), phases.steps >= first
    then_usual, now_usual = (float(nan_median(job_step[part])) for part in (~now, now))
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
    """The answer with the comparison; it provides the job's past where the window has none."""
    slowdown = alone.slowdown
    if slowdown.versus_own_past is None:
        slowdown = slowdown.model_copy(update={"versus_own_past": before.ratio})
    return alone.model_copy(update={"earlier": before, "slowdown": slowdown})


def _is_open(alone: Diagnosis, *, whole: bool) -> bool:
    """Whether a comparison may add to the answer: healthy, or slow without a change within the window."""
    reason = alone.abstention_reason
    if alone.failure_mode == "fail_stop" or (reason is not None and reason.code not in _OPEN):
        return False
    return alone.failure_mode == "healthy" or whole


def _is_healthy(diagnosis: Diagnosis) -> bool:
    return diagnosis.failure_mode == "healthy" and not diagnosis.abstained


def _says_more(compared: Diagnosis, alone: Diagnosis, before: EarlierWindow) -> bool:
    """Whether the comparison is certain of a fault, or doubts a healthy verdict of the window alone.

    If the window alone already shows a slow job, the comparison replaces its causes unless they are less
    certain.
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
    return sure and (compared.slowdown.seconds_per_step or 0.0) >= MAJORITY_OF_STEPS * longer


def doubts_only_causes(diagnosis: Diagnosis) -> bool:
    """Whether a diagnosis does not abstain, or only from naming a cause."""
    reason = diagnosis.abstention_reason
    return reason is None or reason.code in _OF_CAUSES


def _is_surer(compared: Diagnosis, alone: Diagnosis) -> bool:
    """Whether a new answer may replace the first: as certain, and as probable where the cause differs."""
    if alone.abstained or not alone.causes:
        return True
    if compared.abstained or not compared.causes:
        return False
    if alone.cause_is_unknown != compared.cause_is_unknown:
        return alone.cause_is_unknown
    one, other = compared.causes[0], alone.causes[0]
    return (one.cause, one.ranks) == (other.cause, other.ranks) or one.probability >= other.probability


def _is_all_along(both_features: FeatureSet, first: int) -> bool:
    """Whether the slow segment is most of the window, and hardly any of the earlier one."""
    segment, steps = both_features.comparison.segment, both_features.work.steps
    slow, now = segment.mask(steps.size), steps >= first
    if now.all():
        # The few earlier steps were counted as warm-up.
        return False
    return bool(slow[now].mean() >= MAX_STEPS and slow[~now].mean() <= STEPS_BEFORE)


def _adopt_comparison(
    alone: Diagnosis, compared: Diagnosis, before: EarlierWindow, both_features: FeatureSet, first: int
) -> Diagnosis:
    """The comparison's answer, with the data quality and missing signals of the window alone."""
    segment, steps = both_features.comparison.segment, both_features.work.steps
    slow_steps = max(int(steps[segment.first]), first), int(steps[segment.last])
    known, past = (
        {tuple(each.ranks): each.pattern for each in alone.stragglers},
        alone.slowdown.versus_own_past,
    )
    return compared.model_copy(
        update={
            "quality": alone.quality,
            "missing_signals": alone.missing_signals,
            "slowdown": compared.slowdown.model_copy(update={"versus_own_past": past}),
            "stragglers": [
                _within(each, slow_steps, int(steps[-1]), known.get(tuple(each.ranks)))
                for each in compared.stragglers
            ],
            "earlier": before.model_copy(update={"decided": True}),
        }
    )


def _opened(answer: Diagnosis) -> Diagnosis:
    """The answer with an open cause where the comparison is certain of a fault, but not of its cause.

    Part of the job has to be certain; that the whole job is slower is what the comparison shows.
    """
    sure = answer.failure_mode_probability["fail_slow"] >= BASELINE_ALARM
    if not (sure and answer.abstained and doubts_only_causes(answer) and answer.stragglers):
        return answer
    first = answer.stragglers[0]
    if first.scope != "job" and first.probability < CERTAIN_PLACE:
        return answer
    causes = opened(answer.causes, first.ranks, first.nodes)
    return answer.model_copy(update={"abstained": False, "abstention_reason": None, "causes": causes})


def _has_more_input(both_features: FeatureSet) -> bool:
    """Whether the counted input of a step grew, so that steps per input are not `MUCH_SLOWER`."""
    return bool(both_features.window[_PER_LOAD] < MUCH_SLOWER)


def _much_slower(
    alone: Diagnosis, compared: Diagnosis, before: EarlierWindow, both_features: FeatureSet, first: int
) -> Diagnosis:
    """The comparison's answer without a certain cause; where it finds no fault, no certain verdict."""
    sentence = _ON_ALL_RANKS.format(ratio=before.ratio)
    if compared.failure_mode != "fail_slow":
        reason = AbstentionReason(code="slower_than_before", sentence=sentence)
        lost = [each.slowdown for each in (alone, compared)]
        slowdown = max(lost, key=lambda each: each.seconds_per_step or 0.0)
        return alone.model_copy(
            update={
                "abstained": True,
                "abstention_reason": reason,
                "next_check": WHAT_CHANGED,
                "slowdown": slowdown,
            }
        )
    reason = AbstentionReason(code="cause_not_certain", sentence=f"{sentence}; no cause is certain")
    answer = _adopt_comparison(alone, compared, before, both_features, first)
    return answer.model_copy(update={"abstained": True, "abstention_reason": reason})


def _within(straggler: Straggler, slow: tuple[int, int], end: int, pattern: Pattern | None) -> Straggler:
    """The straggler within the window's steps; one that is late to the end is persistent there."""
    first, last = straggler.first_step, straggler.last_step
    if first is None or last is None or first < slow[0]:
        # Its steps begin, or even end, in the earlier window.
        first, last = slow[0], slow[1] if last is None or last < slow[0] else last
    lasts = straggler.pattern == "transient" and last >= end - MAX_STEPS_AFTER
    pattern = pattern or ("persistent" if lasts else straggler.pattern)
    return straggler.model_copy(update={"first_step": first, "last_step": last, "pattern": pattern})
