"""Diagnose segments of a window on their own, to find faults outside its slow segment.

The diagnosis of a slow job compares its slow segment with the other steps. A fault in the other steps counts
as usual there. So if these are slow themselves, they are diagnosed as a window of their own. A fault may also
last for the whole window while the slow segment is harmless. The steps of a stopped job are diagnosed up to
its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.classify.decision_table import MIN_STEPS, SEGMENT_ALARM, SLOW_BEFORE_STOP, SURE_CAUSE, SURE_MODE
from rca.diagnosis.causes import catalogued
from rca.diagnosis.merge_diagnoses import (
    adopt_segment_verdict,
    doubts_only_causes,
    lasting,
    merge_diagnoses,
    same_on_some,
)
from rca.diagnosis.result import Cause, Diagnosis, Straggler
from rca.features import FeatureSet
from rca.robust import REFERENCE_QUANTILE, nan_mean, nan_quantile
from rca.window.times.step_clock import StepClock
from rca.window.window import Window

#: Reason of abstention that a part may resolve: whether the job is slow at all.
UNDECIDED = "undecided_mode"
#: The last steps of a stopped job belong to its end: some ranks had finished them, and some had not.
LAST_STEPS = 2
#: A part is diagnosed if its mean step exceeds its own quick steps by this share, or if its steps would be
#: shorter by this share of a step without one rank, node or stage.
MIN_UNEVEN_STEPS_OF_SEGMENT, MIN_SEGMENT_GAIN = 0.06, 0.03


class Part(NamedTuple):
    """Steps outside the slow segment: numbers from `first` up to, not including, `end`; `share` of all."""

    first: int
    end: int
    share: float


class PartDiagnosis(NamedTuple):
    """A part of the window and its own diagnosis."""

    part: Part
    diagnosis: Diagnosis


class Outline(NamedTuple):
    """The steps of a diagnosed window. It stays while further windows are diagnosed; features are too large.

    Attributes
    ----------
    steps : ndarray of shape (n_steps,), int64
        Step numbers, without warm-up.
    whole : bool
        Whether the slow segment is the whole window.
    long, slow, before_end : list of Part
        From `long_parts`, `slow_parts` and `before_the_end`.
    """

    steps: IntArray
    warmup: int
    whole: bool
    long: list[Part]
    slow: list[Part]
    before_end: list[Part]

    @classmethod
    def of(cls, features: FeatureSet) -> Outline:
        """The outline of a window with these features."""
        return cls(
            features.work.steps,
            features.work.warmup,
            features.comparison.segment.whole,
            long_parts(features),
            slow_parts(features),
            before_the_end(features),
        )


def _parts(diagnosis: Diagnosis, outline: Outline) -> list[Part]:
    """The parts to diagnose on their own."""
    if diagnosis.failure_mode == "healthy":
        # Other steps do not resolve how the job ended, or what a single event was.
        reason = diagnosis.abstention_reason
        return outline.slow if reason is None or reason.code == UNDECIDED else []
    if diagnosis.failure_mode == "fail_slow":
        return outline.slow
    # Without a cause of the stop, a cause of slowness would be read as one.
    answered = diagnosis.causes and not diagnosis.abstained
    return outline.before_end if answered else []


def with_segment_diagnoses(
    diagnosis: Diagnosis,
    window: Window,
    outline: Outline,
    measured: float,
    diagnose_part: Callable[[Window], Diagnosis],
) -> Diagnosis:
    """Add the certain causes of the steps outside the slow segment, or before the job's end.

    Parameters
    ----------
    outline : Outline
        Of the window.
    measured : float
        Its mean step, seconds.
    diagnose_part : callable
        Diagnoses a part of the window.

    Returns
    -------
    Diagnosis
        Unchanged where no part is slow or adds a cause. Otherwise with further stragglers, causes and
        actions, or, for a window that looked healthy, with a part's verdict. Their seconds are means over all
        steps of the window.
    """
    parts = _parts(diagnosis, outline)
    if not parts:
        return diagnosis
    clock, rank_steps = StepClock.of(window), outline.steps.size * float(window.job.world_size)
    answers = [PartDiagnosis(part, diagnose_part(clock.between(part.first, part.end))) for part in parts]
    if diagnosis.failure_mode == "healthy":
        if not any(_is_sure(answer.diagnosis) for answer in answers):
            return diagnosis
        diagnosis = _alarmed(diagnosis, answers, outline, measured, rank_steps)
    for part, of_part in answers:
        if new := _certain(of_part, diagnosis):
            diagnosis = merge_diagnoses(
                diagnosis, of_part, new, share=part.share, measured=measured, rank_steps=rank_steps
            )
    return diagnosis


def _is_sure(of_part: Diagnosis) -> bool:
    """Whether a part raises the alarm: it is certainly slow, and like the training windows."""
    return (
        of_part.failure_mode == "fail_slow"
        and of_part.failure_mode_probability["fail_slow"] >= SEGMENT_ALARM
        and doubts_only_causes(of_part)
        and not of_part.quality.out_of_distribution
    )


def _alarmed(
    healthy: Diagnosis, answers: Sequence[PartDiagnosis], outline: Outline, measured: float, rank_steps: float
) -> Diagnosis:
    """The verdict of the longest part that is certain of a fault, which a harmless slow segment had hidden.

    Its steps and seconds include other parts with the same fault. If every long part has the fault
    throughout, it counts for the slow segment as well.
    """
    _, longest = max((each for each in answers if _is_sure(each.diagnosis)), key=lambda each: each.part.share)
    agreeing = [each for each in answers if _is_same_fault(each.diagnosis, longest)]
    others = (each.diagnosis.stragglers for each in agreeing)
    stragglers = lasting(longest.stragglers, [longest.stragglers, *others])
    covered, lost = sum(part.share for part, _ in agreeing), longest.slowdown.seconds_per_step or 0.0
    seconds = sum(part.share * (other.slowdown.seconds_per_step or 0.0) for part, other in agreeing)
    share, past = seconds / lost if lost > 0 else covered, longest.slowdown.versus_own_past
    if len(agreeing) == len(outline.long) and all(_is_throughout(each) for each in agreeing):
        steps = {"first_step": int(outline.steps[0]), "last_step": int(outline.steps[-1])}
        stragglers = [each.model_copy(update=steps) for each in stragglers]
        share, past = share / covered, None
    slowdown = longest.slowdown.model_copy(update={"versus_own_past": past})
    verdict = longest.model_copy(update={"stragglers": stragglers, "slowdown": slowdown})
    return adopt_segment_verdict(healthy, verdict, share=share, measured=measured, rank_steps=rank_steps)


def _is_same_fault(first: Diagnosis, second: Diagnosis) -> bool:
    """Whether the first cause of one is a cause of the other on overlapping ranks; else by stragglers."""
    if first.failure_mode != second.failure_mode:
        return False
    if first.causes and second.causes:
        return bool(same_on_some(first.causes[0], second.causes))
    return any(_overlap(one, another) for one in first.stragglers for another in second.stragglers)


def _overlap(one: Straggler, another: Straggler) -> bool:
    return one.straggler_type == another.straggler_type and not set(one.ranks).isdisjoint(another.ranks)


def _is_throughout(answer: PartDiagnosis) -> bool:
    """Whether the part's stragglers are slow from its first step to its last."""
    first, end = answer.part.first, answer.part.end
    steps = [(one.first_step, one.last_step) for one in answer.diagnosis.stragglers]
    return bool(steps) and all(
        began is not None and over is not None and began <= first and over >= end - 1 for began, over in steps
    )


def _spans(cause: Cause, known: Diagnosis) -> bool:
    """Whether several stragglers share the cause: a part with one of them would leave out the others."""
    inside = [set(each.ranks) < set(cause.ranks) for each in known.stragglers]
    return sum(inside) > 1


def _certain(of_part: Diagnosis, known: Diagnosis) -> list[Cause]:
    """The causes that are certain in a part but not in the answer so far.

    To add to an answer about a slow job they have to be more certain than to add to one about a stop.
    """
    if of_part.failure_mode != "fail_slow" or of_part.abstained:
        return []
    causes = catalogued(of_part.causes)
    if known.failure_mode == "fail_stop":
        return [cause for cause in causes if cause.probability >= SLOW_BEFORE_STOP]
    if of_part.failure_mode_probability["fail_slow"] < SURE_MODE:
        return []
    certain = [cause for cause in known.causes if cause.probability >= SURE_CAUSE or _spans(cause, known)]
    return [cause for cause in causes if cause.probability >= SURE_CAUSE and not same_on_some(cause, certain)]


def long_parts(features: FeatureSet) -> list[Part]:
    """The steps before and after the slow segment.

    A part of fewer than `MIN_STEPS` is too short for a certain cause.
    """
    segment, steps = features.comparison.segment, features.work.steps
    if segment.whole:
        return []
    sides = (0, segment.first), (segment.last + 1, steps.size)
    return [_part(features, begin, stop) for begin, stop in sides if stop - begin >= MIN_STEPS]


def slow_parts(features: FeatureSet) -> list[Part]:
    """The long parts that are slow themselves."""
    return [part for part in long_parts(features) if _is_slow(features, part)]


def before_the_end(features: FeatureSet) -> list[Part]:
    """The steps of a stopped job before its end, if they are slow themselves and enough."""
    kept = features.work.steps.size - LAST_STEPS
    if kept < MIN_STEPS:
        return []
    part = _part(features, 0, kept)
    return [part] if _is_slow(features, part) else []


def _part(features: FeatureSet, begin: int, stop: int) -> Part:
    steps = features.work.steps
    return Part(int(steps[begin]), int(steps[stop - 1]) + 1, (stop - begin) / steps.size)


def _is_slow(features: FeatureSet, steps: Part) -> bool:
    part = slice(*np.searchsorted(features.work.steps, (steps.first, steps.end)))
    comparison, unit = features.comparison, features.work.step_reference
    step = features.work.job_step[part]
    quick = float(nan_quantile(step[:, None], REFERENCE_QUANTILE)[0])
    if float(nan_mean(step[:, None])[0]) - quick >= MIN_UNEVEN_STEPS_OF_SEGMENT * quick:
        return True
    gains: Sequence[FloatArray] = (comparison.gain_rank, comparison.gain_node, comparison.gain_stage)
    return any(float(gain[:, part].mean(axis=1).max()) >= MIN_SEGMENT_GAIN * unit for gain in gains)
