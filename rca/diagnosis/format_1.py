"""Reads answers of format 1: lifts their documents to format 2.

Format 1 wrote 0 for costs that were unknown, had no verdict, and no times and places of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rca.window.causes import STOP_CAUSES

#: Signal of the evidence that explains why a cause has no price.
PRICE = "seconds_per_step"
#: Fields of a slowdown that are null where the cost is unknown.
COSTS = ("ratio", "seconds_per_step", "interval", "gpu_hours_lost")
#: A job is notably slower than before from this ratio on; less is day-to-day variation.
NOTABLE_SLOWING = 1.10
#: A replay without stragglers that is less than this faster has found no cost.
_NO_COST_RATIO = 1.01


def lifted(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document of format 1 in format 2.

    Parameters
    ----------
    document : mapping
        Decoded JSON of an answer of format 1. Fields that it lacks are left to the validation.

    Raises
    ------
    ValueError
        If a part has another type than format 1 gives it.
    """
    try:
        return _lifted(document)
    except (AttributeError, KeyError, TypeError):
        raise ValueError("a part of this answer of format 1 is missing or has a wrong type") from None


def _lifted(document: Mapping[str, Any]) -> dict[str, Any]:
    causes = [_cause(each) for each in document.get("causes", ())]
    new = {**document, "format": 2, "causes": causes}
    slowdown = document.get("slowdown", {})
    unknown = cost_is_unknown(
        steps_used=document.get("quality", {}).get("steps_used", 0),
        seconds=slowdown.get("seconds_per_step"),
        ratio=slowdown.get("ratio"),
        versus_own_past=slowdown.get("versus_own_past"),
        abstained=document.get("abstained", False),
        priced=[each["seconds_per_step"] is not None for each in causes if not _stops(each)],
    )
    if unknown:
        new["slowdown"] = {**slowdown, **dict.fromkeys(COSTS)}
        new["unexplained_seconds_per_step"] = None
    return new


def without_contributions(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document without what older answers told of their models' trees."""
    kept = {name: value for name, value in document.items() if name != "failure_mode_evidence"}
    stragglers = kept.get("stragglers")
    if isinstance(stragglers, list) and all(isinstance(each, dict) for each in stragglers):
        gone = ("evidence", "preference")
        kept["stragglers"] = [
            {name: value for name, value in each.items() if name not in gone} for each in stragglers
        ]
    return kept


def cost_is_unknown(
    *,
    steps_used: int,
    seconds: float | None,
    ratio: float | None,
    versus_own_past: float | None,
    abstained: bool,
    priced: Sequence[bool],
) -> bool:
    """Whether the cost per step of a slowdown is unknown, and not zero.

    Parameters
    ----------
    seconds, ratio : float or None
        Of the replay without stragglers.
    priced : sequence of bool
        For each cause of slowness, whether its cost is known.

    Returns
    -------
    bool
        True without timed steps, and if no cause has a price. True too if the job is slower than before, the
        answer abstains and the replay shows no cost.
    """
    if not seconds and steps_used == 0:
        return True
    if priced and not any(priced):
        return True
    slower = versus_own_past is not None and versus_own_past >= NOTABLE_SLOWING
    return abstained and not priced and slower and (ratio or 1.0) < _NO_COST_RATIO


def _cause(cause: Mapping[str, Any]) -> dict[str, Any]:
    unpriced = any(
        each.get("signal") == PRICE and each.get("value") is None for each in cause.get("evidence", ())
    )
    cost = {} if not (unpriced or _stops(cause)) else dict.fromkeys(("seconds_per_step", "interval", "share"))
    return {**cause, **cost}


def _stops(cause: Mapping[str, Any]) -> bool:
    return cause.get("cause") in STOP_CAUSES
