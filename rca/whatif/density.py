"""How full the dense arrays of a trace would be: nearly empty steps go, sparse traces are refused."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rca.errors import InvalidTrace
from rca.whatif.optypes import GC, NAMES
from rca.whatif.trace import OpTrace

IntArray = npt.NDArray[np.int64]

MOST_CELLS_PER_ROW = 4
SPARE_CELLS = 1_000_000
"""Dense arrays may hold this much more than the rows; a sparser trace is damaged, and would cost memory."""


def filled_enough(
    trace: OpTrace,
    steps: IntArray,
    step: IntArray,
    groups: list[tuple[IntArray, IntArray]],
    notes: list[str],
) -> list[tuple[IntArray, IntArray]]:
    """Groups without the steps that are nearly empty, before any memory is spent on them.

    Pauses count apart: where they are occasional, most of their cells are empty on purpose, but each is held
    somewhere.
    """
    held = np.bincount(step[trace.optype != GC], minlength=steps.size)
    pauses = np.bincount(step[trace.optype == GC], minlength=steps.size)
    kept: list[tuple[IntArray, IntArray]] = []
    cells = 0
    for size, members in groups:
        n_pauses = int(size[:, GC].sum())
        expected = (int(size.sum()) - n_pauses) * trace.n_data
        full = MOST_CELLS_PER_ROW * held[members] >= expected
        if n_pauses > MOST_CELLS_PER_ROW * max(1, int(pauses[members].sum())):
            full[:] = False
        notes += dropped_note(steps[members[~full]])
        if full.any():
            kept.append((size, members[full]))
            cells += int(size.sum()) * trace.n_data * int(full.sum())
    refuse_sparse(trace, cells, "operation, data rank, step")
    return kept


def refuse_sparse(trace: OpTrace, cells: int, of: str) -> None:
    if cells > MOST_CELLS_PER_ROW * trace.n_ops + SPARE_CELLS:
        raise InvalidTrace(
            f"{trace.n_ops:,} rows are spread over {cells:,} places ({of})", hint=largest_number(trace)
        )


def largest_number(trace: OpTrace) -> str:
    """What usually makes a trace sparse: one operation with a number far beyond the others'."""
    at = int(np.argmax(trace.sequence))
    return (
        f"seq_id of {NAMES[trace.optype[at]]} runs to {trace.sequence[at]:,} in step {trace.step[at]}, "
        f"stage {trace.stage[at]}; there are {trace.n_data:,} data ranks, {trace.n_stages:,} stages and "
        f"{np.unique(trace.step).size:,} steps"
    )


def pauses_note(trace: OpTrace, n_steps: int) -> list[str]:
    """Where most workers have no garbage-collection row, none is assumed there, and it is said."""
    pauses = trace.optype == GC
    worker = trace.data_rank[pauses] * trace.n_stages + trace.stage[pauses]
    held = np.unique(np.stack((trace.step[pauses], worker)), axis=1).shape[1]
    places = n_steps * trace.n_data * trace.n_stages
    if not held or 2 * held >= places:
        return []
    return [f"gc rows in {held} of {places} places (rank, step): elsewhere no pause is assumed"]


def dropped_note(steps: IntArray) -> list[str]:
    if not steps.size:
        return []
    named = ", ".join(map(str, steps[:8]))
    return [f"{steps.size} step(s) lack more than half of their rows and are dropped: {named}"]
