"""Limits for a bundle, made up so that tests do not depend on how the shipped one was trained."""

from __future__ import annotations

import numpy as np

from rca.classify.out_of_distribution import SHAPE, Familiarity, JobShape, Ranges
from rca.features import WINDOW_FEATURES
from rca.window.causes import SLOW_CAUSES, STOP_CAUSES

OPEN = {"mode": {}, "cause": {}, "stop_cause": {}}
SETTLED = {
    "mode": dict.fromkeys(("healthy", "fail_slow", "fail_stop"), 0.5),
    "cause": dict.fromkeys(SLOW_CAUSES, 0.5),
    "stop_cause": dict.fromkeys(STOP_CAUSES, 0.5),
}


def familiar_with(distance_limit: float = np.inf, **ranges: tuple[float, float]) -> Familiarity:
    """Familiarity with jobs of a shape up to this distance, and with these ranges of features."""
    low, high = np.full(len(WINDOW_FEATURES), -np.inf), np.full(len(WINDOW_FEATURES), np.inf)
    for name, (smallest, largest) in ranges.items():
        column = WINDOW_FEATURES.index(name)
        low[column], high[column] = smallest, largest
    size = len(SHAPE)
    shape = JobShape(np.zeros(size), np.ones(size), np.eye(size))
    return Familiarity(Ranges(low, high), shape, distance_limit)
