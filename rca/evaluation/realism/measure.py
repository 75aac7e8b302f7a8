"""One window, real or simulated, as numbers: features, and levels of everything before and during faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.evaluation.realism.subject import Subject
from rca.features import JOB_FEATURES, RANK_FEATURES, WINDOW_FEATURES, FeatureSet, describe, extract
from rca.robust import nan_mean, nan_median
from rca.telemetry.signal_arrays import SignalArrays
from rca.telemetry.window import PHASES, Window

VICTIM, PEERS = "victim", "peers"
#: Share of a healthy job's steps that count as before.
CALM_SHARE = 0.4
#: Fewer steps than this have no level.
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
    """A quantity before and during the faults; NaN where there is no such time, or nothing was measured."""

    before: float
    during: float


@dataclass(frozen=True)
class Measured:
    """What one window shows.

    Attributes
    ----------
    group, cause, mechanism : str
        As in `rca.evaluation.realism.subject.Subject`.
    features : ndarray of shape (n_columns,)
        In the order of `columns`.
    levels : mapping of str to Level
        ``"victim forward"`` (phases, as a share of the job's step before) or ``"peers cpu_throttled"``
        (channels, in their unit). All ranks of a healthy job are peers.
    ratio : float
        Step time during over step time before; NaN without either.
    severity : float
        As labelled; NaN with several faults.
    """

    group: str
    cause: str
    mechanism: str
    features: FloatArray
    levels: Mapping[str, Level]
    ratio: float
    severity: float


@cache
def columns() -> tuple[str, ...]:
    """Names of the compared features: the window's, then the ranks' for the victims and for their peers."""
    own = [name for name in RANK_FEATURES if name not in set(JOB_FEATURES)]
    return (*WINDOW_FEATURES, *(f"{role} {name}" for role in (VICTIM, PEERS) for name in own))


@cache
def resolutions() -> tuple[float, ...]:
    """Per feature of `columns` the smallest difference that an engineer would remark, in its unit."""
    unit = {feature.name: feature.unit for table in describe().values() for feature in table}
    names = (name.removeprefix(f"{VICTIM} ").removeprefix(f"{PEERS} ") for name in columns())
    return tuple(RESOLUTION_OF_UNIT.get(unit[name], FINE) for name in names)


def measured(window: Window, subject: Subject) -> Measured:
    """Measure a window with what is known about who was hurt, and when."""
    found = extract(window)
    victim = np.zeros(found.rank.shape[0], dtype=bool)
    victim[[rank for rank in subject.victims if rank < victim.size]] = True
    before, during = moments(found, subject)
    unit = nan_mean(found.phases.phase("step_seconds")[:, before].ravel()) if before.any() else np.nan
    levels = _phase_levels(found, victim, before, during, float(unit))
    levels |= _signal_levels(window, found, victim, subject)
    step = nan_median(found.phases.phase("step_seconds"))
    return Measured(
        group=subject.group,
        cause=subject.cause,
        mechanism=subject.mechanism,
        features=_features(found, victim),
        levels=levels,
        ratio=_mean(step[during]) / _mean(step[before]),
        severity=subject.severity,
    )


def moments(found: FeatureSet, subject: Subject) -> tuple[BoolArray, BoolArray]:
    """Steps before and during the faults, each of shape (n_steps,); after them nothing counts.

    A healthy job is split as if a fault began where most do: what changes there is drift, the control that
    effects of faults are to be held against.
    """
    n_steps = found.phases.n_steps
    column = np.arange(n_steps)
    warm = column >= found.work.warmup
    if subject.span is None:
        early = column < CALM_SHARE * n_steps
        return _enough(warm & early), _enough(warm & ~early)
    first, last = subject.span
    # A stopped job's last step has no length, and nothing after it is the fault's price.
    during = (column >= first) & (column <= last) & warm & (not subject.stops)
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
            calm, hurt = (_mean(seconds[np.ix_(ranks, moment)]) / unit for moment in (before, during))
            levels[f"{role} {name.removesuffix('_seconds')}"] = Level(calm, hurt)
    return levels


def _signal_levels(
    window: Window, found: FeatureSet, victim: BoolArray, subject: Subject
) -> dict[str, Level]:
    """Means of every channel over whole stretches, which exporters slower than steps can resolve."""
    edges, place = _edges(found, subject)
    if edges is None or window.metrics.num_rows == 0:
        return {}
    signals = SignalArrays.from_window(window, edges)
    levels = {}
    for channel, values in signals.values.items():
        for role, ranks in ((VICTIM, victim), (PEERS, ~victim)):
            calm, hurt = (_mean(values[ranks, bin_]) if bin_ >= 0 else float("nan") for bin_ in place)
            levels[f"{role} {channel}"] = Level(calm, hurt)
    return levels


def _edges(found: FeatureSet, subject: Subject) -> tuple[FloatArray | None, tuple[int, int]]:
    """Time bins, and which of them is before and which during (-1: none)."""
    begin = nan_median(found.phases.start_time)
    end = nan_median(found.phases.start_time + found.phases.phase("step_seconds"))
    before, during = moments(found, subject)
    spans = []
    for moment in (before, during):
        used = np.flatnonzero(moment & np.isfinite(begin) & np.isfinite(end))
        spans.append((begin[used[0]], end[used[-1]]) if used.size else None)
    cuts = sorted({float(time) for span in spans if span is not None for time in span})
    # Neighbouring stretches share an edge but for rounding.
    edges = [
        time for position, time in enumerate(cuts) if position == 0 or time > cuts[position - 1] + MOMENT
    ]
    if len(edges) < 2:
        return None, (-1, -1)
    calm, hurt = (-1 if span is None else _bin_of(edges, span) for span in spans)
    return np.array(edges), (calm, hurt)


def _bin_of(edges: list[float], span: tuple[float, float]) -> int:
    middle = (span[0] + span[1]) / 2
    return int(np.searchsorted(edges, middle) - 1)


def _mean(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")
