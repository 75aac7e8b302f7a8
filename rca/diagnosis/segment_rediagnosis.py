"""Diagnose segments of a window on their own, to find faults outside its slow segment.

The diagnosis of a slow job compares its slow segment with the other steps. A fault in the other steps counts
as usual there. So if these are slow themselves, they are diagnosed as a window of their own. The steps of a
stopped job are diagnosed up to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.classify.decision_table import MIN_STEPS, SLOW_BEFORE_STOP, SURE_CAUSE, SURE_MODE
from rca.diagnosis.causes import catalogued
from rca.diagnosis.merge_diagnoses import (
    merge_diagnoses,
    same_on_some,
)
from rca.diagnosis.result import Cause, Diagnosis
from rca.features import FeatureSet
from rca.robust import REFERENCE_QUANTILE, nan_mean, nan_quantile
from rca.window.times.step_clock import StepClock
from rca.window.window import Window

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
    slow, before_end : list of Part
        From `slow_parts` and `before_the_end`.
    """

    steps: IntArray
    warmup: int
    whole: bool
    slow: list[Part]
    before_end: list[Part]

    @classmethod
    def of(cls, features: FeatureSet) -> Outline:
        """The outline of a window with these features."""
        return cls(
            features.work.steps,
            features.work.warmup,
            features.comparison.segment.whole,
            slow_parts(features),
            before_the_end(features),
        )


def _parts(diagnosis: Diagnosis, outline: Outline) -> list[Part]:
    """The parts to diagnose on their own."""
    if diagnosis.failure_mode == "healthy":
        return []
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
        Unchanged where the job is healthy, or no part is slow or adds a cause. Otherwise with further
        stragglers, causes and actions. Their seconds are means over all steps of the window.
    """
    parts = _parts(diagnosis, outline)
    if not parts:
        return diagnosis
    clock, rank_steps = StepClock.of(window), outline.steps.size * float(window.job.world_size)
    answers = [PartDiagnosis(part, diagnose_part(clock.between(part.first, part.end))) for part in parts]
    for part, of_part in answers:
        if new := _certain(of_part, diagnosis):
            diagnosis = merge_diagnoses(
                diagnosis, of_part, new, share=part.share, measured=measured, rank_steps=rank_steps
            )
    return diagnosis


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
