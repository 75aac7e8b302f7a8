"""Feature extraction: from a window to one row per rank and one row for the window."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rca.arrays import BoolArray, FloatArray
from rca.features.comparison import Comparison
from rca.features.device_load import DeviceLoad
from rca.features.end_events import APPLICATION_XIDS, CORRECTED_XIDS
from rca.features.job_end import JobEnd
from rca.features.job_features import job_features, window_maxima
from rca.features.port_evidence import PortEvidence
from rca.features.post_stop_signals import (
    FINAL_SHARE,
    MIN_STEPS_WITHOUT_PROGRESS,
    FinalSignals,
    PostStopSignals,
    sampled_until_end,
)
from rca.features.rank_features import rank_features
from rca.features.resource_evidence import MEMORY_SHARE, ResourceEvidence, gather_evidence
from rca.features.table import JOB_FEATURES, RANK_FEATURES, WINDOW_FEATURES
from rca.features.work import Work, warmup_steps
from rca.robust import nan_median
from rca.window.job import Topology
from rca.window.node_names import placed
from rca.window.signals.signal_arrays import PlacedSeries, SignalArrays
from rca.window.times.hidden_waits import without_hidden_waits
from rca.window.times.phases import PhaseArrays
from rca.window.window import Window


@dataclass(frozen=True)
class FeatureSet:
    """Features of a window, with the arrays that they come from.

    Attributes
    ----------
    rank : ndarray of shape (n_ranks, n_rank_features)
        Columns in the order of `rca.features.table.RANK_FEATURES`.
    window : ndarray of shape (n_window_features,)
        In the order of `rca.features.table.WINDOW_FEATURES`.
    ports : PortEvidence or None
        Signals of each rank's own network adapter, where the job names adapters. The models do not use them.
    """

    rank: FloatArray
    window: FloatArray
    topology: Topology
    phases: PhaseArrays
    work: Work
    comparison: Comparison
    evidence: ResourceEvidence
    job_end: JobEnd
    signals: SignalArrays
    series: PlacedSeries
    ports: PortEvidence | None = None


def extract(window: Window) -> FeatureSet:
    """Compute every feature of a validated window."""
    window = placed(window)
    topology = window.job.topology
    reported = PhaseArrays.from_window(window)
    phases = without_hidden_waits(reported, topology)
    work = Work.from_phases(phases, topology)
    comparison = Comparison.from_work(work, topology)
    job_end = JobEnd.from_window(window, reported, work.step_reference)
    series = PlacedSeries.from_window(window)
    signals, evidence, post_stop, final = _collect_evidence(window, series, work, comparison, job_end)
    job_end = job_end.with_final_signals(final).with_released_devices(post_stop)
    if not job_end.steps_since_progress >= MIN_STEPS_WITHOUT_PROGRESS:
        post_stop = PostStopSignals.unknown(topology.n_ranks)
    rank_table, window_row = table_rows(work, comparison, evidence, job_end, topology, post_stop)
    return FeatureSet(
        rank=rank_table,
        window=window_row,
        topology=topology,
        phases=phases,
        work=work,
        comparison=comparison,
        evidence=evidence,
        job_end=job_end,
        signals=signals,
        series=series,
        ports=PortEvidence.from_window(window, *segment_edges(window, work, comparison)),
    )


def step_phases(window: Window) -> PhaseArrays:
    """The phases of a window's steps without waits that are hidden in them, and without warm-up."""
    window = placed(window)
    phases = without_hidden_waits(PhaseArrays.from_window(window), window.job.topology)
    return phases.without_first(warmup_steps(nan_median(phases.phase("step_seconds"))))


def without_steps(features: FeatureSet, dropped: BoolArray) -> FeatureSet:
    """Features of the window without some of its steps.

    Parameters
    ----------
    dropped : ndarray of shape (n_steps,), bool
        Over the steps of ``features.work``.

    Returns
    -------
    FeatureSet
        Resources keep their scores, because samples are too coarse to drop single steps from them.
    """
    topology = features.topology
    work = _shorter(features.work, ~dropped)
    comparison = Comparison.from_work(work, topology)
    post_stop = PostStopSignals.unknown(topology.n_ranks)
    per_rank, per_window = table_rows(
        work, comparison, features.evidence, features.job_end, topology, post_stop
    )
    return replace(features, rank=per_rank, window=per_window, work=work, comparison=comparison)


def _shorter(work: Work, kept: BoolArray) -> Work:
    """Work in the steps kept; `kept` has shape (n_steps,)."""
    step = work.step[:, kept]
    # The time of a step that is left out is no pause between its neighbours.
    start = work.start.copy()
    start[:, np.flatnonzero(kept[:-1] & ~kept[1:])] = np.nan
    usual = float(nan_median(nan_median(step)[None, :], axis=1)[0])
    return Work(
        steps=work.steps[kept],
        warmup=work.warmup,
        step=step,
        own=work.own[:, kept],
        wait=work.wait[:, kept],
        transfer=work.transfer[:, kept],
        phases={name: seconds[:, kept] for name, seconds in work.phases.items()},
        load={name: values[:, kept] for name, values in work.load.items()},
        start=start[:, kept],
        step_reference=usual if usual > 0 else float("nan"),
    )


def table_rows(
    work: Work,
    comparison: Comparison,
    evidence: ResourceEvidence,
    job_end: JobEnd,
    topology: Topology,
    post_stop: PostStopSignals,
) -> tuple[FloatArray, FloatArray]:
    """Model rows: of ranks, shape (n_ranks, n_rank_features), and of the window, (n_window_features,)."""
    per_rank = rank_features(work, comparison, evidence, job_end, topology) | post_stop.rank_features()
    per_job = job_features(work, comparison, evidence, job_end, topology, per_rank)
    per_job |= post_stop.job_features()
    per_window = per_job | window_maxima(evidence, per_rank)
    repeated = {name: np.full(topology.n_ranks, per_job[name]) for name in JOB_FEATURES}
    columns = per_rank | repeated
    ranks = np.column_stack([columns[name] for name in RANK_FEATURES])
    return ranks, np.array([per_window[name] for name in WINDOW_FEATURES])


def _collect_evidence(
    window: Window, series: PlacedSeries, work: Work, comparison: Comparison, job_end: JobEnd
) -> tuple[SignalArrays, ResourceEvidence, PostStopSignals, FinalSignals]:
    """Mean of every channel inside and outside the slow segment, scored per resource.

    Exporters often sample more slowly than steps run. So signals are averaged over whole intervals (before,
    during and after the slow segment), not interpolated to steps. If the job made no progress at the end,
    that time is an interval of its own and evidence of the job's end only.
    """
    topology = window.job.topology
    edges, inside = segment_edges(window, work, comparison)
    no_progress = job_end.steps_since_progress >= MIN_STEPS_WITHOUT_PROGRESS
    stopped = no_progress and edges[-1] < window.job.end
    outside, after = ~inside, np.zeros(inside.size, dtype=bool)
    if stopped:
        final = window.job.end - FINAL_SHARE * (window.job.end - edges[-1])
        edges = np.append(edges, [final, window.job.end])
        inside, outside = (np.append(each, [False, False]) for each in (inside, outside))
        after = ~(inside | outside)
    signals = with_derived_channels(series.over(edges))
    load = DeviceLoad.from_work(work, comparison.segment.mask(work.steps.size))
    evidence = gather_evidence(signals.means(inside), signals.means(outside), signals.level, topology, load)
    if not stopped:
        return signals, evidence, PostStopSignals.unknown(topology.n_ranks), FinalSignals()
    before = signals.means(~after)
    networked = len(topology.node_names) != 1
    post_stop = PostStopSignals.from_channels(
        before, signals.means(after), topology.n_ranks, networked=networked
    )
    if not sampled_until_end(window, edges):
        return signals, evidence, post_stop, FinalSignals()
    last = {name: values[:, -1] for name, values in signals.values.items()}
    per_rank = frozenset(name for name, level in signals.level.items() if level == "rank")
    final_signals = FinalSignals.from_channels(before, last, networked=networked, rank_channels=per_rank)
    return signals, evidence, post_stop, final_signals


def segment_edges(window: Window, work: Work, comparison: Comparison) -> tuple[FloatArray, BoolArray]:
    """Time bins before, during and after the slow segment, and which of them are in the segment.

    Returns
    -------
    edges : ndarray of shape (n_bins + 1,), Unix seconds
    inside : ndarray of shape (n_bins,), bool
    """
    begin = nan_median(work.start)
    finish = nan_median(work.start + work.step)
    known = np.flatnonzero(np.isfinite(begin))
    if known.size == 0:
        return np.array([window.job.start, window.job.end]), np.array([True])
    start = float(begin[known[0]])
    end = float(np.nanmax(np.where(np.isfinite(finish), finish, begin)))
    if not end > start:
        return np.array([window.job.start, window.job.end]), np.array([True])
    segment = comparison.segment
    first, last = begin[segment.first], finish[segment.last]
    cuts = [] if segment.whole else [time for time in (first, last) if start < time < end]
    edges = np.array([start, *cuts, end])
    middle = (edges[:-1] + edges[1:]) / 2
    inside = np.ones(middle.size, dtype=bool) if segment.whole else (middle > first) & (middle < last)
    return (edges, inside) if inside.any() else (np.array([start, end]), np.array([True]))


def with_derived_channels(signals: SignalArrays) -> SignalArrays:
    """The signals with channels that combine several; harmless XID codes are none."""
    channels, levels = dict(signals.values), dict(signals.level)
    xid = channels.get("xid")
    if xid is not None:
        harmless = [*APPLICATION_XIDS, *CORRECTED_XIDS]
        channels["xid"] = np.where(np.isin(xid, harmless), 0.0, xid)
    spent, reads = channels.get("disk_read_time"), channels.get("disk_reads")
    if spent is not None and reads is not None:
        with np.errstate(invalid="ignore", divide="ignore"):
            channels["disk_read_latency"] = np.where(reads > 0, spent / reads, np.nan)
        levels["disk_read_latency"] = levels["disk_read_time"]
    used = channels.get("gpu_memory_used")
    if used is not None and MEMORY_SHARE not in channels:
        free, total = channels.get("gpu_memory_free"), channels.get("gpu_memory_total")
        # The total contains what the driver reserves; a job cannot use it.
        size = used + free if free is not None else total
        if size is not None:
            with np.errstate(invalid="ignore", divide="ignore"):
                channels[MEMORY_SHARE] = np.where(size > 0, used / size, np.nan)
            levels[MEMORY_SHARE] = levels["gpu_memory_used"]
    return replace(signals, values=channels, level=levels)
