"""One window, real or simulated, as numbers: its features, and its levels before and during the faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.evaluation.realism.capture_plan import CapturePlan
from rca.features import JOB_FEATURES, RANK_FEATURES, WINDOW_FEATURES, FeatureSet, describe, extract
from rca.robust import nan_mean, nan_median
from rca.telemetry.schema import PHASES
from rca.telemetry.signal_arrays import SignalArrays
from rca.telemetry.window import Window

VICTIM, PEERS = "victim", "peers"
#: Share of a healthy job's steps that count as before.
HEALTHY_BEFORE_SHARE = 0.4
#: Steps that a level needs.
LEAST_STEPS = 4
#: Smallest difference that matters, by the unit of a feature; a hundredth for all others.
RESOLUTION_OF_UNIT = {
    "units": 0.25,
    "steps": 1.0,
    "noise": 1.0,
    "-1..1": 0.05,
    "0..1": 0.05,
    "count": 1.0,
    "log2": 0.25,
}
FINE = 0.01
#: Edges of time bins must ascend by at least this, seconds.
MOMENT = 1e-6


@dataclass(frozen=True)
class Level:
    """A quantity before and during the faults; NaN without such steps or without a measurement."""

    before: float
    during: float


@dataclass(frozen=True)
class Measured:
    """What one window shows.

    Attributes
    ----------
    group, cause, mechanism : str
        As in `rca.evaluation.realism.capture_plan.CapturePlan`.
    features : ndarray of shape (n_columns,)
        In the order of `columns`.
    levels : mapping of str to Level
        ``"victim forward"`` (phases, as a share of the job's step before) or ``"peers cpu_throttled"``
        (channels, in their unit). All ranks of a healthy job are peers.
    ratio : float
        Step time during the faults over step time before them; NaN if either is unknown.
    """

    group: str
    cause: str
    mechanism: str
    features: FloatArray
    levels: Mapping[str, Level]
    ratio: float


@cache
def columns() -> tuple[str, ...]:
    """Names of the compared features: those of the window, of its victims and of their peers."""
    own = [name for name in RANK_FEATURES if name not in set(JOB_FEATURES)]
    return (*WINDOW_FEATURES, *(f"{role} {name}" for role in (VICTIM, PEERS) for name in own))


@cache
def resolutions() -> tuple[float, ...]:
    """The smallest difference that matters for each feature of `columns`, in its unit."""
    unit = {feature.name: feature.unit for table in describe().values() for feature in table}
    names = (name.removeprefix(f"{VICTIM} ").removeprefix(f"{PEERS} ") for name in columns())
    return tuple(RESOLUTION_OF_UNIT.get(unit[name], FINE) for name in names)


def measured(window: Window, plan: CapturePlan) -> Measured:
    """Measure a window whose faults, ranks and steps are known."""
    found = extract(window)
    victim = np.zeros(found.rank.shape[0], dtype=bool)
    victim[[rank for rank in plan.victims if rank < victim.size]] = True
    before, during = moments(found, plan)
    unit = nan_mean(found.phases.phase("step_seconds")[:, before].ravel()) if before.any() else np.nan
    levels = _phase_levels(found, victim, before, during, float(unit))
    levels |= _signal_levels(window, found, victim, plan)
    step = nan_median(found.phases.phase("step_seconds"))
    return Measured(
        group=plan.group,
        cause=plan.cause,
        mechanism=plan.mechanism,
        features=_features(found, victim),
        levels=levels,
        ratio=_mean(step[during]) / _mean(step[before]),
    )


def moments(found: FeatureSet, plan: CapturePlan) -> tuple[BoolArray, BoolArray]:
    """Steps before and during the faults, each of shape (n_steps,); later steps belong to neither.

    A healthy job is split where most faults begin. Its changes are drift, the control for effects of faults.
    """
    n_steps = found.phases.n_steps
    column = np.arange(n_steps)
    warm = column >= found.work.warmup
    if plan.span is None:
        early = column < HEALTHY_BEFORE_SHARE * n_steps
        return _enough(warm & early), _enough(warm & ~early)
    first, last = plan.span
    # A stopped job has no step time during the fault.
    during = (column >= first) & (column <= last) & warm & (not plan.stops)
    return _enough(warm & (column < first)), _enough(during)


def _enough(mask: BoolArray) -> BoolArray:
    return mask if mask.sum() >= LEAST_STEPS else np.zeros_like(mask)


def _features(found: FeatureSet, victim: BoolArray) -> FloatArray:
    own = [position for position, name in enumerate(RANK_FEATURES) if name not in set(JOB_FEATURES)]
    rows = found.rank[:, own]
    unknown = np.full(len(own), np.nan)
    return np.concatenate(
        [
            found.window,
            nan_mean(rows[victim]) if victim.any() else unknown,
            nan_median(rows[~victim]) if (~victim).any() else unknown,
        ]
    )


def _phase_levels(
    found: FeatureSet, victim: BoolArray, before: BoolArray, during: BoolArray, unit: float
) -> dict[str, Level]:
    levels = {}
    for name in PHASES:
        seconds = found.phases.seconds.get(name)
        if seconds is None:
            continue
        for role, ranks in ((VICTIM, victim), (PEERS, ~victim)):
            early, late = (_mean(seconds[np.ix_(ranks, moment)]) / unit for moment in (before, during))
            levels[f"{role} {name.removesuffix('_seconds')}"] = Level(early, late)
    return levels


def _signal_levels(
    window: Window, found: FeatureSet, victim: BoolArray, plan: CapturePlan
) -> dict[str, Level]:
    """Means of every channel over all steps before and all steps during: exporters are slower than steps."""
    edges, place = _edges(found, plan)
    if edges is None or window.metrics.num_rows == 0:
        return {}
    signals = SignalArrays.from_window(window, edges)
    levels = {}
    for channel, values in signals.values.items():
        for role, ranks in ((VICTIM, victim), (PEERS, ~victim)):
            early, late = (_mean(values[ranks, bin_]) if bin_ >= 0 else float("nan") for bin_ in place)
            levels[f"{role} {channel}"] = Level(early, late)
    return levels


def _edges(found: FeatureSet, plan: CapturePlan) -> tuple[FloatArray | None, tuple[int, int]]:
    """Edges of time bins in seconds, and the indices of the bins before and during the faults (-1: none)."""
    begin = nan_median(found.phases.start_time)
    end = nan_median(found.phases.start_time + found.phases.phase("step_seconds"))
    before, during = moments(found, plan)
    spans = []
    for moment in (before, during):
        used = np.flatnonzero(moment & np.isfinite(begin) & np.isfinite(end))
        spans.append((begin[used[0]], end[used[-1]]) if used.size else None)
    cuts = sorted({float(time) for span in spans if span is not None for time in span})
    # Spans that follow each other share an edge, except for rounding.
    edges = [
        time for position, time in enumerate(cuts) if position == 0 or time > cuts[position - 1] + MOMENT
    ]
    if len(edges) < 2:
        return None, (-1, -1)
    early, late = (-1 if span is None else _bin_of(edges, span) for span in spans)
    return np.array(edges), (early, late)


def _bin_of(edges: list[float], span: tuple[float, float]) -> int:
    middle = (span[0] + span[1]) / 2
    return int(np.searchsorted(edges, middle) - 1)


def _mean(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")
