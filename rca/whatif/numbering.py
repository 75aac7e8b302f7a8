"""Operation numbers that count on over the steps instead of restarting with each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rca.whatif.optypes import N_TYPES, NAMES
from rca.whatif.trace import OpTrace

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def restarted(trace: OpTrace) -> OpTrace:
    """Number every step's operations from 0, where the producer counts on from step to step.

    Type by type: one is taken to count on where it begins above 0 in most steps of most ranks. Where the
    numbers of a step follow each other only their first is taken off, so that a missing row stays missing;
    otherwise (one counter for several types) the order of the starts numbers them.
    """
    if trace.n_ops == 0 or int(trace.sequence.min()) < 0:
        return trace
    counting = _suspects(trace)
    if not counting.size:
        return trace
    rows = np.flatnonzero(np.isin(trace.optype, counting))
    place = (trace.rank, trace.optype, trace.stage, trace.data_rank, trace.step)
    cells: list[npt.NDArray[Any]] = [key[rows] for key in place]
    by_place = np.lexsort([trace.sequence[rows], *cells])
    by_start = np.lexsort([trace.start[rows], *cells])
    order = rows[by_start]
    first = _changes(place, order)
    begin = np.flatnonzero(first)
    lowest = trace.sequence[rows[by_place]][begin]
    if rows.size == trace.n_ops and np.unique(lowest).size == 1:
        return trace  # numbered from 1, say: shifted with the other repairs
    counts = np.diff(np.append(begin, order.size))
    highest = trace.sequence[rows[by_place]][begin + counts - 1]
    sequence = trace.sequence.copy()
    changed: dict[str, list[int]] = {}
    for code in counting:
        here = np.flatnonzero(trace.optype[order[begin]] == code)
        if 2 * int((lowest[here] > 0).sum()) <= here.size:
            continue
        mine = np.flatnonzero(trace.optype[order] == code)
        cell = np.cumsum(first)[mine] - 1
        if 2 * int((highest[here] - lowest[here] < counts[here]).sum()) > here.size:
            sequence[order[mine]] -= lowest[cell]
            changed.setdefault("counted from the step's first", []).append(int(code))
        else:
            sequence[order[mine]] = mine - begin[cell]
            changed.setdefault("numbered by start", []).append(int(code))
    return replace(trace, sequence=sequence).noted(*_notes(trace, changed))


def _notes(trace: OpTrace, changed: dict[str, list[int]]) -> list[str]:
    return [
        f"seq_id does not restart with every step: {int(np.isin(trace.optype, codes).sum())} rows {how}, "
        f"of {', '.join(NAMES[code] for code in codes)}"
        for how, codes in changed.items()
    ]


def _changes(keys: tuple[IntArray, ...], order: IntArray) -> BoolArray:
    """Where, in the order, any of the keys differs from the row before."""
    first = np.zeros(order.size, dtype=bool)
    first[0] = True
    for key in keys:
        first[1:] |= key[order[1:]] != key[order[:-1]]
    return first


def _suspects(trace: OpTrace) -> IntArray:
    """Types whose lowest number exceeds 0 in at least one step; a quick look, as most traces restart."""
    _, step = np.unique(trace.step, return_inverse=True)
    none = np.iinfo(np.int64).max
    lowest = np.full((int(step.max()) + 1) * N_TYPES, none)
    np.minimum.at(lowest, step * N_TYPES + trace.optype, trace.sequence)
    above = (lowest > 0) & (lowest < none)
    return np.flatnonzero(above.reshape(-1, N_TYPES).any(axis=0))
