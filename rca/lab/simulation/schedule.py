"""One step of a job as operations: the order of each stage's microbatches, and the dependency graph.

The edges follow from the dependency rules of the what-if replay (`rca.whatif.graph.schedules.megatron`). A
simulated step and its analysis therefore use the same graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np
import numpy.typing as npt

from rca.arrays import IntArray
from rca.whatif.graph.graph import DependencyGraph, Program, compile_graph
from rca.whatif.graph.reference_step import Reference
from rca.whatif.graph.schedules import megatron
from rca.whatif.optypes import (
    ALL_GATHER,
    BACKWARD,
    BACKWARD_RECV,
    BACKWARD_SEND,
    CLIP,
    COMPUTE_OF,
    FORWARD,
    FORWARD_RECV,
    FORWARD_SEND,
    OPTIMIZER,
    REDUCE_SCATTER,
)
from rca.window.job import Parallelism

# Direction in which a transfer's peer lies.
_TOWARDS = {FORWARD_SEND: 1, BACKWARD_RECV: 1, FORWARD_RECV: -1, BACKWARD_SEND: -1}


@dataclass(frozen=True, order=True)
class SimulatedStepShape:
    """Sizes that determine a step's graph.

    Attributes
    ----------
    pipeline, chunks, microbatches : int
        Stages, model chunks per stage, microbatches per step (1 without a pipeline).
    exchanged, gathered : bool
        Whether gradients are exchanged over data ranks, and parameters gathered before the forward.
    """

    pipeline: int = 1
    chunks: int = 1
    microbatches: int = 1
    exchanged: bool = True
    gathered: bool = False

    @classmethod
    def of(cls, sizes: Parallelism, microbatches: int, *, gathered: bool) -> SimulatedStepShape:
        """Shape for these sizes; without a pipeline all microbatches of a step count as one."""
        exchanged = sizes.data * sizes.context > 1
        if sizes.pipeline == 1:
            return cls(exchanged=exchanged, gathered=gathered and exchanged)
        return cls(sizes.pipeline, sizes.virtual_pipeline, microbatches, exchanged, gathered and exchanged)


@dataclass(frozen=True, eq=False)
class StepPlan:
    """A step's operations, ready for replay.

    Attributes
    ----------
    program : Program
        The graph compiled.
    optype, stage, sequence, chunk, microbatch : ndarray of shape (n_ops,), int
        -1 where an operation has no chunk or microbatch.
    link : ndarray of shape (n_ops,), int
        ``p`` for transfers between stages ``p`` and ``p + 1`` (modulo the stages); -1 for other operations.
    """

    shape: SimulatedStepShape
    graph: DependencyGraph
    program: Program
    optype: IntArray
    stage: IntArray
    sequence: IntArray
    chunk: IntArray
    microbatch: IntArray
    link: IntArray


@lru_cache(maxsize=64)
def plan_of(shape: SimulatedStepShape) -> StepPlan:
    """Lay out the operations of one step, connect them, and compile the graph."""
    rows = np.array(
        list(chain.from_iterable(_stage_rows(shape, stage) for stage in range(shape.pipeline))), dtype=object
    )
    stage, optype, chunk, microbatch = (rows[:, column].astype(np.int64) for column in range(4))
    start, end = rows[:, 4].astype(np.float32), rows[:, 5].astype(np.float32)
    sequence = _numbered(stage, optype, start)
    global_chunk = np.where(chunk >= 0, chunk * shape.pipeline + stage, -1)
    reference = Reference(
        optype,
        stage,
        sequence,
        chunk,
        global_chunk,
        start,
        end,
        n_stages=shape.pipeline,
        n_chunks=shape.chunks,
        use_dp=shape.exchanged,
    )
    graph = megatron(reference)
    link = _links(shape, optype, stage, global_chunk)
    return StepPlan(shape, graph, compile_graph(graph), optype, stage, sequence, chunk, microbatch, link)


def compute_order(shape: SimulatedStepShape, stage: int) -> list[tuple[int, int, int]]:
    """Order of a stage's computes: (type, chunk, microbatch).

    Notes
    -----
    One forward, one backward (1F1B), after enough forwards to keep the later stages busy. With several chunks
    per stage, microbatches pass a chunk in groups of as many as there are stages.
    """
    total = shape.microbatches * shape.chunks
    ahead = shape.pipeline - stage - 1
    warm_up = ahead if shape.chunks == 1 else 2 * ahead + (shape.chunks - 1) * shape.pipeline
    warm_up = min(warm_up, total)
    forwards = [(FORWARD, *_place(shape, index, FORWARD)) for index in range(total)]
    backwards = [(BACKWARD, *_place(shape, index, BACKWARD)) for index in range(total)]
    steady = [op for pair in zip(forwards[warm_up:], backwards, strict=False) for op in pair]
    return forwards[:warm_up] + steady + backwards[total - warm_up :]


def _place(shape: SimulatedStepShape, index: int, optype: int) -> tuple[int, int]:
    """Chunk and microbatch of a stage's `index`-th forward or backward."""
    if shape.chunks == 1:
        return 0, index
    group, within = divmod(index, shape.pipeline * shape.chunks)
    chunk, offset = divmod(within, shape.pipeline)
    if optype == BACKWARD:
        chunk = shape.chunks - 1 - chunk
    return chunk, group * shape.pipeline + offset


def _stage_rows(shape: SimulatedStepShape, stage: int) -> Iterator[tuple[int, int, int, int, float, float]]:
    """One stage's operations with ordinal times: only their order within the stage matters."""
    if shape.gathered:
        yield stage, ALL_GATHER, 0, -1, -2.0, -1.5
    order = compute_order(shape, stage)
    for at, (optype, chunk, microbatch) in enumerate(order):
        yield stage, optype, chunk, microbatch, at, at + 0.5
        if shape.pipeline > 1:
            for transfer, served in COMPUTE_OF.items():
                if served == optype and _is_there(shape, transfer, stage):
                    begin = at - 0.25 if transfer in (FORWARD_RECV, BACKWARD_RECV) else at + 0.5
                    yield stage, transfer, chunk, microbatch, begin, begin + 0.25
    tail = [REDUCE_SCATTER] * shape.exchanged + [CLIP] * (shape.pipeline > 1) + [OPTIMIZER]
    for place, optype in enumerate(tail):
        begin = len(order) + place
        yield stage, optype, 0 if optype == REDUCE_SCATTER else -1, -1, begin, begin + 0.5


def _is_there(shape: SimulatedStepShape, transfer: int, stage: int) -> bool:
    """Whether the stage has this transfer; interleaved schedules keep no-ops at the ends of the model."""
    return shape.chunks > 1 or 0 <= stage + _TOWARDS[transfer] < shape.pipeline


def _links(shape: SimulatedStepShape, optype: IntArray, stage: IntArray, global_chunk: IntArray) -> IntArray:
    link = np.full(optype.size, -1)
    for transfer, towards in _TOWARDS.items():
        peer = global_chunk + towards
        moves = (optype == transfer) & (peer >= 0) & (peer < shape.pipeline * shape.chunks)
        lower = np.where(towards > 0, stage, (stage - 1) % shape.pipeline)
        link[moves] = lower[moves]
    return link


def _numbered(stage: IntArray, optype: IntArray, start: npt.NDArray[np.float32]) -> IntArray:
    """Count the operations of one stage and type by start."""
    order = np.lexsort((start, optype, stage))
    key = stage[order] * 64 + optype[order]
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    position = np.arange(key.size) - np.repeat(first, np.diff(np.append(first, key.size)))
    sequence = np.empty(key.size, np.int64)
    sequence[order] = position
    return sequence
