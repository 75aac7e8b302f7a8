"""Whether a window is long and complete enough to be certain: silence is not health, and a blink no trend."""

from __future__ import annotations

import numpy as np

from rca.features import FeatureSet

#: The shortest windows of the training corpus; below, healthy jobs are called slow far too often.
MIN_STEPS = 15


def long_enough(features: FeatureSet) -> bool:
    """Whether enough steps were finished to call a job slow or healthy."""
    return features.work.steps.size >= MIN_STEPS


def can_show_health(features: FeatureSet) -> bool:
    """Whether enough ranks over enough steps were seen working to call the job healthy with certainty.

    A rank's own work has to be known (phases or communication were timed), of half of the ranks at least.
    """
    seen = np.isfinite(features.work.own)
    ranks, steps = int(seen.any(axis=1).sum()), int(seen.any(axis=0).sum())
    return 2 * ranks >= seen.shape[0] and steps >= MIN_STEPS
