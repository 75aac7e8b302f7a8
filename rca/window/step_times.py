"""Impossible times of steps: after their arrival, or of a clock that was set in between.

Such rows are kept as they were sent. In the window that is diagnosed their times are put where they belong,
and notes say so: otherwise one row of the year 2100 would make a window of decades.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rca.arrays import BoolArray, FloatArray, IntArray
from rca.window.grouping import rows_by_rank_and_step, step_codes
from rca.window.rows.row_errors import listed

#: A step may begin so many seconds after its arrival: clocks differ.
MAX_AHEAD_SECONDS = 600.0
#: A clock was set if it goes back by more than this between two steps of a rank, seconds.
MIN_JUMP_SECONDS = 60.0
#: A clock was set forward if a rank's time between two steps is longer than the others' by so many steps.
MIN_JUMP_STEPS = 10.0


def with_arrival(steps: pa.Table, at: float) -> pa.Table:
    """The steps with the time of their arrival, if any of them begins long after it."""
    if "received_time" in steps.column_names:
        steps = steps.drop_columns(["received_time"])
    late = pc.max(steps.column("start_time")).as_py() if steps.num_rows else None
    if late is None or late <= at + MAX_AHEAD_SECONDS:
        return steps
    return steps.append_column("received_time", pa.array(np.full(steps.num_rows, at)))


def ahead_of_arrival(steps: pa.Table) -> BoolArray:
    """Rows that begin long after their arrival.

    If more than half of the rows do, the service's clock is behind, and they are compared with their median.
    """
    if "received_time" not in steps.column_names:
        return np.zeros(steps.num_rows, dtype=bool)
    received = pc.fill_null(steps.column("received_time"), np.nan).to_numpy()
    ahead = np.maximum(np.nan_to_num(steps.column("start_time").to_numpy() - received), 0.0)
    late: BoolArray = ahead - np.median(ahead) > MAX_AHEAD_SECONDS
    return late


def steadied(steps: pa.Table, ahead: BoolArray) -> tuple[pa.Table, list[str]]:
    """The steps with times of one clock per rank, and notes on what was moved.

    A clock that was set moves the earlier rows of its rank, so that the newest times stay. It was set if it
    goes back, or if it goes forward and those of the other ranks do not follow. Rows of `ahead` get the time
    at which other ranks began their step.

    Parameters
    ----------
    steps : pyarrow.Table
        Each rank and step once.
    ahead : ndarray of shape (n_rows,), bool
        Rows whose time does not count.
    """
    if not steps.num_rows:
        return steps, []
    rank, begin = steps.column("rank").to_numpy(), steps.column("start_time").to_numpy()
    number = steps.column("step").to_numpy()
    code, width = step_codes(number)
    order = rows_by_rank_and_step(rank, code, width)
    order = order[~ahead[order]]
    shift, jumped = _shifts(rank[order], code[order], begin[order], _usual(steps))
    if not (jumped.any() or ahead.any()):
        return steps, []
    notes = []
    moved = begin.copy()
    if jumped.any():
        moved[order] += shift
        ranks = np.unique(rank[order[jumped]])
        first = int(number[order[jumped]].min())
        notes.append(
            f"the clock of {ranks.size:,} ranks was set by {np.abs(shift).max():,.0f} s after step {first}: "
            f"{int((shift != 0).sum()):,} earlier times were moved to fit ({_named(ranks)})"
        )
    if ahead.any():
        moved[ahead] = _others(code, moved, ahead, width, _usual(steps))
    place = steps.column_names.index("start_time")
    return steps.set_column(place, "start_time", pa.array(moved)), notes


def ahead_note(steps: pa.Table, ahead: BoolArray) -> list[str]:
    """The note on rows that begin long after their arrival."""
    if not ahead.any():
        return []
    ranks = np.unique(steps.column("rank").to_numpy()[ahead])
    return [
        f"{int(ahead.sum()):,} steps of {ranks.size:,} ranks have a time long after their arrival, "
        f"which does not count ({_named(ranks)})"
    ]


def _named(ranks: IntArray) -> str:
    return "ranks " + listed([str(rank) for rank in ranks])


def _usual(steps: pa.Table) -> float:
    seconds = steps.column("step_seconds").to_numpy()
    known = seconds[np.isfinite(seconds)]
    return float(np.median(known)) if known.size else 0.0


def _shifts(rank: IntArray, code: IntArray, begin: FloatArray, usual: float) -> tuple[FloatArray, BoolArray]:
    """Seconds to add to each time, and after which rows the clock was set; rows sorted by rank and step."""
    shift, jumped = np.zeros(begin.size), np.zeros(begin.size, dtype=bool)
    apart = np.diff(begin, append=np.nan)
    apart[:-1][np.diff(rank) != 0] = np.nan
    back = apart < -MIN_JUMP_SECONDS
    least = max(MIN_JUMP_SECONDS, MIN_JUMP_STEPS * usual)
    if not (back.any() or (apart > least).any()):
        return shift, jumped
    others = _lower_median(code, apart)
    expected = np.where(others < -MIN_JUMP_SECONDS, usual, others)[code]
    excess = apart - expected
    then, after = np.append(excess[1:], np.nan), np.append(back[1:], False)
    # A rank that was held up is level with the others one step later.
    forward = (excess > least) & ((excess + then > excess / 2) | after)
    jumped = back | forward
    set_by = np.where(jumped, excess, 0.0)
    # Of each rank the sum over this row and all later ones.
    total = np.cumsum(set_by[::-1])[::-1]
    last = np.flatnonzero(np.r_[np.diff(rank) != 0, True])
    beyond = np.append(total, 0.0)[last + 1]
    shift = total - beyond[np.searchsorted(last, np.arange(begin.size))]
    return np.where(np.abs(shift) < 1.0, 0.0, shift), jumped


def _lower_median(code: IntArray, values: FloatArray) -> FloatArray:
    """Median of the values of each code, the lower one of two; NaN values are left out."""
    known = np.isfinite(values)
    n_codes = int(code.max()) + 1
    order = np.lexsort((values[known], code[known]))
    counts = np.bincount(code[known], minlength=n_codes)
    found = np.full(n_codes, np.nan)
    held = counts > 0
    found[held] = values[known][order][(np.cumsum(counts) - counts + (counts - 1) // 2)[held]]
    return found


def _others(code: IntArray, begin: FloatArray, ahead: BoolArray, width: int, usual: float) -> FloatArray:
    """For the rows of `ahead` the time at which other ranks began their step."""
    reference = np.full(width, np.nan)
    known = _lower_median(code[~ahead], begin[~ahead])
    reference[: known.size] = known
    at = np.flatnonzero(np.isfinite(reference))
    wanted = code[ahead]
    found = np.interp(wanted, at, reference[at])
    beyond = np.minimum(wanted - at[0], 0) + np.maximum(wanted - at[-1], 0)
    placed: FloatArray = found + usual * beyond
    return placed
