"""Assign series to ranks, and combine the series of one channel into one row per rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.robust import group_members
from rca.window.catalogue.signal import Combine
from rca.window.job import Job
from rca.window.node_names import same_nodes
from rca.window.signals.series import SeriesSet

Level = Literal["rank", "node", "global"]
LEVELS: tuple[Level, ...] = ("rank", "node", "global")
RANK, NODE, GLOBAL = range(3)


@dataclass(frozen=True)
class Placement:
    """Where each series belongs.

    Attributes
    ----------
    level : ndarray of shape (n_series,), int
        Index into `LEVELS`.
    owner : ndarray of shape (n_series,), int
        Rank number, node index in the job's topology, or 0; -1 where the job has no such node.
    node_of_rank : ndarray of shape (n_ranks,), int
        Node index in the job's topology, -1 where unknown.
    """

    level: IntArray
    owner: IntArray
    node_of_rank: IntArray


def place_series(series: SeriesSet, job: Job) -> Placement:
    """Assign a rank's series to it, a GPU's to its rank, a node's to the node, and others to all ranks."""
    topology = job.topology
    # One more entry, so that index -1 (no node) finds -1.
    node_index = np.append(same_nodes(series.node_names, topology.node_names), -1)
    node = node_index[series.node]
    level = np.where(series.rank >= 0, RANK, np.where(series.node >= 0, NODE, GLOBAL))
    owner = np.where(level == RANK, series.rank, np.where(level == NODE, node, 0))
    on_gpu = _ranks_by_gpu(series, job, node)
    owner = np.where((level == NODE) & (on_gpu >= 0), on_gpu, owner)
    level = np.where((level == NODE) & (on_gpu >= 0), RANK, level)
    return Placement(level, owner, topology.node)


def _ranks_by_gpu(series: SeriesSet, job: Job, node: IntArray) -> IntArray:
    """Rank on the GPU that a series' device names, -1 where there is none; shape (n_series,)."""
    per_gpu = np.array([signal.per_gpu for signal in series.signals], dtype=bool)[series.signal]
    # A series that names its rank needs no look-up of its GPU.
    wanted = per_gpu & (series.rank < 0) & (series.node >= 0)
    if not wanted.any():
        return np.full(series.n_series, -1)
    numbers = np.array([*(_gpu_number(name) for name in series.device_names), -1])
    gpu = numbers[series.device]
    held = _gpus(job) or _gpus_in_order(job, node[wanted], gpu[wanted])
    found = np.full(series.n_series, -1)
    for row in np.flatnonzero(wanted & (gpu >= 0) & (node >= 0)).tolist():
        found[row] = held.get((int(node[row]), int(gpu[row])), -1)
    return found


def _gpus(job: Job) -> dict[tuple[int, int], int]:
    """(node, GPU index) -> rank, for the ranks that the job lists."""
    node = job.topology.node
    return {
        (int(node[place.rank]), place.gpu): place.rank
        for place in job.ranks or ()
        if place.gpu is not None and node[place.rank] >= 0
    }


def _gpus_in_order(job: Job, node: IntArray, gpu: IntArray) -> dict[tuple[int, int], int]:
    """(node, GPU index) -> rank if the job lists no GPUs: launchers assign GPUs in the order of ranks.

    A node counts only if it shows as many GPUs as it has ranks: four ranks may use any of eight GPUs.
    """
    found: dict[tuple[int, int], int] = {}
    for series in group_members(node):
        number, shown = int(node[series[0]]), np.unique(gpu[series])
        ranks = job.topology.ranks_of_node[number]
        if np.array_equal(shown[shown >= 0], np.arange(ranks.size)):
            found |= {(number, local): rank for local, rank in enumerate(ranks.tolist())}
    return found


def _gpu_number(device: str) -> int:
    """The index in ``3``, ``gpu3``, ``nvidia3`` or ``3/...``; -1 where there is none."""
    head = device.lower().split("/")[0].removeprefix("nvidia").removeprefix("gpu")
    return int(head) if head.isascii() and head.isdigit() and len(head) < 6 else -1


def combined(
    binned: FloatArray, rows: IntArray, placement: Placement, rule: Combine
) -> tuple[FloatArray, Level, IntArray] | None:
    """One channel at one level; None if it belongs to no rank.

    The most specific level that covers half of the ranks is used. One missing exporter then does not replace
    all peers by one value of the cluster. If no level covers half, the one that covers most is used.

    Parameters
    ----------
    binned : ndarray of shape (n_series, n_bins)
    rows : ndarray of int
        The series that feed the channel.
    rule : {"sum", "mean", "max"}
        How the series of one owner are combined.

    Returns
    -------
    values : ndarray of shape (n_ranks, n_bins)
    level : {"rank", "node", "global"}
    used : ndarray of int
        The series of that level.
    """
    best: tuple[FloatArray, Level, IntArray] | None = None
    most = 0
    for number, level in enumerate(LEVELS):
        mine = rows[(placement.level[rows] == number) & (placement.owner[rows] >= 0)]
        if mine.size == 0:
            continue
        values = _at_ranks(binned[mine], placement.owner[mine], number, placement.node_of_rank, rule)
        covered = int(np.isfinite(values).any(axis=1).sum())
        if 2 * covered >= values.shape[0]:
            return values, level, mine
        if best is None or covered > most:
            best, most = (values, level, mine), covered
    return best


def _at_ranks(
    values: FloatArray, owner: IntArray, level: int, node_of_rank: IntArray, rule: Combine
) -> FloatArray:
    """Join the rows of each owner and spread owners to ranks; shape (n_ranks, n_bins)."""
    n_ranks = node_of_rank.size
    if level == RANK and np.array_equal(owner, np.arange(n_ranks)):
        # One series per rank, in order: the usual case.
        return values
    place_of_rank = (np.arange(n_ranks), node_of_rank, np.zeros(n_ranks, dtype=np.int64))[level]
    order = np.argsort(owner, kind="stable")
    owners, starts = np.unique(owner[order], return_index=True)
    joined = values[order] if owners.size == owner.size else _joined(values[order], starts, rule)
    n_places = max(int(place_of_rank.max()), int(owners[-1])) + 1
    # The last row stays NaN: index -1 (no such node) finds it.
    spread = np.full((n_places + 1, values.shape[1]), np.nan)
    spread[owners] = joined
    return spread[place_of_rank]


def _joined(values: FloatArray, starts: IntArray, rule: Combine) -> FloatArray:
    """Reduce runs of rows; NaN where no row of a run is known."""
    if rule == "max":
        return np.fmax.reduceat(values, starts, axis=0)
    known = np.isfinite(values)
    count = np.add.reduceat(known, starts, axis=0, dtype=np.int64)
    with np.errstate(over="ignore"):
        total = np.add.reduceat(np.where(known, values, 0.0), starts, axis=0)
    if rule == "mean":
        total = total / np.maximum(count, 1)
    return np.where(count > 0, total, np.nan)
