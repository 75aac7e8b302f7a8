"""How registered versions are told: scores with their intervals, the gate's verdict, who promoted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ENDS = ("value", "low", "high", "n")


def scores_of(metrics: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Scores of a run by name, each with ``value``, both ends of its interval and ``n``, as far as known.

    Parameters
    ----------
    metrics : mapping of str to float
        As MLflow has them: ``<score>_value``, ``<score>_low``, ``<score>_high``, ``<score>_n``.
    """
    found: dict[str, dict[str, float]] = {}
    for name in sorted(metrics):
        score, _, end = name.rpartition("_")
        if end in _ENDS and f"{score}_value" in metrics:
            found.setdefault(score, {})[end] = metrics[name]
    return found


def gate_of(tags: Mapping[str, str]) -> dict[str, Any] | None:
    """The verdict kept with a version; None if it was never compared."""
    from rca.training.promotion import AGAINST, BY, FORCED, OUTCOME, REASONS

    if OUTCOME not in tags:
        return None
    return {
        "outcome": tags[OUTCOME],
        "passed": tags[OUTCOME] != "worse",
        "against": tags.get(AGAINST, ""),
        "reasons": tags.get(REASONS, ""),
        "forced": tags.get(FORCED),
        "promoted_by": tags.get(BY),
    }
