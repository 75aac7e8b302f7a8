"""Model features in the user's units: seconds, per cent, ranks, and an exporter's own units."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from rca.arrays import FloatArray
from rca.features import FeatureSet, describe
from rca.features.groups import feature_groups
from rca.features.resource_evidence import RESOURCES, resource_names
from rca.features.table import Feature
from rca.features.work import OWN_PHASES
from rca.window.catalogue import unit_of_channel

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
#: Features of a job's end -> the signal of the same subject in the evidence of causes.
_ENDINGS = {
    "steps_behind_furthest": "steps_behind",
    "steps_behind": "steps_behind",
    "max_steps_behind": "steps_behind",
    "ended_early_share": "steps_behind",
    "fatal_event": "events",
    "any_fatal_event": "events",
    "fatal_delay": "events",
}


@dataclass(frozen=True)
class Reading:
    """One feature's value in the user's units.

    Attributes
    ----------
    signal : str
        The exporter's channel where the feature scores one, else the feature's name.
    reference : float or None
        What is usual, in the same unit.
    """

    signal: str
    value: float
    reference: float | None
    unit: str
    note: str


@cache
def table_of(table: str) -> tuple[Feature, ...]:
    """Features of a table ("window" or "rank") in model order."""
    return describe()[table]


@cache
def subject(feature: str) -> str:
    """The subject of a feature, so that each is shown once: a phase, a resource, a group."""
    for column in OWN_PHASES:
        phase = column.removesuffix("_seconds")
        names = {f"{phase}_{suffix}" for suffix in ("excess", "growth", "growth_job", "share")}
        if feature.removeprefix("max_") in names:
            return column
    group = feature_groups()[feature]
    return _ENDINGS.get(feature, feature) if group == "endings" else group


def subject_of_signal(signal: str) -> str:
    """The subject of a piece of evidence for a cause, as in `subject`."""
    if signal == "communication_transfer_seconds":
        return "transfer"
    for resource, channels in RESOURCES.items():
        if any(channel.channel == signal for channel in channels):
            return resource
    return signal


def read_feature(
    feature: Feature, value: float, usual: float, features: FeatureSet, rank: int | None
) -> Reading | None:
    """One feature in the user's units; None where it has no value.

    Parameters
    ----------
    value, usual : float
        Of the window, and of healthy training windows (NaN if not known); in the feature's own unit.
    features : FeatureSet
        Of the window.
    rank : int or None
        Rank of the feature; None for the window's.
    """
    if not np.isfinite(value):
        return None
    if feature_groups()[feature.name] in RESOURCES:
        return _channel(feature, features, rank)
    shown, unit = in_user_units(feature, value, features.work.step_reference)
    reference, _ = in_user_units(feature, usual, features.work.step_reference)
    known = bool(np.isfinite(reference))
    return Reading(feature.name, shown, reference if known else None, unit, feature.meaning)


def in_user_units(feature: Feature, value: float, step_seconds: float) -> tuple[float, str]:
    """Value and unit for people: relative durations in seconds, logarithms undone, shares in per cent."""
    if feature.unit == "relative":
        return value * step_seconds, "s"
    if feature.unit == "log2":
        # numpy, not `**`: an absurd exponent becomes infinite instead of an error.
        return float(np.exp2(value)), _COUNTED.get(feature.name, "")
    factor, unit = _UNITS.get(feature.unit, (1.0, ""))
    return value * factor, unit


def _channel(feature: Feature, features: FeatureSet, rank: int | None) -> Reading | None:
    """The exporter's channel behind a resource's score, with its reference."""
    evidence = features.evidence
    resource = feature_groups()[feature.name]
    column = resource_names().index(resource)
    kinds = {"peers": evidence.versus_peers, "past": evidence.versus_past, "nominal": evidence.versus_nominal}
    scores = kinds[feature.name.rsplit("_", 1)[1]]
    worst = _worst(scores[:, column]) if rank is None else rank
    best = int(evidence.worst_channel[worst, column])
    if best < 0 or (rank is None and not scores[worst, column]):
        return None
    channel = RESOURCES[resource][best].channel
    value, reference = float(evidence.values[channel][worst]), float(evidence.references[channel][worst])
    if not np.isfinite(value):
        return None
    return Reading(
        channel,
        value,
        reference if np.isfinite(reference) else None,
        unit_of_channel(channel),
        f"rank {worst}, mean over the slow steps, compared with its peers, the other steps or the nominal "
        "value",
    )


def _worst(scores: FloatArray) -> int:
    return int(np.argmax(np.where(np.isfinite(scores), scores, -np.inf)))
