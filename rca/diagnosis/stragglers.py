"""Suspects -> the stragglers of the answer."""

from __future__ import annotations

import numpy as np

from rca.classify.classifier import Suspect
from rca.diagnosis.causes import shared_part
from rca.diagnosis.result import Straggler
from rca.diagnosis.when_and_where import MAX_STEPS_AFTER
from rca.features import FeatureSet
from rca.features.rank_features import late_steps
from rca.high_segment import high_segment
from rca.robust import nan_max, zero_if_nan
from rca.window.causes import UNKNOWN, Pattern, pattern_of

#: An interval of the component's own lateness has this contrast at least, as a share of a usual step, and
#: outside it the lateness is at most this share of that inside.
MIN_CONTRAST, MAX_LATENESS_OUTSIDE = 0.02, 0.1
#: A step counts with at most so many usual steps of lateness.
MAX_LATENESS = 3.0
#: Contrast, z and number of the longer steps of a job.
MIN_CONTRAST_OF_JOB, MIN_Z_OF_JOB, MIN_STEPS_OF_JOB = 0.1, 12.0, 8
#: A step is one of a component's late ones if this share of its ranks was late.
HELD_UP = 0.5
#: Late steps so near to an end of the window, in steps or in usual gaps between late steps, reach it.
NEAR_END, NEAR_END_GAPS = 3, 1.5
#: Quantile of the gaps between late steps that is usual.
USUAL_GAP = 0.9


def straggler(
    suspect: Suspect,
    features: FeatureSet,
    first_cause: str | None,
    plausible: list[str],
) -> Straggler:
    """One component with its likeliest type and pattern, and the steps in which it delayed the job.

    Parameters
    ----------
    first_cause : str or None
        The cause that the diagnosis lists first on these ranks.
    plausible : list of str
        Causes that are not ruled out on these ranks.
    """
    ranks = list(suspect.component.ranks)
    first, last = affected_steps(suspect, features)
    return Straggler(
        ranks=ranks,
        nodes=features.topology.nodes_of(ranks),
        scope=suspect.component.scope,
        straggler_type=_likeliest(suspect.types),
        pattern=_pattern(suspect, first_cause or _likeliest(suspect.causes), last, features),
        probability=suspect.component.probability,
        first_step=first,
        last_step=last,
        plausible_causes=plausible,
        shared=shared_part(ranks, first_cause or _likeliest(suspect.causes), features),
    )


def affected_steps(suspect: Suspect, features: FeatureSet) -> tuple[int | None, int | None]:
    """First and last training step in which the component was late.

    An interval of its own lateness, of longer steps of the job, or from the first to the last late step. A
    stopped component has a first step only.
    """
    steps = features.work.steps
    ranks = list(suspect.component.ranks)
    if not suspect.types:
        last_row = np.flatnonzero(features.phases.present[ranks].any(axis=0))
        return (int(features.phases.steps[last_row[-1]]), None) if last_row.size else (None, None)
    if steps.size == 0:
        return None, None
    first, last = _own_interval(suspect, features) or _late_interval(suspect, features)
    return int(steps[first]), int(steps[last])


def _own_interval(suspect: Suspect, features: FeatureSet) -> tuple[int, int] | None:
    """Columns of an interval in which nearly all lateness of some ranks lies."""
    if suspect.component.scope == "job":
        return None
    usual = features.work.step_reference
    excess = zero_if_nan(nan_max(features.comparison.excess[list(suspect.component.ranks)]))
    lateness = np.clip(excess, 0.0, MAX_LATENESS * usual)
    found = high_segment(lateness, min_contrast=MIN_CONTRAST * usual)
    inside = found.mask(lateness.size)
    if found.whole or lateness[~inside].mean() > MAX_LATENESS_OUTSIDE * lateness[inside].mean():
        return None
    return found.first, found.last


def _late_interval(suspect: Suspect, features: FeatureSet) -> tuple[int, int]:
    """Columns of the longer steps of the job, or from the first late step to the last."""
    work = features.work
    late = suspect.steps
    if late is None:
        ranks = list(suspect.component.ranks)
        late = late_steps(features.comparison, work.step_reference)[ranks].mean(axis=0) >= HELD_UP
    if late.all() or not late.any():
        least = MIN_CONTRAST_OF_JOB * work.step_reference
        longer = high_segment(work.job_step, min_z=MIN_Z_OF_JOB, min_contrast=least)
        short = longer.last - longer.first + 1 < MIN_STEPS_OF_JOB
        return (0, late.size - 1) if short else (longer.first, longer.last)
    columns, end = np.flatnonzero(late), late.size - 1
    gaps = np.diff(columns)
    near = max(NEAR_END, NEAR_END_GAPS * float(np.quantile(gaps, USUAL_GAP))) if gaps.size else late.size
    first, last = int(columns[0]), int(columns[-1])
    return 0 if first <= near else first, end if end - last <= near else last


def _pattern(suspect: Suspect, cause: str | None, last: int | None, features: FeatureSet) -> Pattern | None:
    """The pattern by the cause, and by whether the lateness ends within the window."""
    if not suspect.types or last is None:
        return None
    return pattern_of(cause or UNKNOWN, ends_inside=last < features.work.steps[-1] - MAX_STEPS_AFTER)


def _likeliest(chances: dict[str, float]) -> str | None:
    return max(chances, key=lambda name: chances[name]) if chances else None
