"""Checks of a trace: impossible indices and times, rank numbers of workers, world size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rca.arrays import IntArray
from rca.errors import InvalidTrace, InvalidWindow
from rca.whatif.optypes import NAMES
from rca.whatif.trace.trace import Note, OpTrace, TraceMeta

#: Traces are read in single precision.
Times = npt.NDArray[np.floating[Any]]

LONGEST = 86_400.0
"""Seconds. A longer step or operation means a damaged row, or a clock that does not count in seconds."""

UNUSUAL_SECONDS = 60.0
UNUSUAL_FACTOR = 1000.0
"""Operations longer than both limits (seconds, and medians of their type) get a note."""

MAX_INDEX = {"dp_rank": 1_000_000, "stage": 1_000_000, "mc": 100_000, "gmc": 10_000_000}
"""Largest plausible indices. A larger index is damaged, and would cost memory or time."""

WHOLE_SECONDS = "all durations are whole numbers of seconds: shorter operations are lost; check the unit"
_SECONDS = "start_ts and duration are in seconds"


def refuse_indices(columns: Mapping[str, IntArray], rows: IntArray, narrow: frozenset[str]) -> None:
    """Refuse data ranks, stages and chunks that cannot be indices.

    Parameters
    ----------
    columns : mapping of str to ndarray of shape (n_rows,), int
    rows : ndarray of shape (n_rows,), int
        Row numbers in the given table.
    narrow : frozenset of str
        Columns of 8 or 16 bits, which may have overflowed.
    """
    for name, largest in MAX_INDEX.items():
        values = columns[name]
        lowest = 0 if name in ("dp_rank", "stage") else np.iinfo(np.int64).min
        wrong = np.flatnonzero((values < lowest) | (values > largest))
        if wrong.size:
            value = int(values[wrong[0]])
            hint = f"expected indices counted from 0; -1 where {name} does not apply"
            if lowest == 0:
                hint = "expected indices counted from 0"
            if value < 0 and name in narrow:
                hint = f"{name} is too narrow for the job and has overflowed: write it as int32"
            raise InvalidTrace(
                f"column {name} holds {value} in row {rows[wrong[0]]} ({wrong.size} such row(s))", hint=hint
            )


def refuse_times(columns: Mapping[str, IntArray], relative: Times, duration: Times, rows: IntArray) -> None:
    """Refuse damaged times, and times in another unit.

    Parameters
    ----------
    columns : mapping of str to ndarray of shape (n_rows,), int
    relative, duration : ndarray of shape (n_rows,), seconds
        `relative` counts from the first start of the row's step.
    rows : ndarray of shape (n_rows,), int
    """
    late = int(np.argmax(relative))
    if float(relative[late]) > LONGEST:
        together = np.flatnonzero(columns["step"] == columns["step"][late])
        if float(np.median(relative[together])) > LONGEST / 2:
            # The other rows of the step agree, so its first row is damaged.
            early = int(together[np.argmin(relative[together])])
            raise InvalidTrace(
                f"a step would take {float(relative[late]):.3g} s: "
                f"it begins with {_named(columns, rows, early)}",
                hint=f"{_SECONDS}; drop the row if it is damaged",
            )
        raise InvalidTrace(
            f"a step would take {float(relative[late]):.3g} s: {_named(columns, rows, late)} starts then",
            hint=f"{_SECONDS}; drop the row if it is damaged",
        )
    long = np.flatnonzero(duration > LONGEST)
    if long.size:
        worst = int(long[np.argmax(duration[long])])
        raise InvalidTrace(
            f"{_named(columns, rows, worst)} takes {float(duration[worst]):.3g} s ({long.size} such row(s))",
            hint=f"{_SECONDS}; drop the row if it is damaged",
        )


def refuse_zero_durations(instant: int, computes: int) -> None:
    """Refuse a trace most of whose `computes` last 0 s."""
    if 2 * instant > computes:
        raise InvalidTrace(
            f"operations take no time: {instant} of {computes} forward and backward computes last 0 s",
            hint="duration is in seconds with its fraction; whole seconds lose what is shorter",
        )


def coarse_durations(duration: Times) -> list[str]:
    """A note if all durations are whole seconds: short operations are lost, or the unit is wrong."""
    return [WHOLE_SECONDS] if duration.size and (duration == np.rint(duration)).all() else []


def unusual_durations(columns: Mapping[str, IntArray], duration: Times, rows: IntArray) -> list[Note]:
    """Notes on operations that take over a thousand medians of their type, and so dominate the result."""
    long = np.flatnonzero(duration > UNUSUAL_SECONDS)
    notes = []
    for code in np.unique(columns["optype"][long]):
        usual = float(np.median(duration[columns["optype"] == code]))
        here = long[(columns["optype"][long] == code) & (duration[long] > UNUSUAL_FACTOR * usual)]
        if here.size:
            worst = int(here[np.argmax(duration[here])])
            takes = f"{_named(columns, rows, worst)} takes {float(duration[worst]):.3g} s"
            notes.append(Note((f"{takes}, {usual:.3g} s is usual there (", here.size, " such row(s))")))
    return notes


def _named(columns: Mapping[str, IntArray], rows: IntArray, at: int) -> str:
    place = f"data rank {columns['dp_rank'][at]}, stage {columns['stage'][at]}, step {columns['step'][at]}"
    return f"row {rows[at]} ({NAMES[columns['optype'][at]]} of {place})"


ROWS_SHOWN = 5
"""Wrong rows shown in an error."""


def with_own_ranks(trace: OpTrace) -> OpTrace:
    """Remove the rank numbers if one names several workers, and check the world size."""
    shared = shared_ranks(trace.rank, trace.data_rank * trace.n_stages + trace.stage)
    if shared.size:
        trace = replace(trace, rank=np.full(trace.n_ops, -1)).noted(shared_note(trace.rank[shared]))
    return trace.noted(*world_size_notes(trace.meta, trace.n_data, trace.n_stages))


def shared_note(shared: IntArray) -> str:
    """Note on rank numbers that name several workers."""
    named = ", ".join(map(str, np.unique(shared)[:8]))
    return f"column rank has {named} under several (data rank, stage): ranks are numbered in the usual order"


def world_size_notes(meta: TraceMeta, n_data: int, n_stages: int) -> list[str]:
    """Notes on a world size that the traced workers do not divide; for metadata without all sizes."""
    sizes = (meta.dp_size, meta.pp_size, meta.tp_size, meta.dsp_size)
    if meta.world_size is None or None not in sizes:
        return []
    workers = n_data * n_stages
    least = workers * (meta.tp_size or 1) * (meta.dsp_size or 1)
    if meta.world_size % least == 0:
        return []
    return [
        f"metadata says world_size {meta.world_size}; {workers} workers were traced, "
        f"{least} ranks with the sizes given"
    ]


def refuse_shared_ranks(rank: IntArray, data_rank: IntArray, stage: IntArray) -> None:
    """Refuse a window with one rank under several (data rank, stage): the wrong machine could be named.

    Parameters
    ----------
    rank, data_rank, stage : ndarray of shape (n_rows,), int
        Columns of the `ops` table.

    Raises
    ------
    InvalidWindow
        The error has the first wrong rows.
    """
    shared = shared_ranks(rank, data_rank * (int(stage.max(initial=0)) + 1) + stage)
    if not shared.size:
        return
    of_first = shared[rank[shared] == rank[shared[0]]]
    place = np.stack((data_rank[of_first], stage[of_first]))
    shown = of_first[np.sort(np.unique(place, axis=1, return_index=True)[1])[:ROWS_SHOWN]]
    raise InvalidWindow(
        "one rank under several (dp_rank, stage)",
        table="ops",
        column="rank",
        rows=[
            {"row": int(at), "rank": int(rank[at]), "dp_rank": int(data_rank[at]), "stage": int(stage[at])}
            for at in shown
        ],
        n_rows=int(shared.size),
        expected="every rank under one dp_rank and one stage",
    )


def shared_ranks(rank: IntArray, worker: IntArray) -> IntArray:
    """Rows whose rank number also names another worker (data rank and stage); -1 is no rank number.

    Returns
    -------
    ndarray of shape (n_found,), int
        Positions, in order.
    """
    given = np.flatnonzero(rank >= 0)
    if not given.size:
        return given
    names = rank[given]
    if int(names.max()) > 4 * given.size + 1_000_000:
        names = np.unique(names, return_inverse=True)[1]
    low = np.full(int(names.max()) + 1, np.iinfo(np.int64).max)
    high = np.full(low.size, -1)
    np.minimum.at(low, names, worker[given])
    np.maximum.at(high, names, worker[given])
    found: IntArray = given[low[names] != high[names]]
    return found
