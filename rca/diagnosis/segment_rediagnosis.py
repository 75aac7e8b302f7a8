"""Faults that act while the first one rests: the steps beside what is diagnosed are asked on their own.

Everything a diagnosis of a slow job looks at is compared between the one stretch in which it was slowest and
the rest of the window. A fault that began when another ended lies in that rest, and counts as usual there.
Where the rest is slow in itself, it is a window like any other: a fault may slow the job all the time, and
the slowest stretch be a harmless one. So are the steps of a stopped job, up to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rca.arrays import FloatArray
from rca.classify.preconditions import MIN_STEPS
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
from rca.telemetry.step_clock import StepClock
from rca.telemetry.window import Window

#: What a part says is added to an answer that stands already: it has to be more certain than that had to be.
SURE_MODE, SURE_CAUSE = 0.98, 0.9
#: A cause that is likelier than not is told beside why the job stopped.
NAMED = 0.5
#: Doubt of a healthy verdict that a part may settle: whether the job is slow at all.
UNDECIDED = "undecided_mode"
#: Belief from which a part beside a harmless stretch raises the alarm; whoever asks twice has to be surer.
SEGMENT_ALARM = 0.99
#: The last steps of a stopped job belong to its end: some ranks had finished them, and some had not.
LAST_STEPS = 2
#: A part is asked about if its steps are on average this much longer than its own quick ones, or if without
#: one rank, node or stage they would be this much shorter.
MIN_UNEVEN_STEPS_OF_SEGMENT, MIN_SEGMENT_GAIN = 0.06, 0.03


class Part(NamedTuple):
    """Steps beside the slow stretch: numbers from `first` up to, not including, `end`; `share` of all."""

    first: int
    end: int
    share: float


class Answer(NamedTuple):
    """What a part of the window says on its own."""

    part: Part
    told: Diagnosis


def _parts(diagnosis: Diagnosis, features: FeatureSet) -> list[Part]:
    """What is asked on its own."""
    if diagnosis.failure_mode == "healthy":
        # How the job ended, or what it suffered once, is not answered by the steps beside that.
        reason = diagnosis.abstention_reason
        return slow_parts(features) if reason is None or reason.code == UNDECIDED else []
    if diagnosis.failure_mode == "fail_slow":
        return slow_parts(features)
    # Why a job was slow would be read as the answer to why it stopped where there is none.
    answered = diagnosis.causes and not diagnosis.abstained
    return before_the_end(features) if answered else []


def with_second_look(
    diagnosis: Diagnosis,
    window: Window,
    features: FeatureSet,
    measured: float,
    ask: Callable[[Window], Diagnosis],
) -> Diagnosis:
    """The diagnosis, with what the steps beside a slow stretch or before the job's end say for certain.

    Parameters
    ----------
    diagnosis : Diagnosis
    window : Window
    features : FeatureSet
        Of the window.
    measured : float
        Its mean step, seconds.
    ask : callable
        Diagnoses a part of it.

    Returns
    -------
    Diagnosis
        As given where no part is slow, or none says anything new. Otherwise with further stragglers, causes
        and actions, or with a part's verdict where only the stretch looked harmless; their seconds are means
        over all steps of the window, as the others' are.
    """
    parts = _parts(diagnosis, features)
    if not parts:
        return diagnosis
    clock, rank_steps = StepClock.of(window), features.work.steps.size * float(window.job.world_size)
    answers = [Answer(part, ask(clock.between(part.first, part.end))) for part in parts]
    if diagnosis.failure_mode == "healthy":
        if not any(_is_sure(answer.told) for answer in answers):
            return diagnosis
        diagnosis = _alarmed(diagnosis, answers, features, measured, rank_steps)
    for part, told in answers:
        if new := _certain(told, diagnosis):
            diagnosis = merge_diagnoses(
                diagnosis, told, new, share=part.share, measured=measured, rank_steps=rank_steps
            )
    return diagnosis


def _is_sure(told: Diagnosis) -> bool:
    """Whether a part raises the alarm: it is slow for certain, and like what the model has learned from."""
    return (
        told.failure_mode == "fail_slow"
        and told.failure_mode_probability["fail_slow"] >= SEGMENT_ALARM
        and doubts_only_causes(told)
        and not told.quality.out_of_distribution
    )


def _alarmed(
    healthy: Diagnosis, answers: Sequence[Answer], features: FeatureSet, measured: float, rank_steps: float
) -> Diagnosis:
    """The verdict of the longest part that is sure of a fault, which a harmless stretch had hidden.

    What other parts say of the same fault is in its steps and its seconds. Those are means over all steps, as
    if the stretch were like them, where every part that is long enough to tell has the fault throughout.
    """
    _, told = max((each for each in answers if _is_sure(each.told)), key=lambda each: each.part.share)
    agreeing = [each for each in answers if _is_same_fault(each.told, told)]
    stragglers = lasting(told.stragglers, [told.stragglers, *(each.told.stragglers for each in agreeing)])
    asked, lost = sum(part.share for part, _ in agreeing), told.slowdown.seconds_per_step
    seconds = sum(part.share * other.slowdown.seconds_per_step for part, other in agreeing)
    share, past = seconds / lost if lost > 0 else asked, told.slowdown.versus_own_past
    if len(agreeing) == len(long_parts(features)) and all(_is_throughout(each) for each in agreeing):
        steps = {"first_step": int(features.work.steps[0]), "last_step": int(features.work.steps[-1])}
        stragglers = [each.model_copy(update=steps) for each in stragglers]
        share, past = share / asked, None
    slowdown = told.slowdown.model_copy(update={"versus_own_past": past})
    verdict = told.model_copy(update={"stragglers": stragglers, "slowdown": slowdown})
    return adopt_segment_verdict(healthy, verdict, share=share, measured=measured, rank_steps=rank_steps)


def _is_same_fault(told: Diagnosis, other: Diagnosis) -> bool:
    """Whether a part's first cause is one of the other's on ranks that overlap; without causes, who it is."""
    if told.failure_mode != other.failure_mode:
        return False
    if told.causes and other.causes:
        return bool(same_on_some(told.causes[0], other.causes))
    return any(_overlap(one, another) for one in told.stragglers for another in other.stragglers)


def _overlap(one: Straggler, another: Straggler) -> bool:
    return one.straggler_type == another.straggler_type and not set(one.ranks).isdisjoint(another.ranks)


def _is_throughout(answer: Answer) -> bool:
    """Whether what a part says neither begins nor ends in it."""
    first, end = answer.part.first, answer.part.end
    steps = [(one.first_step, one.last_step) for one in answer.told.stragglers]
    return bool(steps) and all(
        began is not None and over is not None and began <= first and over >= end - 1 for began, over in steps
    )


def _spans(cause: Cause, known: Diagnosis) -> bool:
    """Whether several stragglers share the cause: a part that sees one of them would leave out the others."""
    whose = [set(each.ranks) < set(cause.ranks) for each in known.stragglers]
    return sum(whose) > 1


def _certain(told: Diagnosis, known: Diagnosis) -> list[Cause]:
    """The causes that a part names for certain, and that are not certain yet.

    Beside an answer about the same slow job it has to be surer than usual; why it stopped is another matter.
    """
    if told.failure_mode != "fail_slow" or told.abstained:
        return []
    told_causes = catalogued(told.causes)
    if known.failure_mode == "fail_stop":
        return [cause for cause in told_causes if cause.probability >= NAMED]
    if told.failure_mode_probability["fail_slow"] < SURE_MODE:
        return []
    certain = [cause for cause in known.causes if cause.probability >= SURE_CAUSE or _spans(cause, known)]
    return [
        cause for cause in told_causes if cause.probability >= SURE_CAUSE and not same_on_some(cause, certain)
    ]


def long_parts(features: FeatureSet) -> list[Part]:
    """The steps before and after the slow stretch.

    A part of fewer than `MIN_STEPS` is too short to be asked about: what is added has to be certain.
    """
    segment, steps = features.comparison.segment, features.work.steps
    if segment.whole:
        return []
    sides = (0, segment.first), (segment.last + 1, steps.size)
    return [_part(features, begin, stop) for begin, stop in sides if stop - begin >= MIN_STEPS]


def slow_parts(features: FeatureSet) -> list[Part]:
    """Those of them that are slow in themselves."""
    return [part for part in long_parts(features) if _is_slow(features, part)]


def before_the_end(features: FeatureSet) -> list[Part]:
    """The steps of a stopped job up to its end, if they are slow in themselves and enough."""
    kept = features.work.steps.size - LAST_STEPS
    if kept < MIN_STEPS:
        return []
    part = _part(features, 0, kept)
    return [part] if _is_slow(features, part) else []


def _part(features: FeatureSet, begin: int, stop: int) -> Part:
    steps = features.work.steps
    return Part(int(steps[begin]), int(steps[stop - 1]) + 1, (stop - begin) / steps.size)


def _is_slow(features: FeatureSet, asked: Part) -> bool:
    part = slice(*np.searchsorted(features.work.steps, (asked.first, asked.end)))
    comparison, unit = features.comparison, features.work.step_reference
    step = features.work.job_step[part]
    quick = float(nan_quantile(step[:, None], REFERENCE_QUANTILE)[0])
    if float(nan_mean(step[:, None])[0]) - quick >= MIN_UNEVEN_STEPS_OF_SEGMENT * quick:
        return True
    gains: Sequence[FloatArray] = (comparison.gain_rank, comparison.gain_node, comparison.gain_stage)
    return any(float(gain[:, part].mean(axis=1).max()) >= MIN_SEGMENT_GAIN * unit for gain in gains)
