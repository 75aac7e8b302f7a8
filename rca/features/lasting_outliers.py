"""Machines that stand out at the end of a window, since when, and whether it lasts.

A mean over a window hides a fault that began late, and shows one that is over. So the machines are compared
over the last part of the window as well, and over parts of doubled length up to the whole window. An outlier
lasts if both halves of such a part show it: a single sample shows nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.features.extract import with_derived_channels
from rca.features.machine_outliers import (
    LOADS,
    LOUD_SCORE,
    STOPPED_SHARE,
    MachineComparison,
    Outlier,
    loud_outliers,
    usual_interval,
)
from rca.features.resource_evidence import (
    RESOURCES,
    ResourceEvidence,
    compare,
    gather_evidence,
    idle_devices,
    resource_names,
)
from rca.high_segment import high_segment
from rca.robust import nan_mean, nan_median
from rca.window.catalogue import channels
from rca.window.job import Job, Topology
from rca.window.signals.placement import RANK
from rca.window.signals.signal_arrays import SignalArrays

#: The shortest part of a window that is compared: seconds, and time bins.
MIN_PART_SECONDS, MIN_PART_BINS = 30.0, 4
#: Most time bins of a window, and most bins of all ranks together.
MAX_BINS, MAX_CELLS = 240, 1_000_000
#: Least contrast of an onset, in standard errors and as a share of the deviation.
MIN_ONSET_Z, MIN_ONSET_SHARE = 6.0, 0.5
#: Signals are stale if the newest sample is older than so many sampling intervals, and so many seconds.
STALE_INTERVALS, STALE_SECONDS = 5.0, 60.0
#: Least units of a channel that is shown.
REMARKABLE = 1.0
#: States that an exporter reports until the next boot: only their change counts.
STICKY = frozenset({"xid", "ecc_dbe"})
#: Counters of which one step is a fault until the next boot: its rate stands from then on.
_ONCE_IS_ENOUGH = ("ecc_dbe",)
#: Resources of which a device reports itself.
OF_DEVICES = ("gpu_clock", "gpu_memory", "pcie", "nvlink")
_OF_DEVICES = np.array([resource_names().index(name) for name in OF_DEVICES])
_CLOCK = resource_names().index("gpu_clock")
#: Comparisons that an idle device falsifies: it clocks down, and so does its link.
_OF_BUSY_DEVICES = np.array([_CLOCK, resource_names().index("pcie")])


@dataclass(frozen=True)
class Present:
    """The machines at the end of a window.

    Attributes
    ----------
    outliers : tuple of Outlier
        Of the comparison over the whole window, dated, with those that stand out in its last part only.
    evidence : ResourceEvidence
        Of the shortest part.
    signals : SignalArrays
        In short bins up to the newest sample of a device.
    clean : bool
        Whether nothing is loud in the shortest part, lasting or not. A device that is as much better than its
        peers is none of a job whose devices are alike: the peers may be at fault.
    covered : int
        Ranks whose device is in use and has its clock compared with peers in the shortest part.
    stale_seconds : float
        Time from the newest sample of a device to the end of the window, if that is long; else 0.
    stopped : bool
        Whether the devices of most ranks are not in use at the end.
    """

    outliers: tuple[Outlier, ...]
    evidence: ResourceEvidence
    signals: SignalArrays
    clean: bool
    covered: int
    stale_seconds: float
    stopped: bool

    @classmethod
    def of(cls, job: Job, compared: MachineComparison) -> Present:
        """Compare the machines over the parts of a window."""
        bins = _Bins.of(job, compared)
        last = bins.evidence(bins.shortest, 0)
        lasting: dict[tuple[str, tuple[int, ...]], Outlier] = {}
        for n_bins, found in bins.held():
            key = found.resource, found.ranks
            louder = max(found.score, lasting[key].score if key in lasting else 0.0)
            # The longest part has the most samples.
            lasting[key] = bins.dated(replace(found, score=louder, lasting=True), n_bins)
        lasting = {
            key: each for key, each in lasting.items() if each.channel not in STICKY or each.since is not None
        }
        gone = {
            rank for each in compared.outliers if each.kind not in ("loud", "slow") for rank in each.ranks
        }
        now = [each for each in lasting.values() if not gone & set(each.ranks)]
        before = [
            bins.dated(each, 0) if each.kind == "loud" else each
            for each in compared.outliers
            if (each.resource, each.ranks) not in lasting
        ]
        return cls(
            outliers=(*before, *sorted(now, key=lambda each: -each.score)),
            evidence=last,
            signals=bins.signals,
            clean=not loud_outliers(last, compared.topology)
            and not (last.versus_peers[:, _OF_DEVICES] <= -LOUD_SCORE).any(),
            covered=int(np.isfinite(last.versus_peers[:, _CLOCK]).sum()),
            stale_seconds=bins.stale_seconds,
            stopped=bins.stopped(),
        )


@dataclass(frozen=True)
class _Bins:
    """Signals of all ranks in short time bins up to the newest sample of a device.

    Exporters of hosts go on after the end of a job. They count where no device has a sample.
    """

    topology: Topology
    signals: SignalArrays
    shortest: int
    stale_seconds: float

    @classmethod
    def of(cls, job: Job, compared: MachineComparison) -> _Bins:
        topology, series, placement = compared.topology, compared.series.series, compared.series.placement
        of_devices = (placement.level == RANK) & (placement.owner >= 0)
        counted = np.repeat(of_devices if of_devices.any() else ~of_devices, np.diff(series.offsets))
        newest = float(series.time[counted].max(initial=job.start))
        end = min(job.end, newest) if newest > job.start else job.end
        interval = usual_interval(series, np.arange(series.n_series))
        width = max(interval, (end - job.start) / min(MAX_BINS, max(MAX_CELLS // topology.n_ranks, 8)))
        n_bins = max(int((end - job.start) / width), 2)
        width = (end - job.start) / n_bins
        late = job.end - end
        signals = with_derived_channels(compared.series.over(np.linspace(job.start, end, n_bins + 1)))
        values = signals.values
        once = {name: np.fmax.accumulate(values[name], axis=1) for name in _ONCE_IS_ENOUGH if name in values}
        signals = replace(signals, values={**values, **once})
        return cls(
            topology=topology,
            signals=signals,
            shortest=min(n_bins, max(MIN_PART_BINS, int(np.ceil(MIN_PART_SECONDS / width)))),
            stale_seconds=late if late > max(STALE_INTERVALS * interval, STALE_SECONDS) else 0.0,
        )

    @property
    def n_bins(self) -> int:
        return self.signals.edges.size - 1

    def evidence(self, begin: int, end: int) -> ResourceEvidence:
        """Evidence of the bins from `begin` to `end`, counted from the end of the window."""
        chosen = slice(self.n_bins - begin, self.n_bins - end)
        means = {name: nan_mean(values[:, chosen], axis=1) for name, values in self.signals.values.items()}
        unknown = {name: np.full(self.topology.n_ranks, np.nan) for name in means}
        found = gather_evidence(means, unknown, self.signals.level, self.topology)
        peers = found.versus_peers.copy()
        peers[np.ix_(idle_devices(found), _OF_BUSY_DEVICES)] = np.nan
        return replace(found, versus_peers=peers)

    def held(self) -> Iterator[tuple[int, Outlier]]:
        """Every outlier that both halves of a part, and its end, show; with the bins of the part."""
        n_bins = self.shortest
        if (
            n_bins * (self.signals.edges[1] - self.signals.edges[0]) < MIN_PART_SECONDS - 1e-6
            or n_bins < MIN_PART_BINS
        ):
            return
        last = self.evidence(n_bins, 0)
        while True:
            halves = self.evidence(n_bins, n_bins // 2), self.evidence(n_bins // 2, 0), last
            for found in loud_outliers(self.evidence(n_bins, 0), self.topology):
                column, rows = resource_names().index(found.resource), list(found.ranks)
                if all((each.versus_peers[rows, column] >= LOUD_SCORE).all() for each in halves):
                    yield n_bins, found
            if n_bins == self.n_bins:
                return
            n_bins = min(2 * n_bins, self.n_bins)

    def dated(self, outlier: Outlier, n_bins: int) -> Outlier:
        """The outlier with its onset and end, and its values in between.

        Parameters
        ----------
        n_bins : int
            Bins at the end that show it; 0 if it may be over.
        """
        if outlier.channel not in self.signals.values:
            return outlier
        inside = np.isin(np.arange(self.topology.n_ranks), outlier.ranks)
        series = self._versus_others(outlier.channel, inside, outlier.reference)
        lower = any(each.worse == "lower" for each in channels().get(outlier.channel, ()))
        deviation = abs(outlier.value - outlier.reference)
        series = -series if lower else series
        # Before the first sample nothing is known, and after it a gap is short.
        known = np.flatnonzero(np.isfinite(series))
        begun = int(known[0]) if known.size else 0
        segment = high_segment(series[begun:], min_z=MIN_ONSET_Z, min_contrast=MIN_ONSET_SHARE * deviation)
        segment = replace(
            segment, first=segment.first + begun if segment.first else 0, last=segment.last + begun
        )
        first, last, over = self.n_bins - (n_bins or self.n_bins), self.n_bins - 1, False
        if segment.whole and n_bins:
            first = self._begin_of_run(series)
        elif not segment.whole and np.isfinite(deviation):
            over = not n_bins and segment.last < self.n_bins - self.shortest // 2
            first, last = segment.first, segment.last if over else last
        shown = self._channels(outlier, inside, slice(first, last + 1))
        _, value, reference = next(
            (each for each in shown if each[0] == outlier.channel), ("", outlier.value, outlier.reference)
        )
        return replace(
            outlier,
            value=value,
            reference=reference,
            since=float(self.signals.edges[first]) if first and (n_bins or not segment.whole) else None,
            until=float(self.signals.edges[last + 1]) if over or self.stale_seconds else None,
            beside=tuple(each for each in shown if each[0] != outlier.channel),
        )

    def _begin_of_run(self, series: FloatArray) -> int:
        """First bin of the run of high values at the end; 0 if it has no begin.

        For windows with too few samples for a change point.
        """
        high = series >= 0.5 * float(nan_median(series[None, -self.shortest :], axis=1)[0])
        low = np.flatnonzero(np.isfinite(series) & ~high)
        return int(low[-1]) + 1 if low.size else 0

    def _versus_others(self, channel: str, inside: BoolArray, reference: float) -> FloatArray:
        """Mean of the ranks less the median of the others in each bin; less `reference` without others."""
        values = self.signals.values[channel]
        others = nan_median(values[~inside]) if (~inside).any() else np.full(self.n_bins, np.nan)
        return nan_mean(values[inside]) - np.where(np.isfinite(others), others, reference)

    def _channels(self, outlier: Outlier, inside: BoolArray, span: slice) -> list[tuple[str, float, float]]:
        """Channels of the outlier's resource that deviate in these bins, with value and reference."""
        found = []
        for channel in RESOURCES[outlier.resource]:
            if channel.channel not in self.signals.values:
                continue
            # Not the mean: in the first bin a gauge is on its way.
            usual = nan_median(self.signals.values[channel.channel][:, span], axis=1)
            value = nan_mean(usual[inside])
            reference = nan_median(usual[~inside]) if (~inside).any() else np.array(np.nan)
            if compare(channel, np.array([value]), np.array([reference]))[0] >= REMARKABLE:
                found.append((channel.channel, float(value), float(reference)))
        return found

    def stopped(self) -> bool:
        """Whether most devices are idle in the shortest part, or much less busy than before."""
        for name, least in LOADS.items():
            if name not in self.signals.values:
                continue
            load = nan_median(self.signals.values[name])
            now, usual = (
                float(nan_median(each[None, :], axis=1)[0]) for each in (load[-self.shortest :], load)
            )
            if now < max(least, STOPPED_SHARE * usual):
                return True
        return False
