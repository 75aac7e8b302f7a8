"""A job that took longer for a while without a rank that did: nobody straggles, and yet something changed."""

from __future__ import annotations

from rca.classify.preconditions import can_show_health
from rca.features import WINDOW_FEATURES, FeatureSet

WHAT_CHANGED = (
    "find what changed for the whole job (sequence lengths, evaluation, checkpoints, data, a shared network "
    "or storage)"
)
#: Steps in the stretch take this many times as long as the others, at least.
WORTH_ASKING = 1.2
#: The last of all became later by less than this share of what steps became longer.
NOT_ONES_OWN = 0.5
_VERSUS_PAST, _LONGER, _LATER = (
    WINDOW_FEATURES.index(name) for name in ("slow_segment_ratio", "slow_segment_contrast", "lateness_growth")
)


def job_wide_check(features: FeatureSet) -> str | None:
    """What to ask about a job that nobody slows and that was slower for a while all the same.

    Parameters
    ----------
    features : FeatureSet

    Returns
    -------
    str or None
        None if it was not, if it was one of them, or if too few were timed to say that it was everybody.
    """
    segment, steps = features.comparison.segment, features.work.steps
    ratio = float(features.window[_VERSUS_PAST])
    if segment.whole or not ratio >= WORTH_ASKING or not can_show_health(features):
        return None
    if not features.window[_LATER] < NOT_ONES_OWN * features.window[_LONGER]:
        return None
    first, last = int(steps[segment.first]), int(steps[segment.last])
    when = f"from step {first} on" if segment.last == steps.size - 1 else f"in steps {first} to {last}"
    return f"{when} steps took {ratio:.2f} times as long as the others, on all ranks alike: {WHAT_CHANGED}"
