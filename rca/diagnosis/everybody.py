"""A job that took longer for a while on all ranks alike: nobody straggles, and yet something changed."""

from __future__ import annotations

from rca.classify.sufficiency import can_show_health
from rca.features import WINDOW_FEATURES, FeatureSet

#: Steps in the stretch take this many times as long as the others, at least.
WORTH_ASKING = 1.2
_VERSUS_PAST = WINDOW_FEATURES.index("versus_past")


def everybody_check(features: FeatureSet) -> str | None:
    """What to ask about a job that nobody slows and that became slower all the same.

    Parameters
    ----------
    features : FeatureSet

    Returns
    -------
    str or None
        None if it did not become slower, or if too few ranks were timed to say that it was everybody.
    """
    segment, steps = features.comparison.segment, features.work.steps
    versus_past = float(features.window[_VERSUS_PAST])
    if segment.whole or not versus_past >= WORTH_ASKING or not can_show_health(features):
        return None
    first, last = int(steps[segment.first]), int(steps[segment.last])
    when = f"from step {first} on" if segment.last == steps.size - 1 else f"in steps {first} to {last}"
    return (
        f"{when} steps took {versus_past:.2f} times as long as the others, on all ranks alike: ask what "
        "changed for everybody (sequence lengths, evaluation, checkpoints, data, a shared network or store)"
    )
