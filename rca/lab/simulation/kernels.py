"""Compiled loops of the forward replay and of the GPU's clock controller.

Import this module lazily: it imports numba, which takes about a second.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.errors import MissingExtra

try:
    from numba import njit
except ImportError as error:
    raise MissingExtra("a simulation needs numba", hint="pip install 'straggler-rca[compiled]'") from error

# mypy: disable-error-code="untyped-decorator"


Slots = npt.NDArray[np.int32]


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _wait_for(slots: Slots, ends: FloatArray, latest: FloatArray) -> None:
    for slot in slots:
        for data in range(latest.size):
            latest[data] = max(latest[data], ends[slot, data])


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _wait_for_workers(
    members: Slots, root: BoolArray, stage: IntArray, ready: FloatArray, latest: FloatArray
) -> None:
    for op in members:
        if root[op]:
            for data in range(latest.size):
                latest[data] = max(latest[data], ready[stage[op], data])


@njit(cache=True, nogil=True, error_model="numpy")
def replay_step(
    dep_start: Slots,
    dep_slot: Slots,
    member_start: Slots,
    member_op: Slots,
    member_slot: Slots,
    across: BoolArray,
    root: BoolArray,
    closing: BoolArray,
    stage: IntArray,
    row: IntArray,
    part: IntArray,
    share: FloatArray,
    lumpy: IntArray,
    seconds: FloatArray,
    parts: FloatArray,
    lump: FloatArray,
    place: IntArray,
    ready: FloatArray,
    ends: FloatArray,
    exchanged: FloatArray,
    kept: FloatArray,
) -> None:
    """Run the operations of one step on all data ranks.

    Parameters
    ----------
    dep_start, dep_slot, member_start, member_op, member_slot, across
        As in `rca.whatif.graph.graph.Program`.
    root, closing : ndarray of shape (n_ops,), bool
        Operations that wait for nothing but their worker, and those that end the step.
    stage, row, part, share, lumpy
        As in `rca.lab.simulation.forward_replay.Durations`.
    seconds, parts, lump, place
        One step of `rca.lab.simulation.forward_replay.Durations`.
    ready : ndarray of shape (n_stages, n_data), seconds
        When each worker may begin.
    ends : ndarray of shape (n_slots, n_data), seconds
        Scratch.
    exchanged : ndarray of shape (n_stages, n_data), seconds
        Out: when all communication of each worker is over.
    kept : ndarray of shape (n_ops or 0, n_data), seconds
        Out: end of every operation, if there is room.
    """
    latest = np.empty(ready.shape[1])
    for unit in range(across.size):
        members = member_op[member_start[unit] : member_start[unit + 1]]
        slots = member_slot[member_start[unit] : member_start[unit + 1]]
        latest[:] = -np.inf
        _wait_for(dep_slot[dep_start[unit] : dep_start[unit + 1]], ends, latest)
        _wait_for_workers(members, root, stage, ready, latest)
        if across[unit]:
            latest[:] = latest.max()
        for index, op in enumerate(members):
            slot = slots[index]
            for data in range(latest.size):
                end = latest[data] + seconds[row[op], data] * share[op] * parts[part[op], data]
                if lumpy[op] >= 0 and place[data] == part[op]:
                    end += lump[lumpy[op], data]
                if slot >= 0:
                    ends[slot, data] = end
                if kept.shape[0] > 0:
                    kept[op, data] = end
            if closing[op]:
                exchanged[stage[op]] = latest


@njit(cache=True, nogil=True, error_model="numpy")
def fetch_batches(
    step: int,
    workers: int,
    depth: int,
    begin: FloatArray,
    service: FloatArray,
    done: FloatArray,
    taken: FloatArray,
    fetched: FloatArray,
) -> None:
    """Take batch `step` from every rank's queue, and start the loaders' next batches.

    Parameters
    ----------
    step, workers, depth : int
        A worker begins a batch when it is free and the batch `depth` before it was taken. With depth 0 it
        begins when the rank needs the batch.
    begin, service : ndarray of shape (n_ranks,), seconds
        When each rank needs the batch, and how long its loader works on it.
    done : ndarray of shape (workers, n_ranks), seconds
        When each worker ended its last batch; updated.
    taken : ndarray of shape (depth, n_ranks), seconds
        When the last `depth` batches were taken; updated.
    fetched : ndarray of shape (n_ranks,), seconds
        Out: when each rank has the batch.
    """
    for rank in range(begin.size):
        if depth == 0:
            fetched[rank] = begin[rank] + service[rank]
            continue
        worker, slot = step % workers, step % depth
        end = max(done[worker, rank], taken[slot, rank]) + service[rank]
        fetched[rank] = max(begin[rank], end)
        done[worker, rank] = end
        taken[slot, rank] = fetched[rank]


@njit(cache=True, nogil=True, error_model="numpy")
def copy_batches(begin: FloatArray, copy: FloatArray, link: int, sharing: float, lasted: FloatArray) -> None:
    """Copy batches to their devices; a rank that copies alone is faster than one that shares its link.

    Parameters
    ----------
    begin, copy : ndarray of shape (n_ranks,), seconds
        When each rank begins, and how long it takes while all neighbours copy.
    link : int
        Number of consecutive ranks that copy over the same link.
    sharing : float
        Part of a copy's time that sharing the link costs.
    lasted : ndarray of shape (n_ranks,), seconds
        Out.
    """
    for rank in range(begin.size):
        lasted[rank] = copy[rank]
        first = rank - rank % link
        last = min(first + link, begin.size)
        if sharing == 0 or last - first < 2 or copy[rank] <= 0:
            continue
        crowd = 0.0
        for other in range(first, last):
            if other != rank:
                crowd += max(0.0, 1 - abs(begin[other] - begin[rank]) / copy[rank])
        lasted[rank] *= 1 - sharing * (1 - crowd / (last - first - 1))


@njit(cache=True, nogil=True, error_model="numpy")
def run_job(
    dep_start: Slots,
    dep_slot: Slots,
    member_start: Slots,
    member_op: Slots,
    member_slot: Slots,
    across: BoolArray,
    root: BoolArray,
    closing: BoolArray,
    stage: IntArray,
    row: IntArray,
    part: IntArray,
    share: FloatArray,
    lumpy: IntArray,
    n_slots: int,
    seconds: FloatArray,
    parts: FloatArray,
    lump: FloatArray,
    place: IntArray,
    n_stages: int,
    width: int,
    workers: int,
    depth: int,
    link: int,
    sharing: float,
    service: FloatArray,
    taking: FloatArray,
    copy: FloatArray,
    after: FloatArray,
    start: FloatArray,
    fetched: FloatArray,
    copying: FloatArray,
    ready: FloatArray,
    exchanged: FloatArray,
    kept: FloatArray,
) -> None:
    """Chain steps: each rank begins one when it has ended the one before.

    Parameters
    ----------
    seconds, parts, lump, place
        As in `rca.lab.simulation.forward_replay.Durations`, with steps first.
    width : int
        Ranks per worker (a tensor group), which compute in lock-step.
    workers, depth : int
        Of the batch queue.
    link, sharing
        As in `copy_batches`.
    service, taking, copy, after : ndarray of shape (n_steps, n_ranks), seconds
        The loader's work on a batch; taking a loaded one; copying it while all neighbours copy; from the end
        of communication to the next step.
    start, fetched, copying : ndarray of shape (n_steps + 1, n_steps and n_steps, n_ranks), seconds
        Out: begins of steps, arrivals of batches, lengths of copies.
    ready, exchanged : ndarray of shape (n_steps, n_stages, n_data), seconds
        Out: when each group may begin, when its communication is over.
    kept : ndarray of shape (n_steps or 0, n_ops, n_data), seconds
        Out.
    """
    n_steps, n_ranks = service.shape
    n_data = n_ranks // (n_stages * width)
    ends = np.zeros((n_slots, n_data))
    nothing = np.empty((0, n_data))
    taken = np.full((max(depth, 1), n_ranks), -np.inf)
    done = np.empty((max(workers, 1), n_ranks))
    for worker in range(done.shape[0]):
        # A running job has batches ready: every worker ends one as the window begins.
        for rank in range(n_ranks):
            done[worker, rank] = -service[min(worker, n_steps - 1), rank]
    for step in range(n_steps):
        fetch_batches(step, workers, depth, start[step], service[step], done, taken, fetched[step])
        copy_batches(fetched[step] + taking[step], copy[step], link, sharing, copying[step])
        for group in range(n_stages * n_data):
            latest = -np.inf
            for rank in range(group * width, (group + 1) * width):
                latest = max(latest, fetched[step, rank] + taking[step, rank] + copying[step, rank])
            ready[step, group // n_data, group % n_data] = latest
        replay_step(
            dep_start, dep_slot, member_start, member_op, member_slot, across, root, closing,
            stage, row, part, share, lumpy, seconds[step], parts[step], lump[step], place[step],
            ready[step], ends, exchanged[step], kept[step] if kept.shape[0] > 0 else nothing,
        )  # fmt: skip
        for rank in range(n_ranks):
            group = rank // width
            start[step + 1, rank] = exchanged[step, group // n_data, group % n_data] + after[step, rank]


# mypy: disable-error-code="untyped-decorator"


@njit(cache=True, nogil=True, error_model="numpy")
def heat_trajectory(
    cooling: FloatArray,
    ceiling: FloatArray,
    first: FloatArray,
    interval: float,
    time_constant: float,
    ambient: float,
    working: float,
    soft: float,
    span: float,
    idle_power: float,
    lowest: float,
    temperature: FloatArray,
    clock: FloatArray,
) -> None:
    """Integrate heating and the clock controller; see `rca.lab.simulation.gpu_clock` for the equations.

    Parameters
    ----------
    cooling, ceiling : ndarray of shape (n_ranks, n_steps)
    first : ndarray of shape (n_ranks,), degrees Celsius
    interval, time_constant : float, seconds
    temperature, clock : ndarray of shape (n_ranks, n_steps)
        Out: at the end of each step, and over it.
    """
    # With the controller the system is about ten times stiffer than the heat sink alone.
    pieces = max(1, int(np.ceil(40 * interval / time_constant)))
    gain = 1 - np.exp(-interval / pieces / time_constant)
    for rank in range(cooling.shape[0]):
        now = first[rank]
        for step in range(cooling.shape[1]):
            total = 0.0
            for _ in range(pieces):
                pace = min(ceiling[rank, step], max(lowest, min(1.0, 1 - (now - soft) / span)))
                power = idle_power + (1 - idle_power) * pace
                aim = ambient + (working - ambient) * power / cooling[rank, step]
                now += gain * (aim - now)
                total += pace
            temperature[rank, step] = now
            clock[rank, step] = total / pieces
