"""Hardware and kernel signals as evidence per resource: how far from peers, own past, and a sound machine.

Exporters differ between clusters, resources do not. Each resource (clock, NIC, run queue, ...) therefore
gets one score from whichever of its channels are there, in *units*: 1 is a deviation an engineer would
remark, however the channel is scaled. A resource without any channel is NaN: absent is not healthy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.features.slow_segment import segment_mean
from rca.features.work import Work
from rca.robust import nan_max, nan_mean, nan_median, peer_reference
from rca.telemetry.job import Topology

Direction = Literal["more", "growth", "drop"]


#: Scores are clipped here: beyond it a larger deviation says nothing new and would only strain the model.
MAX_SCORE = 8.0


#: Scores below it are none: what is this small says more about an exporter than about a machine, and a model
#: would learn it as "any at all".
UNREMARKABLE = 0.1


@dataclass(frozen=True)
class Channel:
    """How one channel speaks for its resource.

    Parameters
    ----------
    channel : str
        Canonical id from the signal catalogue.
    comparison : {"more", "growth", "drop"}
        ``more``: difference over `unit`. ``growth``: log2 ratio with `floor` added to both sides.
        ``drop``: relative fall over `unit`, for signals that get worse downwards.
    unit : float
        What counts as one unit (channel unit for ``more``, doublings for ``growth``, ratio for ``drop``).
    floor : float
        In the channel's unit; below it nothing is remarkable. Keeps a constant signal's first tiny
        change from exploding.
    sound_at_zero : bool
        Whether a sound machine shows (nearly) none of it on any cluster, as of errors, drops, throttling
        and stalls. Then the value alone is evidence where all suffer alike from the first step on, and
        neither peers nor the past can tell. Load, traffic and queues have no such zero.
    """

    channel: str
    comparison: Direction
    unit: float = 1.0
    floor: float = 0.0
    sound_at_zero: bool = False


#: Resource -> channels. Floors and units are engineering judgement, stated once, not fitted.
RESOURCES: dict[str, tuple[Channel, ...]] = {
    "gpu_clock": (
        Channel("sm_clock_mhz", "drop", 0.08),
        Channel("throttled", "more", 0.3, sound_at_zero=True),
        Channel("thermal_violation", "growth", 1.0, 1e7, sound_at_zero=True),
        Channel("power_violation", "growth", 1.0, 1e7, sound_at_zero=True),
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
        Channel("ecc_sbe", "growth", 1.0, 0.02, sound_at_zero=True),
        Channel("ecc_dbe", "growth", 1.0, 0.001, sound_at_zero=True),
        Channel("row_remap", "growth", 1.0, 0.001, sound_at_zero=True),
        Channel("xid", "more", 1.0, sound_at_zero=True),
    ),
    "pcie": (
        Channel("pcie_gen", "drop", 0.2),
        Channel("pcie_width", "drop", 0.2),
        Channel("pcie_replay", "growth", 1.0, 0.5, sound_at_zero=True),
    ),
    "nvlink": (Channel("nvlink_errors", "growth", 1.0, 0.5, sound_at_zero=True),),
    "nic": (
        Channel("ib_wait", "growth", 1.0, 1e5),
        Channel("ib_errors", "growth", 1.0, 0.05, sound_at_zero=True),
        Channel("ib_link_down", "growth", 1.0, 0.005, sound_at_zero=True),
        Channel("roce_errors", "growth", 1.0, 1.0),
        Channel("net_drops", "growth", 1.0, 1.0, sound_at_zero=True),
        Channel("qdisc_backlog", "growth", 1.0, 400.0),
        Channel("qdisc_drops", "growth", 1.0, 1.0, sound_at_zero=True),
        # The queue itself is mostly empty when somebody looks; its counter forgets nothing.
        Channel("qdisc_overlimits", "growth", 1.0, 5.0),
    ),
    "tcp": (
        Channel("tcp_retrans", "growth", 1.0, 5.0),
        Channel("tcp_rtt", "growth", 1.0, 4e-4),
        Channel("tcp_send_queue", "growth", 1.0, 4000.0),
    ),
    "fabric": (Channel("roce_congestion", "growth", 1.0, 50.0),),
    "cpu_wait": (
        Channel("runqueue_wait", "more", 0.1, sound_at_zero=True),
        Channel("psi_cpu", "more", 0.1, sound_at_zero=True),
        Channel("container_psi_cpu", "more", 0.1, sound_at_zero=True),
        Channel("ctx_involuntary", "growth", 1.0, 30.0),
    ),
    "cpu_quota": (Channel("cpu_throttled", "more", 0.05, sound_at_zero=True),),
    "cpu_load": (
        Channel("node_cpu_user", "more", 0.15),
        Channel("node_cpu_steal", "more", 0.05, sound_at_zero=True),
        Channel("load1", "growth", 1.0, 2.0),
    ),
    "memory": (
        Channel("psi_mem", "more", 0.05, sound_at_zero=True),
        Channel("container_psi_mem", "more", 0.05, sound_at_zero=True),
        Channel("major_faults", "growth", 1.0, 20.0),
        Channel("vmstat_pressure", "growth", 1.0, 200.0),
        Channel("mem_available", "drop", 0.3),
    ),
    "storage": (
        Channel("psi_io", "more", 0.1, sound_at_zero=True),
        Channel("container_psi_io", "more", 0.1, sound_at_zero=True),
        Channel("disk_io_time", "more", 0.2),
        Channel("disk_read_latency", "growth", 1.0, 2e-3),
        Channel("nfs_retrans", "growth", 1.0, 0.5, sound_at_zero=True),
        Channel("node_cpu_iowait", "more", 0.1),
    ),
    "loader_cpu": (
        Channel("loader_cpu", "more", 0.2),
        Channel("loader_runqueue_wait", "more", 0.15, sound_at_zero=True),
    ),
    "collector": (Channel("gc_pause", "more", 0.01, sound_at_zero=True),),
    "stopped": (Channel("process_stopped", "more", 0.3, sound_at_zero=True),),
}


@dataclass(frozen=True)
class Evidence:
    """Scores of every resource for every rank.

    Attributes
    ----------
    versus_peers, versus_past : ndarray of shape (n_ranks, n_resources), units
        Positive is worse. NaN where the resource is not measured or has nothing to compare with.
    versus_nominal : ndarray of shape (n_ranks, n_resources), units
        The same against a sound machine; NaN where no channel is measured that is zero there.
    best : ndarray of shape (n_ranks, n_resources), int
        Index into the resource's channels of the one that scored highest against peers or past, or, where
        none is worse than those, against a sound machine; -1 = none.
    values, references : dict of str to ndarray of shape (n_ranks,)
        Per channel, in its own unit: mean over the suspicious stretch, and what it was compared with.
    """

    versus_peers: FloatArray
    versus_past: FloatArray
    versus_nominal: FloatArray
    best: IntArray
    values: dict[str, FloatArray]
    references: dict[str, FloatArray]


def resource_names() -> tuple[str, ...]:
    """Resources in the order of the evidence columns."""
    return tuple(RESOURCES)


def nominal_resources() -> tuple[str, ...]:
    """Resources with a channel that a sound machine shows none of."""
    return tuple(name for name, channels in RESOURCES.items() if any(one.sound_at_zero for one in channels))


def compare(channel: Channel, value: FloatArray, reference: FloatArray) -> FloatArray:
    """Deviation of `value` from `reference` in units, positive = worse, clipped to +-`MAX_SCORE`.

    What is `UNREMARKABLE` is zero.
    """
    if channel.comparison == "more":
        score = (value - reference - channel.floor) / channel.unit
    elif channel.comparison == "drop":
        with np.errstate(invalid="ignore", divide="ignore"):
            score = np.where(reference > 0, 1.0 - value / reference, np.nan) / channel.unit
    else:
        grown = np.maximum(value, 0.0) + channel.floor
        score = np.log2(grown / (np.maximum(reference, 0.0) + channel.floor)) / channel.unit
    score = np.clip(score, -MAX_SCORE, MAX_SCORE)
    return np.where(np.abs(score) < UNREMARKABLE, 0.0, score)


def gather_evidence(
    active: Mapping[str, FloatArray],
    quiet: Mapping[str, FloatArray],
    levels: Mapping[str, str],
    topology: Topology,
) -> Evidence:
    """Score every resource of every rank.

    Parameters
    ----------
    active, quiet : mapping of channel to ndarray of shape (n_ranks,)
        Means over the suspicious stretch and over the rest of the window (NaN if there is no rest).
    levels : mapping of channel to {"rank", "node", "global"}
        Where the channel was measured: nodes are compared with nodes; a global channel has no peers.
    topology : Topology
    """
    n_ranks = topology.n_ranks
    shape = (n_ranks, len(RESOURCES))
    peers, past, sound = (np.full(shape, np.nan) for _ in range(3))
    best = np.full(shape, -1)
    by_peers_reference = _peer_references(active, levels, topology)
    references: dict[str, FloatArray] = {}
    for column, channels in enumerate(RESOURCES.values()):
        measured = [(index, one) for index, one in enumerate(channels) if one.channel in active]
        if not measured:
            continue
        by_peers = np.full((len(channels), n_ranks), np.nan)
        by_past, by_zero = by_peers.copy(), by_peers.copy()
        for index, channel in measured:
            name = channel.channel
            reference = by_peers_reference[name]
            references[name] = np.where(np.isfinite(reference), reference, quiet[name])
            if channel.sound_at_zero:
                zero = np.zeros(n_ranks)
                references[name] = np.where(np.isfinite(references[name]), references[name], zero)
                by_zero[index] = compare(channel, active[name], zero)
            by_peers[index] = compare(channel, active[name], reference)
            by_past[index] = compare(channel, active[name], quiet[name])
        peers[:, column] = nan_max(by_peers)
        past[:, column] = nan_max(by_past)
        sound[:, column] = nan_max(by_zero)
        strongest = np.fmax(by_peers, by_past)
        silent = ~(nan_max(strongest) > 0) & np.isfinite(by_zero).any(axis=0)
        strongest = np.where(silent, by_zero, strongest)
        known = np.isfinite(strongest).any(axis=0)
        best[:, column] = np.where(known, np.where(np.isfinite(strongest), strongest, -np.inf).argmax(0), -1)
    return Evidence(peers, past, sound, best, dict(active), references)


def _peer_references(
    active: Mapping[str, FloatArray], levels: Mapping[str, str], topology: Topology
) -> dict[str, FloatArray]:
    """Reference per rank from its peers: other nodes for a node's signal, all ranks for a rank's.

    All channels of a level at once: one sort of a matrix instead of one per channel.
    """
    wanted = {channel.channel for channels in RESOURCES.values() for channel in channels}
    names = [name for name in active if name in wanted]
    placed = (topology.node >= 0).any()
    node_names = [name for name in names if levels[name] == "node" and placed]
    shared = {name for name in names if levels[name] == "global"}
    rank_names = [name for name in names if name not in shared and name not in node_names]
    found = {name: np.full(topology.n_ranks, np.nan) for name in shared}
    if rank_names:
        values = np.column_stack([active[name] for name in rank_names])
        reference = peer_reference(values, np.zeros(topology.n_ranks, dtype=np.int64))
        found |= dict(zip(rank_names, reference.T, strict=True))
    if node_names:
        values = np.column_stack([active[name] for name in node_names])
        # Every rank of a node carries the node's value, so any one of them stands for it.
        held, first = np.unique(topology.node, return_index=True)
        first = first[held >= 0]
        reference = np.full((len(topology.node_names) + 1, len(node_names)), np.nan)
        reference[held[held >= 0]] = peer_reference(values[first], np.zeros(first.size, dtype=np.int64))
        found |= dict(zip(node_names, reference[topology.node].T, strict=True))
    return found


ACTIVE = "sm_active"


#: Phases in which a rank's device works for itself.
COMPUTE_PHASES = ("forward_seconds", "backward_seconds", "optimizer_seconds")


#: Of ranks that compute less than this share of the step, activity tells nothing.
LEAST_DUTY = 0.05


#: Times the usual; more says nothing new.
MOST_ACTIVE = 4.0


def activity_per_compute(work: Work, evidence: Evidence, inside: BoolArray) -> FloatArray:
    """Activity over the share of the slow stretch spent computing, relative to the job's median rank.

    Parameters
    ----------
    work : Work
    evidence : Evidence
    inside : ndarray of shape (n_steps,)
        The slow stretch.

    Returns
    -------
    ndarray of shape (n_ranks,), ratio
        NaN where either was not measured.
    """
    active = evidence.values.get(ACTIVE)
    phases = [work.phases[name] for name in COMPUTE_PHASES if name in work.phases]
    if active is None or not phases:
        return np.full(work.own.shape[0], np.nan)
    computing = np.nansum(phases, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        duty = segment_mean(computing, inside) / segment_mean(work.step, inside)
        per_compute = np.where(duty > LEAST_DUTY, active / duty, np.nan)
        usual = nan_median(per_compute[None, :], axis=1)[0]
        return np.where(usual > 0, np.minimum(per_compute / usual, MOST_ACTIVE), np.nan)


def missing_resources(evidence: Evidence) -> list[str]:
    """Resources no channel of which was reported for any rank."""
    measured = np.isfinite(nan_mean(np.abs(np.fmax(evidence.versus_peers, evidence.versus_past))))
    return [name for name, known in zip(RESOURCES, measured, strict=True) if not known]
