"""Signals of the machines in the steps of one lateness, against peers, other steps and a healthy machine.

A lateness has steps of its own, so the signals are compared over these, and not over one slow segment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.diagnosis.findings import REMARKABLE, UNITS_OF_CORRECTION, deviations_in_events
from rca.diagnosis.timeline import Timeline
from rca.features.device_load import BUSIER, SM_ACTIVE, DeviceLoad, activity_growth, activity_per_compute
from rca.features.extract import with_derived_channels
from rca.features.resource_evidence import gather_evidence, idle_devices, resource_names
from rca.robust import nan_mean, nan_median, nan_quantile, zero_if_nan
from rca.window.signals.signal_arrays import PlacedSeries, SignalArrays
from rca.window.window import Window

#: Most bins of time, and a bin's length in sampling intervals.
MAX_BINS, INTERVALS = 40, 1.2
#: A bin is within a lateness from this share of late steps on, and outside it below the other one.
INSIDE, OUTSIDE = 0.5, 0.1
#: Share of the other ranks' loudest scores that is no sign of these ranks.
OF_OTHERS = 0.7
#: Units by which crowded healthy hosts exceed a nominal value, and the weight of what is beyond.
CROWDED, BEYOND = 3.0, 1.6
#: Most units of activity, in which a device's growth saturates.
MAX_ACTIVITY = 8.0
#: Resources whose nominal value holds on any cluster.
NOMINAL = frozenset(
    {
        "pcie",
        "gpu_memory",
        "nvlink",
        "cpu_quota",
        "memory",
        "cpu_wait",
        "storage",
        "collector",
        "gpu_clock",
        "device_memory",
    }
)
NAMES = resource_names()
_CLOCK, _HEAT, _ACTIVITY = (NAMES.index(name) for name in ("gpu_clock", "gpu_heat", "gpu_activity"))
#: Largest share of the ranks on which a resource is measured for its own past to show the place.
MEASURED_ON_FEW = 0.5


@dataclass(frozen=True)
class IntervalEvidence:
    """Units of every resource over some steps.

    Attributes
    ----------
    peers, past, nominal : ndarray of shape (n_ranks, n_resources), units
        Against peers, the other steps, and a healthy machine; NaN where they cannot be compared.
    whole : bool
        Whether the steps are all of the window.
    """

    peers: FloatArray
    past: FloatArray
    nominal: FloatArray
    whole: bool
    _known: dict[tuple[int, ...], tuple[FloatArray, BoolArray]] = field(default_factory=dict)

    @property
    def has_past(self) -> bool:
        """Whether other steps are a reference."""
        return bool(np.isfinite(self.past).any())

    def of(self, ranks: Sequence[int]) -> tuple[FloatArray, BoolArray]:
        """Units of every resource on some ranks, and whether it is measured; (n_resources,) each.

        Some ranks count above their peers, and above their own past where it is known. All ranks count above
        their past, or far beyond a healthy machine.
        """
        key = tuple(ranks)
        if key not in self._known:
            self._known[key] = self._of(list(key))
        return self._known[key]

    def _of(self, rows: list[int]) -> tuple[FloatArray, BoolArray]:
        peers, past, nominal = (
            nan_mean(each[rows], axis=0) for each in (self.peers, self.past, self.nominal)
        )
        measured = np.isfinite(self.peers[rows]).any(axis=0) | np.isfinite(past) | np.isfinite(nominal)
        n_ranks = self.peers.shape[0]
        others = np.setdiff1d(np.arange(n_ranks), rows)
        if 2 * len(rows) > n_ranks:
            peers = np.full(peers.shape, np.nan)
        elif others.size:
            rivals = nan_quantile(self.peers[others], 0.9)
            peers = peers - OF_OTHERS * np.maximum(zero_if_nan(rivals), 0.0)
        apart = np.isfinite(peers)
        units = np.where(apart, peers, past)
        both = apart & np.isfinite(past)
        units = np.where(both, 0.75 * np.fmin(peers, past) + 0.25 * np.fmax(peers, past), units)
        beyond = self._beyond_nominal(nominal, past, others, apart)
        alone = ~apart | (zero_if_nan(peers) > 0.5)
        units = np.where(np.isfinite(nominal) & alone, np.fmax(units, beyond), units)
        return zero_if_nan(units), measured

    def _beyond_nominal(
        self, nominal: FloatArray, past: FloatArray, others: IntArray, apart: BoolArray
    ) -> FloatArray:
        """Units beyond a healthy machine that the other ranks, and the other steps, do not have."""
        whole_job = BEYOND * np.maximum(zero_if_nan(nominal) - CROWDED, 0.0)
        beyond = np.where(apart, zero_if_nan(nominal), whole_job)
        if apart.any() and others.size:
            usual = zero_if_nan(nan_median(self.nominal[others]))
            beyond = np.where(apart, beyond - OF_OTHERS * usual, beyond)
        if not self.whole and np.isfinite(past).any():
            grown = np.maximum(zero_if_nan(past), 0.0)
            beyond = np.where(np.isfinite(past), np.minimum(beyond, grown), beyond)
        return beyond

    def standing_out(self, resources: Sequence[int]) -> FloatArray:
        """Units by which each rank stands out in any of these resources, shape (n_ranks,).

        Where a resource is measured on few ranks, each is compared with its own past.
        """
        columns = list(resources)
        peers, past = self.peers[:, columns], self.past[:, columns]
        known = np.isfinite(past)
        moved = np.minimum(zero_if_nan(peers), 0.25 * zero_if_nan(peers) + 0.75 * zero_if_nan(past))
        by_past = ~np.isfinite(peers) & known & (known.mean(axis=0) <= MEASURED_ON_FEW)
        moved = np.where(by_past, past, np.where(known, moved, zero_if_nan(peers)))
        return np.asarray(moved.max(axis=1))


@dataclass(frozen=True)
class WindowSignals:
    """The signals of a window in bins of time, and their evidence over any steps.

    Attributes
    ----------
    signals : SignalArrays
    bin_of : ndarray of shape (n_steps,), int
        The bin in which most of each step lies.
    events : dict of resource to ndarray of shape (n_ranks,), units
        Failures and corrected errors that events report.
    """

    line: Timeline
    signals: SignalArrays
    bin_of: IntArray
    events: dict[str, FloatArray]
    _known: dict[bytes, IntervalEvidence] = field(default_factory=dict)

    @classmethod
    def of(cls, window: Window, series: PlacedSeries, line: Timeline) -> WindowSignals:
        """Bin the window's signals over its steps."""
        edges, bin_of = _bins(window, series, line)
        signals = with_derived_channels(series.over(edges))
        return cls(line, signals, bin_of, _of_events(window, line))

    @property
    def values(self) -> Mapping[str, FloatArray]:
        """Channel -> ndarray of shape (n_ranks, n_bins)."""
        return self.signals.values

    def over(self, steps: BoolArray) -> IntervalEvidence:
        """Evidence over some steps, ndarray of shape (n_steps,), bool."""
        key = steps.tobytes()
        if key not in self._known:
            self._known[key] = self._compared(steps)
        return self._known[key]

    def _compared(self, steps: BoolArray) -> IntervalEvidence:
        inside, outside, resolved = self._parts(steps)
        within = {name: nan_mean(values[:, inside], axis=1) for name, values in self.values.items()}
        without = {name: nan_mean(values[:, outside], axis=1) for name, values in self.values.items()}
        load = DeviceLoad.from_work(self.line.work, steps)
        raw = gather_evidence(within, without, self.signals.level, self.line.topology, load)
        peers, past, nominal = (
            each.copy() for each in (raw.versus_peers, raw.versus_past, raw.versus_nominal)
        )
        idle = idle_devices(raw)
        peers[idle, _CLOCK] = past[idle, _CLOCK] = np.nan
        # A device that works while others wait is warmer.
        peers[zero_if_nan(peers[:, _ACTIVITY]) >= REMARKABLE, _HEAT] = np.nan
        # A late rank's device is active while others wait, so its activity counts per own computing time.
        beyond = activity_per_compute(self.line.work, within.get(SM_ACTIVE), steps) - 1.0
        grown = activity_growth(self.line.work, within, without, steps) if resolved else np.nan
        peers[:, _ACTIVITY] = np.clip(beyond / BUSIER, -MAX_ACTIVITY, MAX_ACTIVITY)
        past[:, _ACTIVITY] = np.clip(grown, -MAX_ACTIVITY, MAX_ACTIVITY)
        nominal[:, [column for column, name in enumerate(NAMES) if name not in NOMINAL]] = np.nan
        for name, units in self.events.items():
            column = NAMES.index(name)
            peers[:, column] = np.fmax(peers[:, column], units)
            past[:, column] = np.fmax(past[:, column], units)
        return IntervalEvidence(peers, past, nominal, bool(steps.all()))

    def _parts(self, steps: BoolArray) -> tuple[BoolArray, BoolArray, bool]:
        """Bins within the steps, bins outside them, and whether the bins resolve the steps."""
        n_bins = self.signals.edges.size - 1
        if steps.all():
            everything = np.ones(n_bins, dtype=bool)
            return everything, ~everything, True
        total = np.bincount(self.bin_of, minlength=n_bins).astype(float)
        late = np.bincount(self.bin_of, weights=steps.astype(float), minlength=n_bins)
        known = np.flatnonzero(total > 0)
        share = np.interp(np.arange(n_bins), known, late[known] / total[known])
        resolved = bool((share >= INSIDE).any())
        inside = share >= (INSIDE if resolved else float(np.quantile(share, 0.8)))
        return inside, share <= OUTSIDE, resolved


def _bins(window: Window, series: PlacedSeries, line: Timeline) -> tuple[FloatArray, IntArray]:
    """Edges of the bins of time, Unix seconds, and the bin of each step."""
    begin = nan_median(line.work.start)
    finish = np.fmax(nan_median(line.work.start + line.work.step), begin)
    known = np.flatnonzero(np.isfinite(begin))
    first, last = window.job.start, window.job.end
    if known.size > 1 and float(np.nanmax(finish)) > float(begin[known[0]]):
        first, last = float(begin[known[0]]), float(np.nanmax(finish))
    # Usual time between two samples of a series.
    samples = float(np.median(np.diff(series.series.offsets))) if series.series.n_series else 1.0
    interval = max(window.job.end - window.job.start, last - first) / max(samples, 1.0)
    bins = int(np.clip((last - first) / max(INTERVALS * interval, 1e-9), 1, MAX_BINS))
    edges = np.linspace(first, last, bins + 1)
    middle = np.nan_to_num((begin + finish) / 2, nan=first)
    return edges, np.clip(np.searchsorted(edges, middle) - 1, 0, bins - 1)


def _of_events(window: Window, line: Timeline) -> dict[str, FloatArray]:
    """Units of each resource that events report, (n_ranks,) each."""
    found: dict[str, FloatArray] = {}
    for each in deviations_in_events(window):
        units = found.setdefault(each.resource, np.zeros(line.topology.n_ranks))
        units[list(each.ranks)] += max(each.units, UNITS_OF_CORRECTION)
    return found
