"""The execution of one step from which the dependency graph is read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray, Seconds32
from rca.robust import nan_median
from rca.whatif.optypes import BACKWARD_RECV, COMPUTE_OF, FORWARD_RECV
from rca.whatif.trace.step_shapes import StepShape

MAX_CELLS_COMPARED = 512
"""Cells that are compared to find the place of an operation which the reference cell lacks."""


@dataclass(frozen=True)
class Reference:
    """Operations of one model-parallel group, with their times in one step.

    Attributes
    ----------
    optype, stage, sequence, chunk, global_chunk : ndarray of shape (n_ops,), int
    start, end : ndarray of shape (n_ops,), float32, seconds
    n_stages, n_chunks : int
        Pipeline stages, and model chunks per stage.
    use_dp : bool
        Whether gradients are exchanged between data (or context) ranks.
    """

    optype: IntArray
    stage: IntArray
    sequence: IntArray
    chunk: IntArray
    global_chunk: IntArray
    start: Seconds32
    end: Seconds32
    n_stages: int
    n_chunks: int
    use_dp: bool

    def ordered(self, ops: IntArray) -> IntArray:
        """`ops` by start, then sequence number, then type name."""
        return ops[np.lexsort((self.optype[ops], self.sequence[ops], self.start[ops]))]


def reference_of(shape: StepShape, *, n_chunks: int, use_dp: bool) -> Reference:
    """Reference of a shape: per stage, the first data rank of the first step that has all rows."""
    start = np.empty(shape.n_ops, np.float32)
    end = np.empty(shape.n_ops, np.float32)
    for stage in range(shape.n_stages):
        ops = np.flatnonzero(shape.stage == stage)
        starts, durations = shape.start[ops], shape.duration[ops]
        whole = np.isfinite(starts).all(axis=0).T
        if whole.any():
            step, data_rank = np.unravel_index(int(np.argmax(whole)), whole.shape)
            start[ops] = starts[:, data_rank, step]
            end[ops] = start[ops] + durations[:, data_rank, step]
        else:
            start[ops], end[ops] = _typical(shape, ops)
    chunk, global_chunk = _completed_chunks(shape)
    return Reference(
        optype=shape.optype,
        stage=shape.stage,
        sequence=shape.sequence,
        chunk=chunk,
        global_chunk=global_chunk,
        start=start,
        end=end,
        n_stages=shape.n_stages,
        n_chunks=n_chunks,
        use_dp=use_dp,
    )


def _typical(shape: StepShape, ops: IntArray) -> tuple[Seconds32, Seconds32]:
    """Times in the most complete cell. Missing operations get the place that most other cells give them."""
    starts = shape.start[ops].reshape(ops.size, -1).astype(np.float64)
    durations = shape.duration[ops].reshape(ops.size, -1)
    cell = int(np.argmax(np.isfinite(starts).sum(axis=0)))
    start, duration = starts[:, cell].copy(), durations[:, cell].copy()
    guessed = np.isnan(start)
    duration = np.where(guessed, nan_median(durations.T), duration)
    order = [int(op) for op in np.argsort(start, kind="stable")[: int((~guessed).sum())]]
    if not order:
        return np.arange(ops.size, dtype=np.float32), np.arange(ops.size, dtype=np.float32)
    cells = starts[:, :: max(1, starts.shape[1] // MAX_CELLS_COMPARED)]
    unseen = []
    for op in map(int, np.flatnonzero(guessed)):
        place = _place_in_order(cells, order, op)
        if place is None:
            unseen.append(op)
            continue
        before = start[order[place - 1]] if place else start[order[0]] - 2e-3
        after = start[order[place]] if place < len(order) else start[order[-1]] + 2e-3
        start[op] = (before + after) / 2
        order.insert(place, op)
    for op in unseen:
        same = [held for held in order if shape.optype[ops[held]] == shape.optype[ops[op]]]
        sequence = shape.sequence[ops]
        start[op] = _between(sequence[op], sequence[same], start[same]) if same else start[order[-1]] + 1e-3
    _move_to_compute(shape, ops, start, start + np.nan_to_num(duration), np.isin(np.arange(ops.size), unseen))
    return start.astype(np.float32), (start + np.nan_to_num(duration)).astype(np.float32)


def _place_in_order(cells: FloatArray, order: list[int], op: int) -> int | None:
    """Number of operations in `order` that start before `op` in most cells; None if no cell has both."""
    with np.errstate(invalid="ignore"):
        earlier = (cells[order] < cells[op]).sum(axis=1)
    both = (np.isfinite(cells[order]) & np.isfinite(cells[op])).sum(axis=1)
    if not both.any():
        return None
    return int((earlier[both > 0] > 0.5 * both[both > 0]).sum())


def _move_to_compute(
    shape: StepShape,
    ops: IntArray,
    start: FloatArray,
    end: FloatArray,
    guessed: BoolArray,
) -> None:
    """Move guessed receives before their compute, and guessed sends after it, in place."""
    place = {(int(shape.optype[op]), int(shape.sequence[op])): position for position, op in enumerate(ops)}
    for position in np.flatnonzero(guessed):
        optype, sequence = int(shape.optype[ops[position]]), int(shape.sequence[ops[position]])
        compute = place.get((COMPUTE_OF.get(optype, -1), sequence))
        if compute is None:
            continue
        if optype in (FORWARD_RECV, BACKWARD_RECV):
            start[position] = min(start[position], start[compute])
        else:
            start[position] = max(start[position], end[compute])


def _between(wanted: int, known: IntArray, start: FloatArray) -> float:
    """Interpolated start; beyond the ends, extrapolated by the median distance."""
    order = np.argsort(known)
    known, start = known[order], start[order]
    pace = float(np.median(np.diff(start) / np.diff(known))) if known.size > 1 else 1e-3
    beyond = max(int(wanted) - int(known[-1]), 0) - max(int(known[0]) - int(wanted), 0)
    return float(np.interp(wanted, known, start)) + beyond * max(pace, 1e-4)


def _completed_chunks(shape: StepShape) -> tuple[IntArray, IntArray]:
    """Chunks, with those of unobserved operations taken from the nearest operation in sequence."""
    chunk, whole = shape.chunk.copy(), shape.global_chunk.copy()
    never = np.flatnonzero(np.isnan(shape.duration).all(axis=(1, 2)))
    for op in never:
        same = (shape.optype == shape.optype[op]) & (shape.stage == shape.stage[op])
        same[never] = False
        peers = np.flatnonzero(same)
        if peers.size:
            nearest = peers[np.argmin(np.abs(shape.sequence[peers] - shape.sequence[op]))]
            chunk[op], whole[op] = chunk[nearest], whole[nearest]
    return chunk, whole
