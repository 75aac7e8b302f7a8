"""Evidence of resources: exporter signals scored against peers, the rank's own past and nominal values.

Exporters differ between clusters, resources do not. So each resource (clock, NIC, run queue, ...) gets one
score from the channels that are there. The score is in *units*: 1 is a deviation that an engineer would
remark on. A resource without any channel is NaN, because an absent channel does
not show that the resource is healthy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.features.device_load import SM_ACTIVE, DeviceLoad, link_maximum
from rca.robust import nan_max, nan_median, peer_reference
from rca.window.job import Topology

#: How a channel's value is compared with a reference.
ScoreKind = Literal["more", "growth", "drop"]

#: Scores are clipped here. A larger deviation adds nothing and would strain the model.
MAX_SCORE = 8.0
#: Smaller scores are zero. They come from the exporter, and a model would learn them as "any at all".
MIN_SCORE = 0.1
#: A device is idle below this share of the usual activity.
IDLE = 0.5
#: Channel with the share of device memory that is in use.
MEMORY_SHARE = "gpu_memory_share"


@dataclass(frozen=True)
class Channel:
    """How one channel scores for its resource.

    Parameters
    ----------
    channel : str
        Canonical id from the signal catalogue.
    comparison : {"more", "growth", "drop"}
        ``more``: difference over `unit`. ``growth``: log2 ratio with `floor` added to both sides.
        ``drop``: relative fall over `unit`, for signals that get worse downwards.
    unit : float
        Deviation that scores 1: in the channel's unit for ``more``, doublings for ``growth``, a ratio for
        ``drop``.
    floor : float
        In the channel's unit. Values below it score little, so the first small change of a constant signal
        has no large score. For ``more`` they score nothing.
    nominal : float or str or None
        What a healthy machine shows on any cluster, or the channel that has this value. Errors, drops,
        throttling and stalls are (nearly) zero; a link under load runs at its maximum. Then the value alone
        is evidence if all ranks have the fault from the first step on, where neither peers nor the past show
        it. Load, traffic and queues have no such value.
    """

    channel: str
    comparison: ScoreKind
    unit: float = 1.0
    floor: float = 0.0
    nominal: float | str | None = None


#: Resource -> channels. Floors and units are engineering judgement; they are not fitted.
RESOURCES: dict[str, tuple[Channel, ...]] = {
    "gpu_clock": (
        Channel("sm_clock_mhz", "drop", 0.08),
        Channel("throttled", "more", 0.3, nominal=0.0),
        Channel("thermal_violation", "growth", 1.0, 1e7, nominal=0.0),
        Channel("power_violation", "growth", 1.0, 1e7, nominal=0.0),
    ),
    "gpu_heat": (
        Channel("gpu_temp", "more", 8.0),
        Channel("gpu_mem_temp", "more", 8.0),
    ),
    "gpu_activity": (
        Channel("sm_active", "more", 0.15),
        Channel("gpu_util", "more", 15.0),
    ),
    "gpu_memory": (
        Channel("ecc_sbe", "growth", 1.0, 0.02, nominal=0.0),
        Channel("ecc_dbe", "growth", 1.0, 0.001, nominal=0.0),
        Channel("row_remap", "growth", 1.0, 0.001, nominal=0.0),
        Channel("xid", "more", 1.0, nominal=0.0),
    ),
    "pcie": (
        Channel("pcie_gen", "drop", 0.2, nominal="pcie_gen_max"),
        Channel("pcie_width", "drop", 0.2, nominal="pcie_width_max"),
        Channel("pcie_replay", "growth", 1.0, 0.5, nominal=0.0),
    ),
    "nvlink": (Channel("nvlink_errors", "growth", 1.0, 0.5, nominal=0.0),),
    "nic": (
        Channel("ib_wait", "growth", 1.0, 1e5),
        Channel("ib_errors", "growth", 1.0, 0.05, nominal=0.0),
        Channel("ib_link_down", "growth", 1.0, 0.005, nominal=0.0),
        Channel("roce_errors", "growth", 1.0, 1.0),
        Channel("net_drops", "growth", 1.0, 1.0, nominal=0.0),
        Channel("qdisc_backlog", "growth", 1.0, 400.0),
        Channel("qdisc_drops", "growth", 1.0, 1.0, nominal=0.0),
        # A scrape mostly finds the queue empty; the counter keeps what happened in between.
        Channel("qdisc_overlimits", "growth", 1.0, 5.0),
    ),
    "tcp": (
        Channel("tcp_retrans", "growth", 1.0, 5.0),
        Channel("tcp_rtt", "growth", 1.0, 4e-4),
        Channel("tcp_send_queue", "growth", 1.0, 4000.0),
    ),
    "fabric": (Channel("roce_congestion", "growth", 1.0, 50.0),),
    "cpu_wait": (
        Channel("runqueue_wait", "more", 0.1, nominal=0.0),
        Channel("psi_cpu", "more", 0.1, nominal=0.0),
        Channel("container_psi_cpu", "more", 0.1, nominal=0.0),
        Channel("ctx_involuntary", "growth", 1.0, 30.0),
    ),
    "cpu_quota": (Channel("cpu_throttled", "more", 0.05, nominal=0.0),),
    "cpu_load": (
        Channel("node_cpu_user", "more", 0.15),
        Channel("node_cpu_steal", "more", 0.05, nominal=0.0),
        Channel("load1", "growth", 1.0, 2.0),
    ),
    "memory": (
        Channel("psi_mem", "more", 0.05, nominal=0.0),
        Channel("container_psi_mem", "more", 0.05, nominal=0.0),
        Channel("major_faults", "growth", 1.0, 20.0),
        Channel("vmstat_pressure", "growth", 1.0, 200.0),
        Channel("mem_available", "drop", 0.3),
    ),
    "storage": (
        Channel("psi_io", "more", 0.1, nominal=0.0),
        Channel("container_psi_io", "more", 0.1, nominal=0.0),
        Channel("disk_io_time", "more", 0.2),
        Channel("disk_read_latency", "growth", 1.0, 2e-3),
        Channel("nfs_retrans", "growth", 1.0, 0.5, nominal=0.0),
        Channel("node_cpu_iowait", "more", 0.1),
    ),
    "loader_cpu": (
        Channel("loader_cpu", "more", 0.2),
        Channel("loader_runqueue_wait", "more", 0.15, nominal=0.0),
    ),
    "collector": (Channel("gc_pause", "more", 0.01, nominal=0.0),),
    "stopped": (Channel("process_stopped", "more", 0.3, nominal=0.0),),
    # An allocator keeps what it frees, so full memory is usual. Near the limit it has to empty its cache.
    "device_memory": (Channel(MEMORY_SHARE, "more", 0.03, 0.9, nominal=0.9),),
}
#: Resources of the job's own work, which table 10 added. Their absence is no gap in the view of the machines.
#: Bundles of earlier tables do not have them.
ADDED_RESOURCES = ("device_memory",)
#: All other resources, in order.
MACHINE_RESOURCES = tuple(name for name in RESOURCES if name not in ADDED_RESOURCES)


@dataclass(frozen=True)
class ResourceEvidence:
    """Scores of every resource for every rank.

    Attributes
    ----------
    versus_peers, versus_past : ndarray of shape (n_ranks, n_resources), units
        Positive is worse. NaN if the resource is not measured or has nothing to compare with.
    versus_nominal : ndarray of shape (n_ranks, n_resources), units
        The same against a healthy machine, never negative. NaN if no channel with a nominal value is
        measured, or if only links of idle devices are.
    worst_channel : ndarray of shape (n_ranks, n_resources), int
        Index of the resource's channel with the highest score against peers or past. If none of these is
        positive, the highest score against the nominal value; -1 if nothing is measured.
    values, references : dict of str to ndarray of shape (n_ranks,)
        Per channel, in its own unit: mean over the slow segment, and what it was compared with.
    of_peers, of_past : dict of str to ndarray of shape (n_ranks,), bool
        Whether the reference is of the peers, or else of the other steps; else it is a healthy machine's.
    others, healthy : dict of str to ndarray of shape (n_ranks,)
        Per channel: mean over the other steps, and the value of a healthy machine where it is known.
    """

    versus_peers: FloatArray
    versus_past: FloatArray
    versus_nominal: FloatArray
    worst_channel: IntArray
    values: dict[str, FloatArray]
    references: dict[str, FloatArray]
    of_peers: dict[str, BoolArray] = field(default_factory=dict)
    of_past: dict[str, BoolArray] = field(default_factory=dict)
    others: Mapping[str, FloatArray] = field(default_factory=dict)
    healthy: dict[str, FloatArray] = field(default_factory=dict)


def resource_names() -> tuple[str, ...]:
    """Resources in the order of the evidence columns."""
    return tuple(RESOURCES)


def nominal_resources() -> tuple[str, ...]:
    """Resources with a channel whose value on a healthy machine is known."""
    return tuple(
        name for name, channels in RESOURCES.items() if any(one.nominal is not None for one in channels)
    )


def missing_resources(evidence: ResourceEvidence) -> list[str]:
    """`MACHINE_RESOURCES` for which no rank has any channel."""
    measured = measured_resources(evidence)
    return [name for name, known in measured.items() if not known]


def measured_resources(evidence: ResourceEvidence) -> dict[str, bool]:
    """Whether any rank has a channel of each of `MACHINE_RESOURCES`."""
    scores = np.fmax(evidence.versus_peers, evidence.versus_past)
    known = [bool(np.isfinite(column).any()) for column in scores.T]
    found = dict(zip(RESOURCES, known, strict=True))
    return {name: found[name] for name in MACHINE_RESOURCES}


def idle_devices(evidence: ResourceEvidence) -> BoolArray:
    """Ranks whose device is much less busy than that of the others: it clocks down, and so does its link."""
    busy = next((evidence.values[name] for name in ("gpu_util", SM_ACTIVE) if name in evidence.values), None)
    if busy is None:
        return np.zeros(evidence.versus_peers.shape[0], dtype=bool)
    return np.asarray(busy < IDLE * nan_median(busy[None, :], axis=1)[0])


def pcie_errors_vs_nominal(evidence: ResourceEvidence) -> FloatArray:
    """Score of the PCIe counters alone against a healthy machine, shape (n_ranks,), without the link's state.

    Bundles of earlier feature tables learned from these.
    """
    nominal = evidence.versus_nominal[:, resource_names().index("pcie")]
    scores = [
        compare(one, evidence.values[one.channel], np.full(nominal.shape, one.nominal))
        for one in RESOURCES["pcie"]
        if isinstance(one.nominal, float) and one.channel in evidence.values
    ]
    return np.where(np.isfinite(nominal), nan_max(np.array(scores)), np.nan) if scores else nominal * np.nan


def compare(channel: Channel, value: FloatArray, reference: FloatArray) -> FloatArray:
    """Deviation of `value` from `reference` in units, as in `_deviations`."""
    score: FloatArray = _deviations([channel], value[None], reference[None])[0]
    return score


def _deviations(channels: Sequence[Channel], values: FloatArray, references: FloatArray) -> FloatArray:
    """Deviations of channels from references in units, shape (n_channels, n_ranks) each.

    Positive is worse. It is clipped to +-`MAX_SCORE`, and zero below `MIN_SCORE`.
    """
    kind, unit, floor = (
        np.array(each)[:, None]
        for each in zip(*((one.comparison, one.unit, one.floor) for one in channels), strict=True)
    )
    more = np.maximum(values, floor) - np.maximum(references, floor)
    with np.errstate(invalid="ignore", divide="ignore"):
        lost = np.where(references > 0, 1.0 - values / references, np.nan)
        grown = np.log2((np.maximum(values, 0.0) + floor) / (np.maximum(references, 0.0) + floor))
    score = np.where(kind == "more", more, np.where(kind == "drop", lost, grown)) / unit
    score = np.clip(score, -MAX_SCORE, MAX_SCORE)
    return np.where(np.abs(score) < MIN_SCORE, 0.0, score)


def gather_evidence(
    inside: Mapping[str, FloatArray],
    outside: Mapping[str, FloatArray],
    levels: Mapping[str, str],
    topology: Topology,
    load: DeviceLoad | None = None,
) -> ResourceEvidence:
    """Score every resource of every rank.

    Parameters
    ----------
    inside, outside : mapping of channel to ndarray of shape (n_ranks,)
        Means over the slow segment and over the rest of the window (NaN if there is no rest).
    levels : mapping of channel to {"rank", "node", "global"}
        Where the channel was measured. Nodes are compared with nodes; a global channel has no peers.
    load : DeviceLoad, optional
        How the steps use the devices. Without it, only their own signals show load.
    """
    shape = (topology.n_ranks, len(RESOURCES))
    peers, past, nominal = (np.full(shape, np.nan) for _ in range(3))
    worst_channel = np.full(shape, -1)
    held = [
        (column, place, one)
        for column, channels in enumerate(RESOURCES.values())
        for place, one in enumerate(channels)
        if one.channel in inside
    ]
    measured = [one for _, _, one in held]
    names = [one.channel for one in measured]
    if not measured:
        return ResourceEvidence(peers, past, nominal, worst_channel, dict(inside), {}, others=outside)
    of_channel = _peer_references(inside, levels, topology)
    value, other, peer = (
        np.stack([found[name] for name in names]) for found in (inside, outside, of_channel)
    )
    healthy = np.stack([_healthy_values(one, inside, outside, load) for one in measured])
    by_peers, by_past = _deviations(measured, value, peer), _deviations(measured, value, other)
    by_nominal = np.maximum(_deviations(measured, value, healthy), 0.0)
    # A link at its maximum shows less than a counter of errors at zero.
    links = np.array([isinstance(one.nominal, str) for one in measured])[:, None]
    telling = np.where(~links | (by_nominal > 0), by_nominal, np.nan)
    column_of, place_of = np.array([each[:2] for each in held]).T
    for column in np.unique(column_of):
        rows = np.flatnonzero(column_of == column)
        peers[:, column] = nan_max(by_peers[rows])
        past[:, column] = nan_max(by_past[rows])
        nominal[:, column] = nan_max(by_nominal[rows])
        score = np.fmax(by_peers[rows], by_past[rows])
        use_nominal = ~(nan_max(score) > 0) & np.isfinite(telling[rows]).any(axis=0)
        score = np.where(use_nominal, telling[rows], score)
        worst = np.where(np.isfinite(score), score, -np.inf).argmax(0)
        worst_channel[:, column] = np.where(np.isfinite(score).any(axis=0), place_of[rows][worst], -1)
    of_peers = np.isfinite(peer)
    of_past = ~of_peers & np.isfinite(other)
    references = np.where(of_peers, peer, np.where(of_past, other, healthy))
    return ResourceEvidence(
        versus_peers=peers,
        versus_past=past,
        versus_nominal=nominal,
        worst_channel=worst_channel,
        values=dict(inside),
        references=dict(zip(names, references, strict=True)),
        of_peers=dict(zip(names, of_peers, strict=True)),
        of_past=dict(zip(names, of_past, strict=True)),
        others=outside,
        healthy={
            one.channel: values
            for one, values in zip(measured, healthy, strict=True)
            if one.nominal is not None
        },
    )


def _healthy_values(
    channel: Channel,
    inside: Mapping[str, FloatArray],
    outside: Mapping[str, FloatArray],
    load: DeviceLoad | None,
) -> FloatArray:
    """A channel's value on a healthy machine, shape (n_ranks,); NaN where it is unknown."""
    if isinstance(channel.nominal, str):
        return link_maximum(channel.channel, channel.nominal, inside, outside, load)
    return np.full(inside[channel.channel].shape, np.nan if channel.nominal is None else channel.nominal)


def _peer_references(
    values: Mapping[str, FloatArray], levels: Mapping[str, str], topology: Topology
) -> dict[str, FloatArray]:
    """Peer reference per rank: of the other nodes for a node's channel, of all ranks for a rank's channel.

    All channels of a level are one matrix, so that one sort serves them all. The reference is on the healthy
    side of the median. So channels in which less is worse change their sign.
    """
    scored = {one.channel: -1.0 if one.comparison == "drop" else 1.0 for one in chain(*RESOURCES.values())}
    names = [name for name in values if name in scored]
    placed = (topology.node >= 0).any()
    node_names = [name for name in names if levels[name] == "node" and placed]
    shared = {name for name in names if levels[name] == "global"}
    rank_names = [name for name in names if name not in shared and name not in node_names]
    found = {name: np.full(topology.n_ranks, np.nan) for name in shared}
    if rank_names:
        sign = np.array([scored[name] for name in rank_names])
        matrix = sign * np.column_stack([values[name] for name in rank_names])
        reference = sign * peer_reference(matrix, np.zeros(topology.n_ranks, dtype=np.int64))
        found |= dict(zip(rank_names, reference.T, strict=True))
    if node_names:
        sign = np.array([scored[name] for name in node_names])
        matrix = sign * np.column_stack([values[name] for name in node_names])
        # Every rank of a node has the node's value, so the first one is enough.
        nodes, first = np.unique(topology.node, return_index=True)
        first = first[nodes >= 0]
        reference = np.full((len(topology.node_names) + 1, len(node_names)), np.nan)
        found_at = peer_reference(matrix[first], np.zeros(first.size, dtype=np.int64))
        reference[nodes[nodes >= 0]] = sign * found_at
        found |= dict(zip(node_names, reference[topology.node].T, strict=True))
    return found
