"""Repetitions of the sequence of collectives, and when each of them ended.

A training loop runs the same collectives in each step. The records have the time at which they were written,
which may be long after the collective: several repetitions may be written at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.errors import InvalidInput
from rca.sources.nccl_inspector.records import InspectorLog

#: A window holds the newest repetitions.
MAX_STEPS = 2000
#: A sequence repeats if so many of its collectives are the same one repetition later.
_SAME = 0.95
#: The longest repetition that is looked for, and in how many of the newest collectives.
_MAX_PERIOD, _SEARCHED = 2000, 20_000
_MIN_STEPS = 3
#: Repetitions that follow the one before within this share of the mean were written at once.
_AT_ONCE = 0.1
#: Repetitions were written at once if their collectives take so many times as long as they are apart.
_TOO_DENSE = 2.0
#: ... and times have another unit if it is so much, although repetitions are so far apart, seconds.
_IMPOSSIBLE, _APART = 100.0, 0.01
#: Times are on a grid if gaps are multiples of the smallest, or of a part of it, within this share of it.
_ON_GRID, _FINEST_PART = 0.05, 4
#: ... in so many of the gaps, with at least so many gaps that are not the usual multiple.
_MAX_GAPS, _OTHER_MULTIPLES = 0.9, 2
#: A time may be a grid's width too late: steps are averaged over so many widths.
_WIDTHS = 20
#: Clocks that differ by less are not corrected, seconds: records may be written later by so much.
_CLOCKS_DIFFER, _LISTED_CLOCKS = 0.2, 8
#: Processes whose times are searched for a grid.
_SEARCHED_PROCESSES = 32
#: What to do if no repetition has a time.
WRITE_OFTEN = "set NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=500, or NCCL_INSPECTOR_DUMP_VERBOSE=1"


@dataclass(frozen=True)
class CollectiveRounds:
    """Repetitions of the sequence of collectives: their ends in Unix seconds, (n_rounds + 1,).

    `of_record` is the repetition of each record, -1 outside of them.
    """

    ends: FloatArray
    of_record: IntArray


class _Batches(NamedTuple):
    """Repetitions that were written together.

    Attributes
    ----------
    last : ndarray of shape (n_batches,), int
        Number of the last repetition of each; 0 for the first batch.
    moment : ndarray of shape (n_batches,), Unix seconds
    """

    last: IntArray
    moment: FloatArray


def find_rounds(log: InspectorLog, notes: list[str]) -> CollectiveRounds | None:
    """Repetitions of the sequence of collectives of the largest communicator; None if they have no times.

    `notes` says why, or what a repetition is.
    """
    records = np.bincount(log.communicator, minlength=len(log.sizes))
    pace = max(range(len(log.sizes)), key=lambda group: (log.sizes[group], records[group]))
    of_process = [
        np.flatnonzero((log.communicator == pace) & (log.process == process))
        for group, process in log.members
        if group == pace
    ]
    reference = max(of_process, key=len)
    period = _period(np.stack([log.kind[reference], log.size[reference]])) or _period(
        log.kind[reference][None]
    )
    if period is None:
        notes.append("the sequence of collectives does not repeat: no steps")
        return None
    busy = period * float(log.seconds[reference].mean())
    ends, early = _common_ends(log, of_process, reference, period)
    if early:
        notes.append(
            f"files of {len(early)} ranks end early, such as {early[0]}: steps after that are left out"
        )
    width = float(np.median([_grid(each) for each in log.time[ends[:_SEARCHED_PROCESSES]]]))
    _correct_clocks(log, ends, _CLOCKS_DIFFER + 2 * width, notes)
    times = log.time[ends]
    batches = _batches(np.median(times, axis=0), busy)
    if batches is not None and width > 0:
        batches = _joined(batches, _WIDTHS * width)
        if batches is not None:
            notes.append(
                f"records were written every {width:.3g} s: step times are means over {_WIDTHS} of these"
            )
    if batches is None:
        notes.append(f"records were written at once, so no step has a time: {WRITE_OFTEN}")
        return None
    name = list(log.communicators)[pace]
    notes.append(
        f"a step is one repetition of {period} collectives of communicator {name} ({log.sizes[pace]} ranks)"
    )
    moments = np.interp(np.arange(batches.last[-1] + 1), batches.last, batches.moment)
    return CollectiveRounds(moments, _of_records(log, batches))


def _common_ends(
    log: InspectorLog, of_process: list[IntArray], reference: IntArray, period: int
) -> tuple[IntArray, list[str]]:
    """The record with which each process ends each repetition, shape (n_processes, n_ends).

    Only repetitions that all processes have count. Also names the processes that end early.
    """
    # Kind and number identify a collective of a communicator.
    key = log.sequence * len(log.kinds) + log.kind
    sorted_keys, place = np.unique(key[reference], return_index=True)
    found = []
    for records in of_process:
        near = np.minimum(np.searchsorted(sorted_keys, key[records]), sorted_keys.size - 1)
        known = sorted_keys[near] == key[records]
        at = np.full(len(reference), -1)
        at[place[near[known]]] = records[known]
        found.append(at)
    table = np.array(found)
    latest = np.array([np.flatnonzero(row >= 0).max(initial=-1) for row in table])
    everywhere = np.flatnonzero(np.all(table >= 0, axis=0))
    if not everywhere.size:
        return table[:, :0], []
    # The last record that all processes have ends a repetition; the first repetition may be cut.
    ends = np.arange(int(everywhere[-1]), -1, -period)[: MAX_STEPS + 2][::-1]
    ends = ends[np.all(table[:, ends] >= 0, axis=0)]
    early = np.flatnonzero(latest + period < np.median(latest))
    return table[:, ends], [_name(log, of_process[each][0]) for each in early]


def _name(log: InspectorLog, record: int) -> str:
    """The process of a record, and its rank in the communicator."""
    process = list(log.processes)[log.process[record]]
    rank = log.members[int(log.communicator[record]), int(log.process[record])]
    return f"rank {rank} ({process.host} pid {process.pid})"


def _correct_clocks(log: InspectorLog, ends: IntArray, least: float, notes: list[str]) -> None:
    """Put times that differ by `least` seconds on one clock: a collective ends at the same time on all."""
    if not ends.size:
        return
    times = log.time[ends]
    offset = np.median(times - np.median(times, axis=0), axis=1)
    off = np.flatnonzero(np.abs(offset) > least)
    for each in off[:_LISTED_CLOCKS].tolist():
        name = _name(log, ends[each, 0])
        notes.append(f"the clock of {name} differs by {offset[each]:,.1f} s: it is corrected")
    correction = np.zeros(len(log.processes))
    correction[log.process[ends[off, 0]]] = offset[off]
    log.time = log.time - correction[log.process]


def _period(tokens: IntArray) -> int | None:
    """The shortest length after which a sequence, shape (n_parts, n), repeats itself; None without one."""
    tokens = tokens[:, -_SEARCHED:]
    n = tokens.shape[1]
    for length in range(1, min(n // _MIN_STEPS, _MAX_PERIOD) + 1):
        if np.all(tokens[:, length:] == tokens[:, :-length], axis=0).mean() >= _SAME:
            return length
    return None


def _batches(written: FloatArray, busy: float) -> _Batches | None:
    """Repetitions that were written at once; None if nothing shows how long a repetition takes.

    Parameters
    ----------
    written : ndarray of shape (n_repetitions,), Unix seconds
        When the end of each repetition was written.
    busy : float, seconds
        In the collectives of a repetition.
    """
    written = np.maximum.accumulate(written)
    gaps = np.diff(written)
    apart = float(gaps.mean()) if gaps.size else 0.0
    if apart > _APART and busy > _IMPOSSIBLE * apart:
        raise InvalidInput(
            f"collectives of {busy:.3g} s repeat every {apart:.3g} s",
            hint="coll_exec_time_us is not in microseconds, or the files are of several jobs",
        )
    if written.size <= _MIN_STEPS or busy > _TOO_DENSE * apart:
        return None
    last = np.flatnonzero(np.append(gaps > _AT_ONCE * apart, True))
    first = np.append(0, last[:-1] + 1)
    if last.size < 2 or last[-1] - last[0] < _MIN_STEPS:
        return None
    return _Batches(last - last[0], written[first])


def _grid(written: FloatArray) -> float:
    """Seconds between two moments at which a process may write its records; 0 if any moment is possible.

    The plugin's thread writes at an interval what has finished meanwhile. Then steps of equal length seem to
    differ by whole intervals.
    """
    gaps = np.diff(np.maximum.accumulate(written))
    apart = gaps[gaps > _AT_ONCE * gaps.mean()] if gaps.size else gaps
    if apart.size < _MIN_STEPS:
        return 0.0
    for part in range(1, _FINEST_PART + 1):
        width = float(np.percentile(apart, 5)) / part
        multiple = np.rint(gaps / width)
        on_grid = np.abs(apart / width - np.rint(apart / width)) <= _ON_GRID
        usual = np.bincount(multiple.astype(np.int64)).max()
        if on_grid.mean() >= _MAX_GAPS and gaps.size - usual >= _OTHER_MULTIPLES:
            return width
    return 0.0


def _joined(batches: _Batches, least: float) -> _Batches | None:
    """Batches joined until each is `least` seconds long; None if all of them together are shorter."""
    kept = [0]
    for place, moment in enumerate(batches.moment):
        if moment - batches.moment[kept[-1]] >= least:
            kept.append(place)
    if len(kept) < 2:
        return None
    kept[-1] = batches.moment.size - 1
    return _Batches(batches.last[kept], batches.moment[kept])


def _of_records(log: InspectorLog, batches: _Batches) -> IntArray:
    """The repetition of each record, -1 outside; records of one batch are spread evenly over it."""
    slack = _AT_ONCE * float(np.median(np.diff(batches.moment)))
    batch = np.searchsorted(batches.moment + slack, log.time, side="left")
    order = np.lexsort((batch, log.communicator, log.process))
    keys = np.stack([log.process, log.communicator, batch])[:, order]
    begins = np.flatnonzero(np.any(np.diff(keys, axis=1, prepend=-1) != 0, axis=0))
    count = np.diff(np.append(begins, order.size))
    place = np.arange(order.size) - np.repeat(begins, count)
    inside = (batch > 0) & (batch < batches.last.size)
    before = batches.last[np.clip(batch - 1, 0, batches.last.size - 1)]
    held = batches.last[np.minimum(batch, batches.last.size - 1)] - before
    share = np.empty(order.size)
    share[order] = place / np.repeat(count, count)
    return np.where(inside, before + (share * held).astype(np.int64), -1)
