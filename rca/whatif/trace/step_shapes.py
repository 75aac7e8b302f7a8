"""Arrange a trace in dense arrays, one set per shape of step.

Steps with the same operations on every stage have the same shape. They share one dependency graph and one
set of arrays [operation, data rank, step]. A missing row is NaN; it does not make another shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rca.arrays import IntArray, Seconds32
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
    return shapes_of_steps(
        steps, held, trace.n_data, lambda size, members: arranged(trace, steps, step, size, members)
    )


def shapes_of_steps(
    steps: IntArray, held: StepSizes, n_data: int, arrange: Callable[[IntArray, IntArray], StepShape]
) -> tuple[list[StepShape], list[str]]:
    """As `shapes_of`, from the sizes of the steps.

    Parameters
    ----------
    arrange : callable
        Gives the steps at some positions, with operations of shape (n_stages, N_TYPES).
    """
    notes: list[str] = pauses_note(held, n_data * held.sizes.shape[1])
    shapes = []
    for size, members in filled_enough(held, steps, n_data, group_steps(held.sizes), notes):
        shape = arrange(size, members)
        _fill_occasional_pauses(shape)
        kept = _without_empty_steps(shape, notes)
        if kept is not None:
            shapes.append(kept)
    if not shapes:
        raise InvalidTrace(
            "every step lacks more than half of its rows", hint=largest_number(held, steps, n_data)
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


def empty_shape(steps: IntArray, size: IntArray, n_data: int) -> StepShape:
    """A shape with operations of shape (n_stages, N_TYPES), and without rows."""
    flat = size.ravel()
    cell = np.repeat(np.arange(flat.size), flat)
    return StepShape(
        steps,
        cell % N_TYPES,
        cell // N_TYPES,
        np.arange(cell.size) - (np.cumsum(flat) - flat)[cell],
        *(np.full(cell.size, -1) for _ in range(3)),
        *(np.full((cell.size, n_data, steps.size), np.nan, np.float32) for _ in range(2)),
    )


def arranged(trace: OpTrace, steps: IntArray, step: IntArray, size: IntArray, members: IntArray) -> StepShape:
    """Rows of some steps as a shape.

    Parameters
    ----------
    steps, step : ndarray of int
        The steps of the trace, and the position of each row among them.
    size : ndarray of shape (n_stages, N_TYPES), int
        Operations of the shape.
    members : ndarray of int
        Positions of the steps.
    """
    shape = empty_shape(steps[members], size, trace.n_data)
    base = np.cumsum(size) - size.ravel()
    column = np.full(steps.size, -1)
    column[members] = np.arange(members.size)
    rows = np.flatnonzero(column[step] >= 0) if members.size < steps.size else slice(None)
    op = base[trace.stage[rows] * N_TYPES + trace.optype[rows]] + trace.sequence[rows]
    place = (op * trace.n_data + trace.data_rank[rows]) * members.size + column[step[rows]]
    shape.start.reshape(-1)[place] = trace.start[rows]
    shape.duration.reshape(-1)[place] = trace.duration[rows]
    for name in ("chunk", "global_chunk", "microbatch"):
        getattr(shape, name)[op] = getattr(trace, name)[rows]
    return shape


def _fill_occasional_pauses(shape: StepShape) -> None:
    """Set absent pauses to 0 if garbage collection runs on few workers and steps, in place."""
    pauses = np.flatnonzero(shape.optype == GC)
    if pauses.size and np.isnan(shape.duration[pauses]).mean() > 0.5:
        shape.duration[pauses] = np.nan_to_num(shape.duration[pauses])


def _without_empty_steps(shape: StepShape, notes: list[str]) -> StepShape | None:
    """The steps with enough rows for a replay; adds notes on missing rows and dropped steps."""
    holes = np.isnan(shape.duration).sum(axis=(0, 1))
    kept = holes <= MAX_HOLE * shape.n_ops * shape.n_data
    notes += dropped_note(shape.steps[~kept])
    if holes[kept].any():
        affected = int((holes[kept] > 0).sum())
        notes.append(f"{int(holes[kept].sum())} missing rows in {affected} step(s) replaced by typical times")
    if kept.all():
        return shape
    if not kept.any():
        return None
    return replace(
        shape,
        steps=shape.steps[kept],
        start=np.ascontiguousarray(shape.start[:, :, kept]),
        duration=np.ascontiguousarray(shape.duration[:, :, kept]),
    )
