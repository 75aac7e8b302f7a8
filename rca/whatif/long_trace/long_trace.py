"""Replay of a trace that does not fit in memory as rows.

The file is read in blocks of whole steps. Their rows pass the same checks and repairs as those of a short
trace. Only start and duration of each operation are kept: 8 bytes instead of 240.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np

from rca.arrays import IntArray
from rca.whatif.graph.replay import engine_for
from rca.whatif.graph.schedules import Schedule, by_types
from rca.whatif.graph.trace_replay import NO_RANK, TraceReplay, usual_where_unknown
from rca.whatif.long_trace.blocks import BlockedTrace
from rca.whatif.long_trace.contents import Progress, read_contents
from rca.whatif.trace.row_repair import contradictions
from rca.whatif.trace.step_shapes import StepShape, shapes_of_steps
from rca.whatif.trace.trace import TraceMeta
from rca.whatif.trace.trace_checks import shared_note, shared_ranks, world_size_notes

STREAMED_FROM = 10_000_000
"""Rows. A longer trace is read in blocks, because it would need more than 2.4 GB of memory."""

COMPILED_FROM = 1e8
"""Operations times stages. The kernels then win back the second that loading them takes."""


def stream_replay(
    path: str | PathLike[str],
    meta: TraceMeta | Mapping[str, Any] | str | PathLike[str] | None = None,
    *,
    schedule: Schedule = by_types,
    correct_clocks: bool = True,
    threads: int = 2,
    progress: Progress = lambda share: None,
) -> TraceReplay:
    """Prepare the replay of a trace that does not fit in memory as rows.

    The result equals `TraceReplay.from_trace` of the whole trace. Traced times are not kept, so there is no
    timeline.

    Parameters
    ----------
    path : path
        Parquet. It is fastest if the rows of each step follow one another.
    threads : int
        Threads of the replays.
    progress : callable
        Called with the finished share of the reading.

    Raises
    ------
    InvalidTrace
        If the trace cannot be replayed. The message names the row, column or step.
    """
    meta = TraceMeta.of(meta)
    found = read_contents(BlockedTrace(path), meta, progress)
    data_ranks, n_stages = found.facts.data_ranks, found.facts.n_stages
    shapes, notes = shapes_of_steps(found.steps, found.sizes, data_ranks.size, found.shape)
    found.pieces.clear()
    said = [*found.notes, *contradictions(meta, data_ranks, n_stages, found.n_chunks)]
    said += world_size_notes(meta, *found.ranks.shape)
    ranks = _own_ranks(found.ranks, said)
    n_values = sum(shape.start.size for shape in shapes)
    replay = TraceReplay.from_shapes(
        shapes,
        meta,
        ranks=usual_where_unknown(ranks, meta.tp_size or 1),
        data_ranks=data_ranks,
        n_steps=found.steps.size,
        notes=(said, notes),
        schedule=schedule,
        engine=engine_for(n_values * n_stages, COMPILED_FROM, "auto"),
        correct_clocks=correct_clocks,
    )
    parts = tuple(replace(part, shape=_without_times(part.shape)) for part in replay.parts)
    return replace(replay, parts=parts, threads=threads)


def _own_ranks(ranks: IntArray, notes: list[str]) -> IntArray:
    """Rank numbers of the workers; none if one number names several workers."""
    numbers = np.where(ranks == NO_RANK, -1, ranks).ravel()
    shared = shared_ranks(numbers, np.arange(ranks.size))
    if not shared.size:
        return ranks
    notes.append(shared_note(numbers[shared]))
    return np.full(ranks.shape, NO_RANK)


def _without_times(shape: StepShape) -> StepShape:
    """The shape with its traced times replaced by NaN, which takes no memory."""
    nothing = np.broadcast_to(np.float32(np.nan), (shape.n_ops, shape.n_data, shape.steps.size))
    return replace(shape, start=nothing, duration=nothing)
