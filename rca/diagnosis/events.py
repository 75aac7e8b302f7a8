"""Single long steps in words: which, by how much, and who was last."""

from __future__ import annotations

import numpy as np

from rca.classify.classifier import Classification
from rca.diagnosis.data_quality import listed
from rca.features import FeatureSet
from rca.robust import nan_max, nan_median

_SHOWN = 3
#: Late ranks of an event: at least this share of the last one's lateness.
ALSO_LATE = 0.5


def single_events_sentence(classification: Classification, features: FeatureSet) -> str:
    """One sentence that names the steps without which the job is healthy."""
    events = classification.events
    numbers = ", ".join(str(int(features.work.steps[column])) for column in events[:_SHOWN])
    more = f" and {len(events) - _SHOWN} more" if len(events) > _SHOWN else ""
    step = features.work.job_step
    longer = float(np.nanmax(step[list(events)]) - nan_median(step[None, :], axis=1)[0])
    plural = "s" if len(events) > 1 else ""
    return (
        f"only step{plural} {numbers}{more} stood out (up to {max(longer, 0.0):.3g} s longer than usual"
        f"{_late(classification, features)}); without {'them' if plural else 'it'} the job is healthy"
    )


def events_check(classification: Classification, features: FeatureSet) -> str:
    """What to look at after a single event."""
    step = int(features.work.steps[classification.events[0]])
    return (
        f"look into logs and file systems{_late(classification, features, ' of ')} around step {step}; "
        "if such steps return, send a longer window"
    )


def _late(classification: Classification, features: FeatureSet, before: str = ", last ") -> str:
    """Who was late in the worst of the steps; empty where nobody stood apart."""
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
