"""Machines that stand out among their peers, by exporter and kernel signals alone.

Without step timers only the machines can be compared. A rank stands out if one of its resources is loud
against the other ranks and most of these are not. Its device stands out as well if it is released while those
of the peers stay in use. The same holds if its series end while those of the peers go on. Some tools compare
the speed of ranks themselves, without a duration: a rank that they find slow stands out too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.features.end_events import ranks_that_failed, read_events
from rca.features.extract import with_derived_channels
from rca.features.post_stop_signals import MEMORY_CHANNEL
from rca.features.resource_evidence import (
    ADDED_RESOURCES,
    RESOURCES,
    ResourceEvidence,
    gather_evidence,
    resource_names,
)
from rca.robust import nan_mean, nan_median
from rca.window.job import Job, PartLevel, SharedPart, Topology
from rca.window.node_names import placed
from rca.window.signals.placement import RANK
from rca.window.signals.series import SeriesSet
from rca.window.signals.signal_arrays import PlacedSeries, SignalArrays
from rca.window.window import Window

#: Score from which a resource is loud, in units (1 is remarkable).
LOUD_SCORE = 2.5
#: Ranks are outliers together if they have this share of the loudest score.
ALSO_LOUD = 0.5
#: Resources that change with many faults, or without one.
UNSPECIFIC = frozenset({"gpu_heat", "stopped", "tcp", "fabric", *ADDED_RESOURCES})
#: Time bins of a window.
N_BINS = 8
#: A device is released if its memory falls below this share of before, while those of half of the ranks keep
#: the other share.
RELEASED, KEPT = 0.5, 0.9
#: ... and is below this share of the usual one: some ranks always need less.
EMPTY = 0.15
#: Series have ended if nothing was sampled for so many of their usual intervals and this share of the window.
ENDED_INTERVALS, ENDED_SHARE = 4.0, 0.1

#: Channels that compare the speed of ranks, and from which value on a rank is slow.
#: NVRx calls a rank slow from a score of 0.75 down.
SLOW_FROM: Mapping[str, float] = {
    "waited_for": 0.2,
    "gpu_slowdown": 4 / 3,
    "gpu_slowdown_of_past": 4 / 3,
    "section_slowdown": 4 / 3,
    "section_slowdown_of_past": 4 / 3,
    "found_slow": 0.5,
}
#: Bins at the end of a window that show the present: a rank may have become slow in the window.
PRESENT_BINS = 2

#: Channels that show the load of a device, the most telling first, and the least load of one in use: a device
#: that waits for others is active, and draws less power.
LOADS: Mapping[str, float] = {"gpu_power": 0.0, "sm_active": 0.05, "gpu_util": 10.0}
#: Devices have stopped if their load falls below this share of what it was.
STOPPED_SHARE = 0.5

#: Level of the part that several ranks with a loud resource may share.
_PART_OF: Mapping[str, PartLevel] = {"pcie": "pcie_switch", "nic": "leaf_switch"}

Kind = Literal["failed", "loud", "released", "ended", "slow"]


@dataclass(frozen=True)
class Outlier:
    """Ranks that stand out by one resource.

    Attributes
    ----------
    kind : {"failed", "loud", "released", "ended", "slow"}
        A failure in the events, a loud resource, a device that was released, series that end, or a rank that
        another tool found slow.
    resource : str
        Of `rca.features.resource_evidence.RESOURCES`; "" unless it is loud or released.
    channel : str
        The resource's loudest channel.
    score : float, units
        0 if not loud.
    value, reference : float
        Of the channel, in its own unit, and what it was compared with. If series end: seconds before the end
        of the window at which they end, and those of the peers. NaN for a failure.
    part : SharedPart or None
        PCIe switch or leaf switch behind which exactly these ranks are.
    since, until : float or None, Unix seconds
        When the signal began to deviate, and when that was over; None where it deviates from the begin, or up
        to the end, and where it is not known.
    lasting : bool
        Whether it was measured over several samples at the end of the window.
    beside : tuple of (str, float, float)
        Further channels of the resource that deviate, with their values and references.
    """

    kind: Kind
    resource: str
    ranks: tuple[int, ...]
    channel: str
    score: float
    value: float
    reference: float
    part: SharedPart | None = None
    since: float | None = None
    until: float | None = None
    lasting: bool = False
    beside: tuple[tuple[str, float, float], ...] = ()


@dataclass(frozen=True)
class MachineComparison:
    """Signals of a window without steps, compared among its ranks.

    Attributes
    ----------
    outliers : tuple of Outlier
        The loudest first. One rank may be in several: its device failed and its series end.
    silent : tuple of str
        Nodes whose exporters ended while the other devices work on: nothing is known of them.
    """

    outliers: tuple[Outlier, ...]
    evidence: ResourceEvidence
    signals: SignalArrays
    series: PlacedSeries
    topology: Topology
    silent: tuple[str, ...] = ()

    @classmethod
    def from_window(cls, window: Window) -> MachineComparison:
        """Compare the ranks' signals over the whole window, and their devices at its end."""
        window = placed(window)
        topology = window.job.topology
        series = PlacedSeries.from_window(window)
        edges = np.linspace(window.job.start, window.job.end, N_BINS + 1)
        signals = with_derived_channels(series.over(edges))
        binned = signals.values
        means = {name: nan_mean(values, axis=1) for name, values in binned.items()}
        unknown = {name: np.full(topology.n_ranks, np.nan) for name in means}
        evidence = gather_evidence(means, unknown, signals.level, topology)
        ended = _ended(series, window.job)
        silent = [each for each in ended if _is_exporter(each.ranks, binned, topology)]
        ended = [each for each in ended if each not in silent]
        gone = [*_failed(window, topology), *_released(binned, topology), *ended]
        # What a rank's signals show after its end is no evidence of its slowness.
        left = {rank for each in gone for rank in each.ranks}
        slower = [*_slow(binned, topology), *loud_outliers(evidence, topology)]
        loud = [each for each in slower if not left & set(each.ranks)]
        outliers = (*gone, *sorted(loud, key=lambda each: -each.score))
        names = topology.nodes_of([rank for each in silent for rank in each.ranks])
        return cls(outliers, evidence, signals, series, topology, tuple(names))


def _failed(window: Window, topology: Topology) -> list[Outlier]:
    """Ranks whose process or device failed, by the events."""
    failed = ranks_that_failed(read_events(window), topology, window.job.start)
    return [Outlier("failed", "", ranks, "", 0.0, np.nan, np.nan) for ranks in groups_of(failed, topology)]


def loud_outliers(evidence: ResourceEvidence, topology: Topology) -> list[Outlier]:
    """Ranks with a resource that is loud against their peers, while most of these are not."""
    found = []
    for column, resource in enumerate(resource_names()):
        score = np.nan_to_num(evidence.versus_peers[:, column])
        loudest = float(score.max(initial=0.0))
        marked = score >= max(LOUD_SCORE, ALSO_LOUD * loudest)
        if resource in UNSPECIFIC or not marked.any() or 2 * int(marked.sum()) > marked.size:
            continue
        for ranks, part in _places_of(resource, marked, topology):
            rank = max(ranks, key=lambda each: score[each])
            channel = RESOURCES[resource][int(evidence.worst_channel[rank, column])].channel
            value, reference = evidence.values[channel][rank], evidence.references[channel][rank]
            found.append(
                Outlier(
                    "loud",
                    resource,
                    ranks,
                    channel,
                    float(score[rank]),
                    float(value),
                    float(reference),
                    part,
                )
            )
    return found


def _places_of(
    resource: str, marked: BoolArray, topology: Topology
) -> list[tuple[tuple[int, ...], SharedPart | None]]:
    """Marked ranks as `groups_of`, but those behind one part that may have the fault are one group.

    That is a PCIe switch if all its GPUs are marked, and not all of the node. It is a leaf switch if all its
    nodes are marked, and no other node.
    """
    level, left = _PART_OF.get(resource), marked.copy()
    found: list[tuple[tuple[int, ...], SharedPart | None]] = []
    for part in topology.parts if level is not None else ():
        ranks = list(part.ranks)
        nodes = topology.node[ranks]
        whole = marked[np.isin(topology.node, nodes)].all()
        alone = int(marked.sum()) == len(ranks) if level == "leaf_switch" else not whole
        several = np.unique(nodes).size > 1 or level == "pcie_switch"
        if part.level == level and len(ranks) > 1 and several and marked[ranks].all() and alone:
            found.append((part.ranks, part))
            left[ranks] = False
    return sorted([*found, *((ranks, None) for ranks in groups_of(left, topology))], key=lambda each: each[0])


def _slow(binned: Mapping[str, FloatArray], topology: Topology) -> list[Outlier]:
    """Ranks that another tool found slow, while most of the others are not."""
    found = []
    for channel, limit in SLOW_FROM.items():
        if channel not in binned:
            continue
        present, whole = (nan_mean(binned[channel][:, -bins:], axis=1) for bins in (PRESENT_BINS, N_BINS))
        values = np.fmax(present, whole)
        marked = values >= limit
        if not marked.any() or 2 * int(marked.sum()) > int(np.isfinite(values).sum()):
            continue
        usual = float(nan_median(values[None, :], axis=1)[0])
        for ranks in groups_of(marked, topology):
            worst = float(values[list(ranks)].max())
            found.append(Outlier("slow", "", ranks, channel, 0.0, worst, usual))
    return found


def _released(binned: Mapping[str, FloatArray], topology: Topology) -> list[Outlier]:
    """Ranks whose device lost its memory, while those of the peers kept theirs."""
    memory = binned.get(MEMORY_CHANNEL)
    if memory is None:
        return []
    before, after = nan_median(memory[:, : N_BINS // 2], axis=1), memory[:, -1]
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = after / before
    # A device that was released before the window began is compared with its peers.
    usual = float(nan_median(before[None, :], axis=1)[0])
    low = (after < EMPTY * usual) & ((ratio < RELEASED) | (before < EMPTY * usual))
    if 2 * int((ratio >= KEPT).sum()) < memory.shape[0]:
        return []
    return [
        Outlier("released", "gpu_memory", ranks, MEMORY_CHANNEL, 0.0, float(after[ranks[0]]), usual)
        for ranks in groups_of(low, topology)
    ]


def _ended(placed_series: PlacedSeries, job: Job) -> list[Outlier]:
    """Ranks whose series end, while those of the peers go on."""
    series, placement, topology = placed_series.series, placed_series.placement, job.topology
    mine = (placement.level == RANK) & (placement.owner >= 0) & (np.diff(series.offsets) > 0)
    if not mine.any():
        return []
    ends = series.time[np.maximum(series.offsets[1:] - 1, 0)][mine]
    owner = placement.owner[mine]
    last = np.full(topology.n_ranks, -np.inf)
    np.maximum.at(last, owner, ends)
    sampled = np.isfinite(last)
    latest = float(np.median(last[sampled]))
    interval = usual_interval(series, np.flatnonzero(mine))
    missing = latest - last
    longest = max(ENDED_INTERVALS * interval, ENDED_SHARE * (job.end - job.start))
    ended = sampled & (missing > longest)
    if 2 * int(ended.sum()) > int(sampled.sum()):
        return []
    return [
        Outlier("ended", "", ranks, "", 0.0, job.end - float(last[list(ranks)].max()), job.end - latest)
        for ranks in groups_of(ended, topology)
    ]


def _is_exporter(ranks: tuple[int, ...], binned: Mapping[str, FloatArray], topology: Topology) -> bool:
    """Whether series end with an exporter: of a whole node, while the other devices are as busy as before.

    A synchronous job does not go on without a rank.
    """
    nodes = np.unique(topology.node[list(ranks)])
    whole = np.isin(topology.node, nodes[nodes >= 0])
    if not nodes.size or not np.array_equal(np.flatnonzero(whole), ranks):
        return False
    for name in LOADS:
        if name in binned and (~whole).any():
            load = nan_median(binned[name][~whole])
            return bool(load[-1] >= STOPPED_SHARE * nan_median(load[None, :], axis=1)[0])
    return False


def usual_interval(series: SeriesSet, chosen: IntArray) -> float:
    """Median time between two samples of a series, seconds; 0 without two samples of one.

    Parameters
    ----------
    chosen : ndarray of int
        The series that count.
    """
    between = np.diff(series.time)
    inside = np.ones(between.size, dtype=bool)
    inside[series.offsets[1:-1] - 1] = False
    inside &= np.isin(np.repeat(np.arange(series.n_series), np.diff(series.offsets))[:-1], chosen)
    return float(np.median(between[inside])) if inside.any() else 0.0


def groups_of(marked: BoolArray, topology: Topology) -> list[tuple[int, ...]]:
    """Marked ranks by node if all ranks of a node are marked, else each on its own.

    Parameters
    ----------
    marked : ndarray of shape (n_ranks,), bool
    """
    left: list[int] = np.flatnonzero(marked).tolist()
    found: list[tuple[int, ...]] = [
        tuple(members.tolist())
        for members in topology.ranks_of_node.values()
        if members.size > 1 and marked[members].all()
    ]
    joined = {rank for ranks in found for rank in ranks}
    return sorted([*found, *((rank,) for rank in left if rank not in joined)])
