"""Data quality of a window: rows and samples used, silent ranks, and unusual features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rca.classify.out_of_distribution import SHAPE, Outside, Strangeness
from rca.classify.preconditions import idles_between_steps, lost_in_pauses
from rca.diagnosis.result import Diagnosis, Quality
from rca.features import FeatureSet, describe
from rca.features.end_events import FATAL_EVENTS, MISSED_EVENTS
from rca.features.resource_evidence import RESOURCES
from rca.features.table import Feature
from rca.window.catalogue import resolve
from rca.window.window import Window

#: Rows that end this many steps before the others' are worth a note.
EARLY_END_STEPS = 3
_SHOWN_RANKS = 8
_SHOWN_SHAPE = 3
#: What the logarithms of a job's shape count.
_COUNTED = {"log2_ranks": "ranks", "log2_nodes": "nodes", "log2_steps": "steps"}


def silent_ranks(features: FeatureSet) -> list[int]:
    """Ranks of the job without a single row."""
    return [int(rank) for rank in np.flatnonzero(~features.phases.present.any(axis=1))]


def quality(
    window: Window, features: FeatureSet, mode: str, strangeness: Strangeness | None = None
) -> Quality:
    """Counts of used and unused data, notes on silent ranks, and what is unlike the training windows."""
    warmup = features.work.warmup
    unused = int(features.phases.present[:, :warmup].sum())
    kinds = window.events["kind"].to_pylist()
    used = sum(kind in FATAL_EVENTS or kind in MISSED_EVENTS for kind in kinds)
    # Log lines about trouble at the end of the job are used as well.
    used = max(used, features.job_end.trouble_events)
    return Quality(
        rows_used=window.steps.num_rows - unused,
        rows_unused=unused,
        steps_used=int(features.work.steps.size),
        warmup_steps=warmup,
        metric_samples_used=features.signals.samples_used,
        metric_samples_unused=window.metrics.num_rows - features.signals.samples_used,
        events_used=used,
        events_unused=len(kinds) - used,
        unknown_metrics=sorted(features.signals.unknown_names),
        notes=[*window.notes, *_absences(features, mode)],
        out_of_distribution=None if strangeness is None else strangeness.out_of_distribution,
        unfamiliar=[] if strangeness is None else unfamiliar(strangeness, features),
        features_outside=[] if strangeness is None else [each.feature for each in strangeness.outside],
    )


def with_unusable_signals(diagnosis: Diagnosis, window: Window) -> Diagnosis:
    """The diagnosis with resources that have samples, but none to compare, as notes and not as missing."""
    missing = [name for name in diagnosis.missing_signals if name in RESOURCES]
    if not missing or window.metrics.num_rows == 0:
        return diagnosis
    samples = _samples_by_channel(window)
    sent = {name: sum(samples.get(each.channel, 0) for each in RESOURCES[name]) for name in missing}
    notes = [
        f"{name}: {number:,} sample{'' if number == 1 else 's'} with nothing to compare with"
        for name, number in sent.items()
        if number
    ]
    if not notes:
        return diagnosis
    known = diagnosis.quality
    return diagnosis.model_copy(
        update={
            "missing_signals": [name for name in diagnosis.missing_signals if not sent.get(name)],
            "quality": known.model_copy(update={"notes": [*known.notes, *notes]}),
        }
    )


def _samples_by_channel(window: Window) -> dict[str, int]:
    """Samples of the signals that may feed each channel."""
    found: dict[str, int] = {}
    for counted in window.metrics.column("name").value_counts().to_pylist():
        signal = resolve(counted["values"])
        for channel in () if signal is None else signal.all_channels():
            found[channel] = found.get(channel, 0) + counted["counts"]
    return found


def with_history_notes(diagnosis: Diagnosis, node_odds: Mapping[str, float]) -> Diagnosis:
    """The diagnosis with a note on every node of a cause that has a fault history."""
    named = {node for cause in diagnosis.causes for node in cause.nodes}
    notes = [
        f"{node} was at fault before: the odds of its ranks were multiplied by {factor:.3g}"
        for node, factor in sorted(node_odds.items())
        if node in named and factor != 1
    ]
    if not notes:
        return diagnosis
    known = diagnosis.quality
    return diagnosis.model_copy(
        update={"quality": known.model_copy(update={"notes": [*known.notes, *notes]})}
    )


def unfamiliar(strangeness: Strangeness, features: FeatureSet) -> list[str]:
    """How a window that is out of distribution differs from the training windows; empty for any other."""
    if not strangeness.out_of_distribution:
        return []
    of_the_shape = [each for each in strangeness.outside if each.feature in SHAPE]
    named = ", ".join(_features()[name].meaning for name in strangeness.oddest[:_SHOWN_SHAPE])
    times = strangeness.distance / strangeness.distance_limit
    unusual = (
        "the job's shape is unlike those of the training windows: "
        f"{times:.1f} times as far from them as the limit; most unusual: {named}"
    )
    return [unusual, *(_outside(each, features) for each in of_the_shape)]


def _outside(found: Outside, features: FeatureSet) -> str:
    feature = _features()[found.feature]
    step = features.work.step_reference
    (value, unit), (low, _), (high, _) = (
        in_user_units(feature, number, step) for number in (found.value, found.low, found.high)
    )
    learned = f"only {_number(low)}" if low == high else f"{_number(low)} to {_number(high)}"
    shown = f"{feature.meaning}: {_number(value)} {unit}".rstrip()
    return f"{shown}; training windows had {learned}"


def in_user_units(feature: Feature, value: float, step_seconds: float) -> tuple[float, str]:
    """Value and unit for people: relative durations in seconds, logarithms undone, shares in per cent."""
    if feature.unit == "relative":
        return value * step_seconds, "s"
    if feature.unit == "log2":
        # numpy, not `**`: an absurd exponent becomes infinite instead of an error.
        return float(np.exp2(value)), _COUNTED.get(feature.name, "")
    return (100.0 * value, "percent") if feature.unit == "share" else (value, "")


def _features() -> dict[str, Feature]:
    return {each.name: each for each in describe()["window"]}


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _absences(features: FeatureSet, mode: str) -> list[str]:
    notes = []
    phases = features.phases
    silent = silent_ranks(features)
    if silent:
        notes.append(f"{len(silent)} of {phases.n_ranks} ranks reported no step: {listed(silent)}")
    early = np.flatnonzero(phases.n_steps - 1 - phases.last_column >= EARLY_END_STEPS)
    if early.size and mode != "fail_stop":
        notes.append(f"rows end {EARLY_END_STEPS} steps or more before the others': {listed(early.tolist())}")
    if idles_between_steps(features):
        share, pauses = features.work.share_between_steps, lost_in_pauses(features)
        notes.append(
            f"{share:.1%} of the time lies between the steps; "
            f"of it, the cost per step includes {pauses:.3g} s of pauses that are longer than usual"
        )
    if not np.isfinite(features.work.own).any():
        notes.append(
            "no phase timings: the slow rank and its cost are unknown; "
            "add forward, backward and communication times"
        )
    return notes


def listed(ranks: Sequence[int]) -> str:
    """Ranks for a sentence, the first few of many."""
    shown = ", ".join(str(rank) for rank in ranks[:_SHOWN_RANKS])
    more = f" and {len(ranks) - _SHOWN_RANKS:,} more" if len(ranks) > _SHOWN_RANKS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"
