"""Operations per step, and checks on them: nearly empty steps are dropped, sparse traces are refused.

Both checks run before any dense array is made, so that the memory follows the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rca.arrays import IntArray
from rca.errors import InvalidTrace
from rca.whatif.optypes import GC, N_TYPES, NAMES
from rca.whatif.trace.trace import OpTrace, distinct

MAX_CELLS_PER_ROW = 4
SPARE_CELLS = 1_000_000
"""Cells of the dense arrays beyond `MAX_CELLS_PER_ROW` per row. A sparser trace is damaged."""


@dataclass(frozen=True)
class StepSizes:
    """Operations and rows of some steps.

    Attributes
    ----------
    sizes : ndarray of shape (n_steps, n_stages, N_TYPES), int
        Operations: the largest sequence number over the data ranks, plus 1.
    rows, pauses : ndarray of shape (n_steps,), int
        All rows, and rows of garbage collections.
    paused : ndarray of shape (n_steps,), int
        Workers with a garbage collection.
    """

    sizes: IntArray
    rows: IntArray
    pauses: IntArray
    paused: IntArray

    @classmethod
    def of(cls, trace: OpTrace, n_stages: int) -> tuple[IntArray, StepSizes]:
        """Ascending step numbers of a trace, and their sizes.

        Raises
        ------
        InvalidTrace
            If there are far more (step, stage) pairs than rows.
        """
        steps, step = distinct(trace.step)
        _refuse_sparse(
            trace.n_ops, steps.size * n_stages, "step, stage", lambda: _largest_of_rows(trace, steps.size)
        )
        sizes = np.zeros(steps.size * n_stages * N_TYPES, np.int64)
        cell = (step * n_stages + trace.stage) * N_TYPES + trace.optype
        np.maximum.at(sizes, cell, trace.sequence + 1)
        pause = trace.optype == GC
        worker = (step[pause] * trace.n_data + trace.data_rank[pause]) * n_stages + trace.stage[pause]
        paused = np.unique(worker) // (trace.n_data * n_stages)
        return steps, cls(
            sizes.reshape(steps.size, n_stages, N_TYPES),
            np.bincount(step, minlength=steps.size),
            np.bincount(step[pause], minlength=steps.size),
            np.bincount(paused, minlength=steps.size),
        )


def filled_enough(
    held: StepSizes,
    steps: IntArray,
    n_data: int,
    groups: list[tuple[IntArray, IntArray]],
    notes: list[str],
) -> list[tuple[IntArray, IntArray]]:
    """Groups without nearly empty steps; adds notes on dropped steps.

    Pauses (garbage collections) are counted separately, because rare pauses leave most of their cells empty.

    Raises
    ------
    InvalidTrace
        If the dense arrays would have far more cells than rows.
    """
    kept: list[tuple[IntArray, IntArray]] = []
    cells = 0
    for size, members in groups:
        n_pauses = int(size[:, GC].sum())
        expected = (int(size.sum()) - n_pauses) * n_data
        full = MAX_CELLS_PER_ROW * (held.rows - held.pauses)[members] >= expected
        if n_pauses > MAX_CELLS_PER_ROW * max(1, int(held.pauses[members].sum())):
            full[:] = False
        notes += dropped_note(steps[members[~full]])
        if full.any():
            kept.append((size, members[full]))
            cells += int(size.sum()) * n_data * int(full.sum())
    _refuse_sparse(
        int(held.rows.sum()),
        cells,
        "operation, data rank, step",
        lambda: largest_number(held, steps, n_data),
    )
    return kept


def _refuse_sparse(n_rows: int, cells: int, of: str, hint: Callable[[], str]) -> None:
    if cells > MAX_CELLS_PER_ROW * n_rows + SPARE_CELLS:
        raise InvalidTrace(f"{n_rows:,} rows are spread over {cells:,} places ({of})", hint=hint())


def largest_number(held: StepSizes, steps: IntArray, n_data: int) -> str:
    """Hint for a sparse trace: the largest operation number, which is usually the reason."""
    at, stage, optype = np.unravel_index(int(np.argmax(held.sizes)), held.sizes.shape)
    number = int(held.sizes[at, stage, optype]) - 1
    return _largest(
        int(optype), number, int(steps[at]), int(stage), (n_data, held.sizes.shape[1], steps.size)
    )


def _largest_of_rows(trace: OpTrace, n_steps: int) -> str:
    at = int(np.argmax(trace.sequence))
    sizes = (trace.n_data, trace.n_stages, n_steps)
    return _largest(
        int(trace.optype[at]), int(trace.sequence[at]), int(trace.step[at]), int(trace.stage[at]), sizes
    )


def _largest(optype: int, number: int, step: int, stage: int, sizes: tuple[int, int, int]) -> str:
    return (
        f"seq_id of {NAMES[optype]} runs to {number:,} in step {step}, stage {stage}; there are "
        f"{sizes[0]:,} data ranks, {sizes[1]:,} stages and {sizes[2]:,} steps"
    )


def pauses_note(held: StepSizes, n_workers: int) -> list[str]:
    """Note on rare garbage collection: workers without a row have no pause."""
    paused = int(held.paused.sum())
    places = held.paused.size * n_workers
    if not paused or 2 * paused >= places:
        return []
    return [f"gc rows in {paused} of {places} places (rank, step): elsewhere no pause is assumed"]


def dropped_note(steps: IntArray) -> list[str]:
    if not steps.size:
        return []
    named = ", ".join(map(str, steps[:8]))
    return [f"{steps.size} step(s) lack more than half of their rows and are dropped: {named}"]
