"""Suspects -> the stragglers of the answer."""

from __future__ import annotations

import numpy as np

from rca.classify.classifier import Suspect
from rca.diagnosis.causes import shared_part
from rca.diagnosis.result import Straggler
from rca.features import FeatureSet
from rca.features.rank_features import late_steps
from rca.high_segment import high_segment
from rca.robust import nan_mean
from rca.window.causes import UNKNOWN, Pattern, pattern_of

#: A component has a slow segment of its own if its share of late steps differs by this much.
MIN_LATE_CONTRAST = 0.3
#: A step is one of a component's late ones if this share of its ranks was late.
HELD_UP = 0.5
#: Probability above which a straggler is transient.
MIN_PATTERN_SHARE = 0.5


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
        pattern=_pattern(suspect, first_cause or _likeliest(suspect.causes)),
        probability=suspect.component.probability,
        first_step=first,
        last_step=last,
        plausible_causes=plausible,
        shared=shared_part(ranks, first_cause or _likeliest(suspect.causes), features),
    )


def affected_steps(suspect: Suspect, features: FeatureSet) -> tuple[int | None, int | None]:
    """First and last training step in which the component was late.

    From the component's own lateness where that shows a segment, else from the job's slow segment. A
    stopped component has a first step only.
    """
    steps = features.work.steps
    ranks = list(suspect.component.ranks)
    if not suspect.types:
        last_row = np.flatnonzero(features.phases.present[ranks].any(axis=0))
        return (int(features.phases.steps[last_row[-1]]), None) if last_row.size else (None, None)
    if steps.size == 0:
        return None, None
    late = late_steps(features.comparison, features.work.step_reference)[ranks]
    segment = high_segment(nan_mean(late.astype(float)), min_z=4.0, min_contrast=MIN_LATE_CONTRAST)
    if segment.whole:
        held_up = np.flatnonzero(late.mean(axis=0) >= HELD_UP)
        if features.comparison.segment.whole and held_up.size:
            return int(steps[held_up[0]]), int(steps[held_up[-1]])
        segment = features.comparison.segment
    return int(steps[segment.first]), int(steps[segment.last])


def _pattern(suspect: Suspect, cause: str | None) -> Pattern | None:
    """The pattern: the model predicts only whether it is transient, the cause determines the rest."""
    if not suspect.patterns:
        return None
    return pattern_of(cause or UNKNOWN, ends_inside=suspect.patterns["transient"] > MIN_PATTERN_SHARE)


def _likeliest(chances: dict[str, float]) -> str | None:
    return max(chances, key=lambda name: chances[name]) if chances else None
