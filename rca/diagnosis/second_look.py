"""Faults that act while the first one rests: the steps beside what is diagnosed are asked on their own.

Everything a diagnosis of a slow job looks at is compared between the one stretch in which it was slowest and
the rest of the window. A fault that began when another ended lies in that rest, and counts as usual there.
Where the rest is slow in itself, it is a window like any other: a fault may slow the job all the time, and
the slowest stretch be a harmless one. So are the steps of a stopped job, up to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rca.arrays import FloatArray
from rca.classify.sufficiency import MIN_STEPS
from rca.diagnosis.causes import catalogued
from rca.diagnosis.joining import instead, joined, same_on_some
from rca.diagnosis.result import Cause, Diagnosis
from rca.features import FeatureSet
from rca.robust import REFERENCE_QUANTILE, nan_mean, nan_quantile
from rca.telemetry.step_clock import StepClock
from rca.telemetry.window import Window

#: The last steps of a stopped job belong to its end: some ranks had finished them, and some had not.
LAST_STEPS = 2
#: A part is asked about if its steps are on average this much longer than its own quick ones, or if without
#: one rank, node or stage they would be this much shorter.
UNEVEN, GAINED = 0.06, 0.03
#: What a part says is added to an answer that stands already: it has to be more certain than that had to be.
SURE_MODE, SURE_CAUSE = 0.98, 0.9
#: A cause that is likelier than not is told beside why the job stopped.
NAMED = 0.5
#: Belief from which a part beside a harmless stretch raises the alarm; whoever asks twice has to be surer.
SURE_ALARM = 0.99


class Part(NamedTuple):
    """Steps beside the slow stretch: numbers from `first` up to, not including, `end`; `share` of all."""

    first: int
    end: int
    share: float


def slow_parts(features: FeatureSet) -> list[Part]:
    """The steps before and after the slow stretch, as far as they are slow in themselves.

    A part of fewer than `MIN_STEPS` is too short to be asked about: what is added has to be certain.
    """
    segment, steps = features.comparison.segment, features.work.steps
    if segment.whole:
        return []
    found = []
    for begin, stop in ((0, segment.first), (segment.last + 1, steps.size)):
        if stop - begin >= MIN_STEPS and _is_slow(features, slice(begin, stop)):
            found.append(Part(int(steps[begin]), int(steps[stop - 1]) + 1, (stop - begin) / steps.size))
    return found


def before_the_end(features: FeatureSet) -> list[Part]:
    """The steps of a stopped job up to its end, if they are slow in themselves and enough."""
    steps = features.work.steps
    kept = steps.size - LAST_STEPS
    if kept < MIN_STEPS or not _is_slow(features, slice(0, kept)):
        return []
    return [Part(int(steps[0]), int(steps[kept - 1]) + 1, kept / steps.size)]


def _is_slow(features: FeatureSet, part: slice) -> bool:
    comparison, unit = features.comparison, features.work.step_reference
    step = features.work.job_step[part]
    quick = float(nan_quantile(step[:, None], REFERENCE_QUANTILE)[0])
    if float(nan_mean(step[:, None])[0]) - quick >= UNEVEN * quick:
        return True
    gains: Sequence[FloatArray] = (comparison.gain_rank, comparison.gain_node, comparison.gain_stage)
    return any(float(gain[:, part].mean(axis=1).max()) >= GAINED * unit for gain in gains)


def _parts(diagnosis: Diagnosis, features: FeatureSet) -> list[Part]:
    """What is asked on its own."""
    if diagnosis.failure_mode != "fail_stop":
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
    answers = [(part, ask(clock.between(part.first, part.end))) for part in parts]
    if diagnosis.failure_mode == "healthy":
        return _alarmed(diagnosis, answers, measured, rank_steps)
    for part, told in answers:
        if new := _certain(told, diagnosis):
            diagnosis = joined(
                diagnosis, told, new, share=part.share, measured=measured, rank_steps=rank_steps
            )
    return diagnosis


def _alarmed(
    healthy: Diagnosis, answers: Sequence[tuple[Part, Diagnosis]], measured: float, rank_steps: float
) -> Diagnosis:
    """The verdict of the longest part that is sure of a fault, which a harmless stretch had hidden."""
    sure = [
        (part, told)
        for part, told in answers
        if told.failure_mode == "fail_slow" and told.failure_mode_probability["fail_slow"] >= SURE_ALARM
    ]
    if not sure:
        return healthy
    part, told = max(sure, key=lambda each: each[0].share)
    share = 1.0 if _all_the_time(told, part) else part.share
    return instead(healthy, told, share=share, measured=measured, rank_steps=rank_steps)


def _all_the_time(told: Diagnosis, part: Part) -> bool:
    """Whether what a part says neither begins nor ends in it, so that it is so in the whole window."""
    steps = [(one.first_step, one.last_step) for one in told.stragglers]
    return bool(steps) and all(
        first is not None and last is not None and first <= part.first and last >= part.end - 1
        for first, last in steps
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
