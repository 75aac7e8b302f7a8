"""Which parts of a window are asked about on their own: those that are slow in themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rca.arrays import FloatArray
from rca.classify.preconditions import MIN_STEPS
from rca.features import FeatureSet
from rca.robust import REFERENCE_QUANTILE, nan_mean, nan_quantile

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
