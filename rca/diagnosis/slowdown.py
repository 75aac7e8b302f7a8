"""The slowdown of a job: what its stragglers cost by the replay, and time that no timer saw."""

from __future__ import annotations

import numpy as np

from rca.classify.preconditions import lost_in_pauses, lost_untimed
from rca.diagnosis.pricing import Pricing
from rca.diagnosis.result import Slowdown
from rca.features import WINDOW_FEATURES, FeatureSet
from rca.telemetry.window import Window

_VERSUS_PAST = WINDOW_FEATURES.index("slow_segment_ratio")


def slowdown_of(window: Window, features: FeatureSet, pricing: Pricing, since: int | None) -> Slowdown:
    """The slowdown of a window, seconds as means over its steps (from the number `since` on).

    Parameters
    ----------
    window : Window
    features : FeatureSet
    pricing : Pricing
    since : int, optional
        First step that counts.
    """
    replayed = pricing.attribution.slowdown
    # The replay has all steps, and no pauses between them.
    pauses = lost_in_pauses(features)
    unseen = pauses + max(lost_untimed(features) - replayed, 0.0)
    seconds, measured = replayed + unseen, pricing.measured + pauses
    ideal = measured - seconds
    past = features.window[_VERSUS_PAST]
    steps = features.work.steps
    n_steps = steps.size if since is None else int((steps >= since).sum())
    low, high = pricing.attribution.slowdown_interval
    return Slowdown(
        ratio=float(measured / ideal) if ideal > 0 and np.isfinite(ideal) else 1.0,
        seconds_per_step=seconds,
        versus_own_past=float(past) if np.isfinite(past) else None,
        interval=(low + unseen, high + unseen),
        gpu_hours_lost=seconds * n_steps * window.job.world_size / 3600,
    )
