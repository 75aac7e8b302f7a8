"""Unequal input hits another rank each step; whoever is slow all the time is slow for another reason."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rca.features import FeatureSet

#: Share of the variance of own work that lasting differences between ranks may take.
MAX_LASTING = 0.5


def lateness_rotates(features: FeatureSet) -> bool:
    """Whether ranks are late in turn, or too little is known of it to say that they are not."""
    inside = features.comparison.segment.mask(features.work.steps.size)
    excess = features.comparison.excess[:, inside]
    excess = excess[np.isfinite(excess).all(axis=1)]
    if min(excess.shape) < 2:
        return True
    total = float(excess.var())
    return total <= 0 or float(excess.mean(axis=1).var()) <= MAX_LASTING * total


def without(cause: str, causes: Mapping[str, float]) -> dict[str, float]:
    """Beliefs given that it is not this cause, in the same order; unchanged if nothing else is believed."""
    rest = {name: chance for name, chance in causes.items() if name != cause}
    total = sum(rest.values())
    if cause not in causes or total <= 0:
        return dict(causes)
    return {name: chance / total for name, chance in rest.items()} | {cause: 0.0}
