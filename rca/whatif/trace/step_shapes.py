"""Arrange a trace in dense arrays, one set per shape of step.

Steps with the same operations on every stage have the same shape. They share one dependency graph and one
set of arrays [operation, data rank, step]. A missing row is NaN; it does not make another shape.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rca.arrays import BoolArray, IntArray, Seconds32
from rca.errors import InvalidTrace
from rca.whatif.optypes import (
    BACKWARD,
    BACKWARD_RECV,
    BACKWARD_SEND,
    CLIP,
    EMBEDDING,
    FORWARD,
    FORWARD_RECV,
    FORWARD_SEND,
    GC,
    LAYERNORM,
    N_TYPES,
    OPTIMIZER,
    ROUND,
)
from rca.whatif.trace.step_sizes import StepSizes, dropped_note, filled_enough, largest_number, pauses_note
from rca.whatif.trace.trace import OpTrace

MAX_HOLE = 0.5
"""Share of the rows of a step. A step that lacks more is dropped."""


@dataclass(frozen=True)
class StepShape:
    """All steps of one shape.

    Attributes
    ----------
    steps : ndarray of shape (n_steps,), int
    optype, stage, sequence, chunk, global_chunk, microbatch : ndarray of shape (n_ops,), int
        The operations of one model-parallel group, ordered by (stage, type, sequence).
    start, duration : ndarray of shape (n_ops, n_data, n_steps), float32, seconds
        NaN if the trace has no such row.
    """

    steps: IntArray
    optype: IntArray
    stage: IntArray
    sequence: IntArray
    chunk: IntArray
    global_chunk: IntArray
    microbatch: IntArray
    start: Seconds32
    duration: Seconds32

    @property
    def n_ops(self) -> int:
        return int(self.optype.size)

    @property
    def n_stages(self) -> int:
        return int(self.stage.max()) + 1

    @property
    def n_data(self) -> int:
        return int(self.start.shape[1])


def shapes_of(trace: OpTrace) -> tuple[list[StepShape], list[str]]:
    """Shapes of the steps of a trace, most steps first.

    Returns
    -------
    shapes : list of StepShape
    notes : list of str
        Missing rows and dropped steps, with counts.
    """
    steps, held = StepSizes.of(trace, trace.n_stages)
    step = np.searchsorted(steps, trace.step)
    notes: list[str] = pauses_note(held, trace.n_data * trace.n_stages)
    groups = filled_enough(held, steps, trace.n_data, group_steps(held.sizes), notes)
    shapes = []
    for size, members in groups:
        shape = _without_empty_steps(_arrange(trace, steps, step, size, members), notes)
        if shape is not None:
            shapes.append(shape)
    if not shapes:
        raise InvalidTrace(
            "every step lacks more than half of its rows", hint=largest_number(held, steps, trace.n_data)
        )
    return shapes, notes


def group_steps(sizes: IntArray) -> list[tuple[IntArray, IntArray]]:
    """Pairs (sizes, step positions). Steps that only lack rows of the commonest shape are added to it."""
    kinds, first, kind, counts = np.unique(
        sizes, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    kind = kind.ravel()
    order = sorted(range(len(kinds)), key=lambda k: (-int(counts[k]), int(first[k])))
    commonest = _completed(kinds[order[0]])
    groups: dict[bytes, tuple[IntArray, list[IntArray]]] = {}
    for k in order:
        size = commonest if _lacks_rows_of(kinds[k], commonest) else _completed(kinds[k])
        groups.setdefault(size.tobytes(), (size, []))[1].append(np.flatnonzero(kind == k))
    return [(size, np.sort(np.concatenate(members))) for size, members in groups.values()]


def _lacks_rows_of(size: IntArray, commonest: IntArray) -> bool:
    """Whether `size` is the commonest shape with missing rows, and not another kind of step."""
    if (size > commonest).any():
        return False
    compute = size[:, [FORWARD, BACKWARD]]
    balanced = int(compute.min()) == int(compute.max())
    return not balanced or not compute.any() or int(compute.max()) == int(commonest[:, FORWARD].max())


def _completed(size: IntArray) -> IntArray:
    """Sizes of a complete step of this kind: all stages have equal computes and equal tails."""
    size = size.copy()
    if size[:, ROUND].any():
        size[:, ROUND] = size[:, ROUND].max()
        return size
    n_stages = size.shape[0]
    n_compute = int(size[:, [FORWARD, BACKWARD]].max())
    if n_compute == 0:
        raise InvalidTrace("a step has no compute operation")
    size[:, FORWARD] = size[:, BACKWARD] = n_compute
    for optype in (LAYERNORM, CLIP, OPTIMIZER):
        size[:, optype] = size[:, optype].max()
    ends = [0, n_stages - 1]
    size[ends, EMBEDDING] = size[ends, EMBEDDING].max()
    if n_stages > 1:
        _complete_transfers(size, n_compute)
    return size


_PEER = {
    FORWARD_SEND: (FORWARD_RECV, 1),
    FORWARD_RECV: (FORWARD_SEND, -1),
    BACKWARD_SEND: (BACKWARD_RECV, -1),
    BACKWARD_RECV: (BACKWARD_SEND, 1),
}


def _complete_transfers(size: IntArray, n_compute: int) -> None:
    """Complete the transfers between neighbouring stages to one per compute, in place.

    One less is kept if both sides have one less. Transfers between the last and the first stage are not
    completed, because the ends of the model have no peer.
    """
    n_stages = size.shape[0]
    given = size.copy()
    for optype, (peer, towards) in _PEER.items():
        for stage in range(n_stages):
            count = int(given[stage, optype])
            if count >= n_compute or not 0 <= stage + towards < n_stages:
                continue
            opposite = int(given[stage + towards, peer])
            fewer = count in (0, n_compute - 1) and stage in (0, n_stages - 1)
            if not (fewer and opposite <= count):
                size[stage, optype] = n_compute


def _arrange(trace: OpTrace, steps: IntArray, step: IntArray, size: IntArray, members: IntArray) -> StepShape:
    flat = size.ravel()
    base = np.append(0, np.cumsum(flat))
    n_ops = int(base[-1])
    cell = np.repeat(np.arange(flat.size), flat)
    column = np.full(steps.size, -1)
    column[members] = np.arange(members.size)
    rows = np.flatnonzero(column[step] >= 0) if members.size < steps.size else slice(None)
    op = base[trace.stage[rows] * N_TYPES + trace.optype[rows]] + trace.sequence[rows]
    place = (op * trace.n_data + trace.data_rank[rows]) * members.size + column[step[rows]]
    dense = []
    for values in (trace.start, trace.duration):
        array = np.full(n_ops * trace.n_data * members.size, np.nan, np.float32)
        array[place] = values[rows]
        dense.append(array.reshape(n_ops, trace.n_data, members.size))
    chunks = []
    for numbers in (trace.chunk, trace.global_chunk, trace.microbatch):
        held = np.full(n_ops, -1)
        held[op] = numbers[rows]
        chunks.append(held)
    shape = StepShape(
        steps=steps[members],
        optype=cell % N_TYPES,
        stage=cell // N_TYPES,
        sequence=np.arange(n_ops) - base[cell],
        chunk=chunks[0],
        global_chunk=chunks[1],
        microbatch=chunks[2],
        start=dense[0],
        duration=dense[1],
    )
    _fill_occasional_pauses(shape)
    return shape


def _fill_occasional_pauses(shape: StepShape) -> None:
    """Set absent pauses to 0 if garbage collection runs on few workers and steps, in place."""
    pauses = np.flatnonzero(shape.optype == GC)
    if pauses.size and np.isnan(shape.duration[pauses]).mean() > 0.5:
        shape.duration[pauses] = np.nan_to_num(shape.duration[pauses])


def _without_empty_steps(shape: StepShape, notes: list[str]) -> StepShape | None:
    holes = np.isnan(shape.duration)
    if not holes.any():
        return shape
    kept = kept_steps(shape.steps, holes.sum(axis=(0, 1)), shape.n_ops * shape.n_data, notes)
    if not kept.any():
        return None
    return replace(
        shape,
        steps=shape.steps[kept],
        start=np.ascontiguousarray(shape.start[:, :, kept]),
        duration=np.ascontiguousarray(shape.duration[:, :, kept]),
    )


def kept_steps(steps: IntArray, holes: IntArray, n_rows: int, notes: list[str]) -> BoolArray:
    """Steps with enough rows for a replay; adds notes on missing rows and dropped steps.

    Parameters
    ----------
    steps, holes : ndarray of shape (n_steps,), int
        Step numbers, and the number of their missing rows.
    n_rows : int
        Rows of a complete step.
    """
    kept: BoolArray = holes <= MAX_HOLE * n_rows
    notes += dropped_note(steps[~kept])
    if holes[kept].any():
        affected = int((holes[kept] > 0).sum())
        notes.append(f"{int(holes[kept].sum())} missing rows in {affected} step(s) replaced by typical times")
    return kept
