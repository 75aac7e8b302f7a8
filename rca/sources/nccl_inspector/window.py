"""NCCL Inspector: who arrives last at the collectives, by the time that each member spends in them.

All members of a collective end together. Who spends least time in it arrived last, and the others waited. The
records hold no training step: a step is one repetition of the sequence of collectives of the largest
communicator. Without times of the repetitions, only the share of waiting is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.errors import InvalidInput
from rca.sources.nccl_inspector.records import InspectorLog, is_inspector, read_records
from rca.sources.nccl_inspector.rounds import WRITE_OFTEN, CollectiveRounds, find_rounds
from rca.sources.nccl_processes import NcclProcess, ranks_of_job
from rca.sources.source import Source
from rca.window.schema import STEPS
from rca.window.window import Window

#: Metric of a window without steps: share of the time in collectives in which others wait for the rank, less
#: that in which the rank waits.
WAITED_FOR = "nccl_inspector_waited_for_ratio"
#: Members of these kinds end together; in the others, a root ends earlier or later by its role.
_TOGETHER = ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll")
#: Half of the members wait for a late one: this share of the longest wait, and so long, seconds.
_LATE_SHARE, _LATE_SECONDS = 0.5, 1e-4
#: A late member itself waits at most this share of the longest wait.
_HARDLY = 0.1
#: The others clearly wait for a rank from this share of the time in collectives on.
_CLEARLY = 0.2


class _Collectives(NamedTuple):
    """Records of collectives with all known members, matched.

    Attributes
    ----------
    record : ndarray of shape (n,), int
        Index of the record in the log; members of one collective follow each other.
    collective : ndarray of shape (n,), int
        Number of the collective.
    wait, transfer : ndarray of shape (n,), seconds
    """

    record: IntArray
    collective: IntArray
    wait: FloatArray
    transfer: FloatArray


def read(paths: Sequence[Path], job_id: str) -> Window:
    """Read the files of one job, one per process, into a window.

    Parameters
    ----------
    job_id : str
        Of the window; the files hold none.

    Returns
    -------
    Window
        With ``steps``, or with the metric `WAITED_FOR` of each rank if the files do not show when the
        repetitions of collectives ended. Its notes say what is missing.

    Raises
    ------
    InvalidInput
        If no file has a usable collective, times have another unit, or the files are of two jobs.
    """
    log = read_records(paths)
    _refuse_two_jobs(log)
    notes = [f"{count:,} records {why} were left out" for why, count in log.skipped.items()]
    processes = list(log.processes)
    ranks, world_size = _ranks(log, processes, notes)
    if world_size > len(processes):
        notes.append(f"files of {len(processes)} of {world_size} ranks: waiting for the others is not seen")
    missing = np.array(log.sizes) - _known_members(log)
    matched = _match(log, notes)
    rounds = find_rounds(log, notes)
    shares = _waited_for(log, matched, len(processes))
    if (missing > 0).any():
        notes.append("members of a communicator are missing: one of them may be the last to arrive")
        if np.nanmax(shares, initial=0.0) >= _CLEARLY:
            notes.append("what the rank costs is unknown without the missing members: no steps")
            rounds = None
    start = float(log.time.min()) if rounds is None else float(rounds.ends[0])
    job: dict[str, Any] = {
        "job_id": job_id,
        "framework": "pytorch",
        "world_size": world_size,
        "start": start,
        "end": max(float(log.time.max() if rounds is None else rounds.ends[-1]), start + 1.0),
        "ranks": [{"rank": ranks[each], "node": each.host} for each in processes if each.host],
    }
    if len(job["ranks"]) < world_size:
        del job["ranks"]
    if rounds is not None:
        # With a member missing, the shortest time of the others is transfer, and waiting for it.
        split = None if (missing > 0).any() else matched
        steps = _steps(log, split, rounds, [ranks[each] for each in processes], notes)
        window = Window.from_tables(job, steps)
    else:
        metrics = _metrics(shares, processes, ranks, job["end"])
        window = Window.from_tables(job, STEPS.empty(), metrics)
    return replace(window, notes=(*window.notes, *notes))


def _refuse_two_jobs(log: InspectorLog) -> None:
    """Refuse communicators of all ranks that other processes used at another time."""
    whole = [number for number, size in enumerate(log.sizes) if size == max(log.sizes) > 1]
    spans = []
    for number in whole:
        of_group = log.communicator == number
        members = {process for group, process in log.members if group == number}
        if of_group.any():
            spans.append((float(log.time[of_group].min()), float(log.time[of_group].max()), members))
    spans.sort(key=lambda span: span[0])
    for (_, end, before), (begin, _, after) in pairwise(spans):
        if begin > end and not before & after:
            raise InvalidInput(
                "the files of NCCL Inspector are of two jobs or attempts: no process is in both",
                hint="give the files of one job and one attempt; pid in the name of a file tells them apart",
            )


def _ranks(
    log: InspectorLog, processes: Sequence[NcclProcess], notes: list[str]
) -> tuple[dict[NcclProcess, int], int]:
    members: dict[str, dict[NcclProcess, int]] = {name: {} for name in log.communicators}
    names = list(log.communicators)
    for (communicator, process), rank in log.members.items():
        members[names[communicator]][processes[process]] = rank
    return ranks_of_job(members, dict(zip(names, log.sizes, strict=True)), notes)


def _known_members(log: InspectorLog) -> IntArray:
    """Members of each communicator with a record, shape (n_communicators,)."""
    return np.bincount([group for group, _ in log.members], minlength=len(log.communicators))


def _match(log: InspectorLog, notes: list[str]) -> _Collectives:
    """Members of the same collective, where the records of all known members are there."""
    known = _known_members(log)
    together = np.isin(log.kind, [number for kind, number in log.kinds.items() if kind in _TOGETHER])
    if not together.all():
        notes.append(
            f"{int((~together).sum()):,} collectives with a root were left out: members end by their role"
        )
    chosen = np.flatnonzero(together & (known[log.communicator] > 1))
    order = chosen[np.lexsort((log.sequence[chosen], log.kind[chosen], log.communicator[chosen]))]
    keys = np.stack([log.communicator[order], log.kind[order], log.sequence[order]])
    begins = np.flatnonzero(np.any(np.diff(keys, axis=1, prepend=-1) != 0, axis=0))
    count = np.diff(np.append(begins, order.size))
    whole = count == known[log.communicator[order[begins]]] if order.size else np.zeros(0, bool)
    if not whole.any():
        notes.append("no collective has records of two ranks: waiting and transfer cannot be told apart")
    elif not whole.all():
        notes.append(f"{int((~whole).sum()):,} collectives without a record of every member were left out")
    kept = order[np.repeat(whole, count)]
    number = np.repeat(np.arange(int(whole.sum())), count[whole])
    least = np.full(int(whole.sum()), np.inf)
    np.minimum.at(least, number, log.seconds[kept])
    transfer = least[number]
    return _Collectives(kept, number, log.seconds[kept] - transfer, transfer)


def _steps(
    log: InspectorLog,
    matched: _Collectives | None,
    rounds: CollectiveRounds,
    ranks: Sequence[int],
    notes: list[str],
) -> pa.Table:
    """One row per rank and repetition; without `matched`, the steps have no phases."""
    n_rounds = rounds.ends.size - 1
    shape = (len(ranks), n_rounds)
    length = np.diff(rounds.ends)
    inside = rounds.of_record >= 0
    cell = log.process * n_rounds + rounds.of_record
    columns: dict[str, FloatArray] = {}
    if matched is not None and matched.record.size:
        used = inside[matched.record]
        of_cell = cell[matched.record[used]]
        for name, values in (
            ("communication_wait_seconds", matched.wait),
            ("communication_transfer_seconds", matched.transfer),
        ):
            columns[name] = _sums(of_cell, values[used], shape)
    total = (
        np.sum(list(columns.values()), axis=0) if columns else _sums(cell[inside], log.seconds[inside], shape)
    )
    too_long = (total > length) & bool(columns)
    if too_long.any():
        notes.append(
            f"collectives overlap in {int(too_long.sum()):,} of {total.size:,} steps: "
            "their times are scaled down to the step"
        )
        scale = np.where(too_long, length / np.where(too_long, total, 1.0), 1.0)
        columns = {name: values * scale for name, values in columns.items()}
    held = np.isfinite(total)
    place, number = np.nonzero(held)
    return pa.table(
        {
            "rank": np.array(ranks, dtype=np.int32)[place],
            "step": number.astype(np.int64),
            "start_time": rounds.ends[number],
            "step_seconds": length[number],
            **{name: values[held] for name, values in columns.items()},
        }
    )


def _sums(cell: IntArray, values: FloatArray, shape: tuple[int, int]) -> FloatArray:
    """Sum of the values of each cell; NaN where there is none."""
    size = shape[0] * shape[1]
    found = np.bincount(cell, values, minlength=size)
    return np.where(np.bincount(cell, minlength=size) > 0, found, np.nan).reshape(shape)


def _waited_for(log: InspectorLog, matched: _Collectives, n_processes: int) -> FloatArray:
    """The share of the time in collectives in which the others wait for each process, shape (n_processes,).

    A process that others wait for may have waited itself, in another communicator: that is taken off. NaN
    without a matched collective.
    """
    if not matched.record.size:
        return np.full(n_processes, np.nan)
    process = log.process[matched.record]
    longest = np.zeros(int(matched.collective[-1]) + 1)
    np.maximum.at(longest, matched.collective, matched.wait)
    duration = (longest + _per_collective(matched.transfer, matched.collective))[matched.collective]
    waiting = np.where(_late(matched, longest), longest[matched.collective], 0.0)
    total = np.bincount(process, duration, minlength=n_processes)
    caused = np.bincount(process, waiting - matched.wait, minlength=n_processes).clip(0.0)
    return np.where(total > 0, caused / np.where(total > 0, total, 1.0), np.nan)


def _metrics(
    shares: FloatArray, processes: Sequence[NcclProcess], ranks: dict[NcclProcess, int], time: float
) -> pa.Table:
    known: list[int] = np.flatnonzero(np.isfinite(shares)).tolist()
    if not known:
        raise InvalidInput(
            "the files of NCCL Inspector show no step, and no collective of two ranks: nothing to compare",
            hint=f"give the files of all ranks of a job; {WRITE_OFTEN}",
        )
    return pa.table(
        {
            "time": np.full(len(known), time - 1e-3),
            "node": pa.array([processes[each].host or None for each in known], pa.string()),
            "rank": np.array([ranks[processes[each]] for each in known], dtype=np.int32),
            "name": pa.array([WAITED_FOR] * len(known), pa.string()),
            "value": shares[known],
        }
    )


def _per_collective(values: FloatArray, collective: IntArray) -> FloatArray:
    """The first value of each collective, for values that its members share."""
    return values[np.flatnonzero(np.diff(collective, prepend=-1))]


def _late(matched: _Collectives, longest: FloatArray) -> BoolArray:
    """Whether a member hardly waits, while half of all members or more wait for the last one."""
    waits = (matched.wait > _LATE_SECONDS) & (matched.wait > _LATE_SHARE * longest[matched.collective])
    waiting = np.bincount(matched.collective, waits, minlength=longest.size)
    crowd = (2 * waiting >= np.bincount(matched.collective))[matched.collective]
    return np.asarray(crowd & (matched.wait <= _HARDLY * longest[matched.collective]))


SOURCE = Source(
    name="nccl-inspector",
    title="files of NCCL Inspector, the profiler plugin of NCCL (JSON lines), one per process",
    tells="which rank makes the others wait at collectives; its cost per step, if files are written often",
    lacks="hardware and cause; a stop, because a collective that never ends is not written",
    recognises=is_inspector,
    read=read,
)
