"""Probabilities of classes: pooled over ranks, combined, raised, ordered."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rca.arrays import FloatArray
from rca.window.causes import CAUSES, STRAGGLER_TYPES, UNKNOWN


def pooled(chances: FloatArray) -> FloatArray:
    """Geometric mean of probabilities of shape (n_ranks, n_classes), normalised to shape (n_classes,)."""
    logs = np.log(np.maximum(chances, 1e-9)).mean(axis=0)
    weights = np.exp(logs - logs.max())
    result: FloatArray = weights / weights.sum()
    return result


def combine(types: dict[str, float], causes: dict[str, float]) -> dict[str, float]:
    """P(cause) = P(type) P(cause | type): the two heads cannot contradict each other.

    An unknown cause has no type; the other causes share the probability that it leaves.
    """
    combined = {UNKNOWN: causes[UNKNOWN]} if UNKNOWN in causes else {}
    catalogued = 1.0 - combined.get(UNKNOWN, 0.0)
    for straggler_type in STRAGGLER_TYPES:
        members = [name for name in causes if name in CAUSES and CAUSES[name].type == straggler_type]
        total = sum(causes[cause] for cause in members)
        for cause in members:
            combined[cause] = catalogued * types.get(straggler_type, 0.0) * causes[cause] / max(total, 1e-12)
    return ordered(combined)


def at_least(chances: Mapping[str, float], name: str, least: float) -> dict[str, float]:
    """The probabilities with that of `name` raised to `least`; the others share the rest as before."""
    if chances[name] >= least:
        return dict(chances)
    factor = (1.0 - least) / (1.0 - chances[name])
    return {each: least if each == name else factor * chance for each, chance in chances.items()}


def types_of(causes: dict[str, float]) -> dict[str, float]:
    """Probability of each type: the sum over its causes."""
    return {
        straggler_type: sum(
            chance
            for cause, chance in causes.items()
            if cause in CAUSES and CAUSES[cause].type == straggler_type
        )
        for straggler_type in STRAGGLER_TYPES
    }


def ordered(chances: dict[str, float]) -> dict[str, float]:
    """Most probable first; ties by name, so that equal inputs give equal answers."""
    return dict(sorted(chances.items(), key=lambda item: (-item[1], item[0])))
