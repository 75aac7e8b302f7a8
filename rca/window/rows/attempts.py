"""Attempts of a job: one that goes back to a checkpoint takes its steps again, and sends their rows again.

Three signs say which of two rows of a rank is the later one: a higher attempt number, a later arrival and a
later begin. Two of the three decide, so that no clock alone makes a row one of an earlier attempt. A row
that arrives late, is sent again, or has the time of a clock that was set back has one sign at most. A lone
row whose clock was set forward has two. So without numbers its rank has to go on from it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.window.grouping import rows_by_rank, step_codes
from rca.window.rows.row_errors import listed

#: Attempt number of a row that has none.
UNKNOWN = -1
#: A rank goes on from a row if its next row is so many times the usual number of steps further, or less.
MAX_STRIDES = 2
#: Two trainers send, if the rows of two runs that overlap in time arrive in so many turns.
MIN_TURNS = 6


def latest_attempt(steps: pa.Table) -> tuple[pa.Table, list[str]]:
    """The steps without the rows of earlier attempts, and notes; see `rows_of_latest_attempt`."""
    kept, notes = rows_of_latest_attempt(steps, np.zeros(steps.num_rows, dtype=bool))
    return (steps if kept.all() else steps.filter(pa.array(kept))), notes


def rows_of_latest_attempt(steps: pa.Table, implausible: BoolArray) -> tuple[BoolArray, list[str]]:
    """One row per rank and step, none of an earlier attempt, and notes on what is left out.

    Parameters
    ----------
    steps : pyarrow.Table
        In the order of arrival.
    implausible : ndarray of shape (n_rows,), bool
        Rows whose begin is no sign. They are left out where another row has their rank and step.

    Returns
    -------
    kept : ndarray of shape (n_rows,), bool
    notes : list of str
    """
    kept = np.ones(steps.num_rows, dtype=bool)
    if not steps.num_rows:
        return kept, []
    rank, attempt = steps.column("rank").to_numpy(), attempt_numbers(steps)
    code, width = step_codes(steps.column("step").to_numpy())
    key = rank.astype(np.int64) * width + code
    ordered = key[rows_by_rank(rank)]
    if (ordered[1:] > ordered[:-1]).all() and attempt.min() == attempt.max():
        return kept, []
    begin = np.where(implausible, np.nan, steps.column("start_time").to_numpy())
    earlier = earlier_attempts(rank, code, begin, attempt)
    kept = ~earlier
    kept[kept] = _last_of_each(rank[kept], code[kept], ~implausible[kept])
    if not earlier.any():
        return kept, []
    ranks = np.unique(rank[earlier])
    note = (
        f"{int(earlier.sum()):,} steps of {ranks.size:,} ranks are left out: the job went back to an earlier "
        f"step and took them again (ranks {listed(list(map(str, ranks)))})"
    )
    return kept, [note]


def rank_of_two_trainers(steps: pa.Table, implausible: BoolArray) -> int | None:
    """A rank that two processes send at the same time; None without one. One rank of a job is looked at.

    A process takes one step at a time. Steps that overlap are of another one, or of a clock that was set back
    before a restart. After a restart all rows of one run arrive before those of the other. Rows of two
    trainers arrive in turns.

    Parameters
    ----------
    steps : pyarrow.Table
        In the order of arrival.
    implausible : ndarray of shape (n_rows,), bool
        Rows whose begin is no sign.
    """
    if not steps.num_rows:
        return None
    ranks = steps.column("rank").to_numpy()
    rows = np.flatnonzero((ranks == ranks.min()) & ~implausible)
    begin, seconds = (steps.column(name).to_numpy()[rows] for name in ("start_time", "step_seconds"))
    arrival = np.argsort(begin, kind="stable")
    begin, seconds = begin[arrival], seconds[arrival]
    # Half of a step is more than clocks and timers are wrong by.
    if not (np.diff(begin) < seconds[:-1] / 2).any():
        return None
    second = np.zeros(rows.size, dtype=bool)
    ends = [-np.inf, -np.inf]
    for place, (start, length) in enumerate(
        zip(begin.tolist(), np.nan_to_num(seconds).tolist(), strict=True)
    ):
        second[place] = start < ends[0]
        ends[int(second[place])] = start + length / 2
    in_turns = second[np.argsort(arrival)]
    return int(ranks.min()) if np.count_nonzero(np.diff(in_turns)) >= MIN_TURNS else None


def attempt_numbers(steps: pa.Table) -> IntArray:
    """Attempt number of each row; `UNKNOWN` where there is none."""
    if "attempt" not in steps.column_names:
        return np.full(steps.num_rows, UNKNOWN)
    numbers: IntArray = pc.fill_null(steps.column("attempt"), UNKNOWN).to_numpy().astype(np.int64)
    return numbers


def earlier_attempts(rank: IntArray, step: IntArray, begin: FloatArray, attempt: IntArray) -> BoolArray:
    """Rows after which their rank took the same or an earlier step again.

    Parameters
    ----------
    rank, step : ndarray of shape (n_rows,), int
        In the order of arrival. Steps are small numbers that grow with the step.
    begin : ndarray of shape (n_rows,), Unix seconds
        NaN is no sign.
    attempt : ndarray of shape (n_rows,), int
        `UNKNOWN` is no sign.

    Returns
    -------
    ndarray of shape (n_rows,), bool
    """
    found = np.zeros(rank.size, dtype=bool)
    if rank.size == 0:
        return found
    rank = rank.astype(np.int64)
    arrival = _numbered_within(rank)
    dated, numbered = np.isfinite(begin), attempt != UNKNOWN
    everywhere = np.ones(rank.size, dtype=bool)
    signs: tuple[tuple[BoolArray, IntArray, FloatArray, BoolArray], ...] = (
        (dated, arrival, begin, _goes_on(rank, arrival, begin, step)),
        (dated & numbered, attempt, begin, everywhere),
        (numbered, attempt, arrival.astype(np.float64), everywhere),
    )
    for known, first, second, counts in signs:
        rows = np.flatnonzero(known)
        if rows.size:
            found[rows] |= _superseded(rank[rows], first[rows], second[rows], step[rows], counts[rows])
    return found


def _goes_on(rank: IntArray, arrival: IntArray, begin: FloatArray, step: IntArray) -> BoolArray:
    """Rows after which their rank took one of the next steps: the row that begins next arrived later."""
    order = np.lexsort((arrival, begin, rank))
    ahead = np.diff(step[order])
    follows = (np.diff(rank[order]) == 0) & (np.diff(arrival[order]) > 0) & (ahead > 0)
    found = np.zeros(rank.size, dtype=bool)
    if follows.any():
        # Ranks may write every tenth step only.
        found[order[:-1]] = follows & (ahead <= MAX_STRIDES * np.median(ahead[follows]))
    return found


def _superseded(
    group: IntArray, first: IntArray, second: FloatArray, step: IntArray, counts: BoolArray
) -> BoolArray:
    """Rows for which a row of the group is higher in `first` and in `second`, at the same or an earlier step.

    Only rows that `counts` supersede others.

    Divide and conquer: two values of `first` differ in one highest bit. So for each bit the rows that share
    the higher bits are sorted by `second`, and those with the bit are searched for the earliest step.
    """
    found = np.zeros(group.size, dtype=bool)
    rows = _out_of_order(group, first, step)
    if rows.size == 0:
        return found
    # Small numbers: those of groups and attempts may be as large as a time in nanoseconds.
    group, first = (np.unique(each[rows], return_inverse=True)[1] for each in (group, first))
    second, step, counts = second[rows], step[rows], counts[rows]
    # Of equal values of `second` none is higher: the one that is higher in `first` comes before.
    order = np.lexsort((-first, second, group))
    group, first, step, counts = group[order], first[order], step[order], counts[order]
    hidden = np.zeros(rows.size, dtype=bool)
    none = int(step.max()) + 1
    for bit in range(int(first.max()).bit_length()):
        blocks = (int(first.max()) >> (bit + 1)) + 1
        block = group * blocks + (first >> (bit + 1))
        place = np.argsort(block, kind="stable")
        higher = (first[place] >> bit) & 1 == 1
        # Blocks ascend, so the minimum from the end begins anew in each.
        value = block[place] * (none + 1) + np.where(higher & counts[place], step[place], none)
        earliest = np.minimum.accumulate(value[::-1])[::-1] - block[place] * (none + 1)
        hidden[place] |= ~higher & (earliest <= step[place])
    found[rows[order]] = hidden
    return found


def _out_of_order(group: IntArray, first: IntArray, step: IntArray) -> IntArray:
    """Rows that are not in ascending steps by `first`: others are not superseded, and supersede no row."""
    order = np.lexsort((step, first, group))
    # Groups ascend, so that rows of two groups are in order.
    value = group[order] * (int(step.max()) + 1) + step[order]
    late = np.zeros(order.size, dtype=bool)
    late[1:] = value[1:] <= np.maximum.accumulate(value)[:-1]
    late[:-1] |= value[:-1] >= np.minimum.accumulate(value[::-1])[::-1][1:]
    rows: IntArray = order[late]
    return rows


def _numbered_within(group: IntArray) -> IntArray:
    """Place of each row among those of its group."""
    order = rows_by_rank(group)
    first = np.r_[True, np.diff(group[order]) != 0]
    starts = np.flatnonzero(first)
    places = np.empty(group.size, dtype=np.int64)
    places[order] = np.arange(group.size) - starts[np.cumsum(first) - 1]
    return places


def _last_of_each(rank: IntArray, step: IntArray, plausible: BoolArray) -> BoolArray:
    """The last row of each rank and step; one with an implausible time only where there is no other."""
    order = np.lexsort((np.arange(rank.size), plausible, step, rank))
    last = np.ones(rank.size, dtype=bool)
    last[:-1] = (np.diff(rank[order]) != 0) | (np.diff(step[order]) != 0)
    kept = np.empty(rank.size, dtype=bool)
    kept[order] = last
    return kept
