"""Model features in the user's units: seconds, per cent, ranks, and an exporter's own units."""

from __future__ import annotations

from functools import cache

import numpy as np

from rca.features import describe
from rca.features.resource_evidence import RESOURCES
from rca.features.table import Feature

#: Unit of the feature table -> factor and unit for people; "relative" and "log2" are not factors.
_UNITS = {
    "share of steps": (100.0, "percent"),
    "share of ranks": (100.0, "percent"),
    "share": (100.0, "percent"),
    "noise": (1.0, "times the healthy spread"),
    "units": (1.0, "(1 is remarkable)"),
    "steps": (1.0, "steps"),
}
_COUNTED = {"log2_ranks": "ranks", "log2_nodes": "nodes", "log2_steps": "steps"}


@cache
def table_of(table: str) -> tuple[Feature, ...]:
    """Features of a table ("window" or "rank") in model order."""
    return describe()[table]


def subject_of_signal(signal: str) -> str:
    """The subject of a piece of evidence for a cause, as in `subject`."""
    if signal == "communication_transfer_seconds":
        return "transfer"
    for resource, channels in RESOURCES.items():
        if any(channel.channel == signal for channel in channels):
            return resource
    return signal


def in_user_units(feature: Feature, value: float, step_seconds: float) -> tuple[float, str]:
    """Value and unit for people: relative durations in seconds, logarithms undone, shares in per cent."""
    if feature.unit == "relative":
        return value * step_seconds, "s"
    if feature.unit == "log2":
        # numpy, not `**`: an absurd exponent becomes infinite instead of an error.
        return float(np.exp2(value)), _COUNTED.get(feature.name, "")
    factor, unit = _UNITS.get(feature.unit, (1.0, ""))
    return value * factor, unit
