"""Replay of a trace that does not fit in memory as rows.

The file is read twice, in blocks of whole steps:

1. `rca.whatif.long_trace.contents` finds out which operations the steps consist of.
2. `rca.whatif.long_trace.arrays` puts the rows into arrays. Of each operation 4 bytes are kept: in memory
   or, beyond `MAX_IN_MEMORY`, in a temporary file.

Between the two, the graph and the clock offsets of each shape are read from some of its steps
(`rca.whatif.graph.clock_correction.sampled_steps`). The rows pass the same checks and repairs as those
of a short trace.

The blocks stay in one process. For 43 million rows on two cores, the second pass takes 2.0 s here and 3.2 s
on two Dask workers. The client alone needs 1.0 s to receive the arrays, and the start takes 4 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

import numpy as np

from rca.arrays import BoolArray, FloatArray, IntArray, Seconds32
from rca.whatif.graph.clock_correction import one_clock, without_offsets
from rca.whatif.graph.derived_times import (
    ArrayFile,
    DerivedTimes,
    StoredArray,
    fill_holes,
    ideal_of_operations,
    observed_work,
    pooled_ideal_durations,
)
from rca.whatif.graph.schedules import Schedule, by_types
from rca.whatif.graph.trace_replay import (
    NO_RANK,
    Fitted,
    ShapeReplay,
    TraceReplay,
    fitted,
    model_chunks,
    refuse_zero_ideal,
    usual_where_unknown,
)
from rca.whatif.long_trace.arrays import ArrayBuilder, Layout, layouts_of
from rca.whatif.long_trace.blocks import BlockedTrace
from rca.whatif.long_trace.contents import Progress, read_contents
from rca.whatif.patterns import MAX_FOR_MICROBATCHES
from rca.whatif.trace.row_repair import contradictions
from rca.whatif.trace.step_shapes import StepShape
from rca.whatif.trace.trace import TraceMeta
from rca.whatif.trace.trace_checks import shared_note, shared_ranks, world_size_notes

STREAMED_FROM = 10_000_000
"""Rows. A longer trace is read in blocks, because it would need more than 2.4 GB of memory."""

MAX_IN_MEMORY = 400_000_000
"""Operations. Up to this number, their times (4 bytes each) are kept in memory."""

COMPILED_FROM = 1e8
"""Operations times stages. The kernels then win back the second that loading them takes."""

CONTENTS_SHARE = 0.6
"""Share of the reading time that the first pass takes."""


def stream_replay(
    path: str | PathLike[str],
    meta: TraceMeta | Mapping[str, Any] | str | PathLike[str] | None = None,
    *,
    schedule: Schedule = by_types,
    correct_clocks: bool = True,
    threads: int = 2,
    progress: Progress | None = None,
) -> TraceReplay:
    """Prepare the replay of a trace that does not fit in memory as rows.

    The result equals `TraceReplay.from_trace` of the whole trace, with three exceptions:

    - Traced times are not kept, so there is no timeline.
    - Graph and clock offsets of a shape with more than 16 M operations come from a sample of its steps.
    - Beyond `MAX_IN_MEMORY` a missing row is filled from its own block of steps.

    Parameters
    ----------
    path : path
        Parquet. It is fastest if steps follow one another and the rows of each step have the same order.
    threads : int
        Threads of the replays.
    progress : callable, optional
        Called with the finished share of the work.

    Raises
    ------
    InvalidTrace
        If the trace cannot be replayed. The message names the row, column or step.
    """
    file = BlockedTrace(path)
    meta = TraceMeta.of(meta)
    bar = _ReadingProgress(progress, file.n_rows)
    found = read_contents(file, meta, bar.contents_read)
    notes: list[str] = []
    layouts = layouts_of(found, notes)
    builder = ArrayBuilder(file, meta, found, layouts)
    kept = fitted(builder.samples(), found.facts.rows.data_ranks, meta, schedule, notes)
    clock = one_clock(kept, notes, correct=correct_clocks)
    # A sample names all steps of its layout, so its first step identifies the layout.
    layouts = [next(one for one in layouts if one.steps[0] == shape.steps[0]) for shape, _, _ in kept]
    builder.keep(layouts)
    store = _OwnTimes(
        [(_without_times(shape), graph, program) for shape, graph, program in kept], layouts, clock
    )
    del kept
    for index, shape in builder.arranged([layout.steps for layout in layouts]):
        store.add(index, shape)
        bar.arranged(shape.steps.size, found.steps.size)
    parts, ideal = store.parts()
    steps = np.sort(np.concatenate([layout.steps for layout in layouts]))
    measured = np.empty(steps.size, np.float32)
    parts = [replace(part, position=np.searchsorted(steps, part.shape.steps)) for part in parts]
    for part in parts:
        measured[part.position] = part.times.measured
    refuse_zero_ideal(parts)
    n_chunks = model_chunks([part.shape for part in parts])
    contradicted = contradictions(meta, found.facts.rows.data_ranks, found.facts.rows.n_stages, n_chunks)
    contradicted += world_size_notes(meta, *found.ranks.shape)
    ranks = _own_ranks(found.ranks, contradicted)
    return TraceReplay(
        parts=tuple(parts),
        steps=steps,
        measured=measured,
        ideal=ideal,
        ranks=usual_where_unknown(ranks, meta.tp_size or 1),
        data_ranks=found.facts.rows.data_ranks,
        clock=clock,
        meta=meta,
        notes=(*found.notes, *contradicted, *notes),
        left_out=found.steps.size - steps.size,
        # Each block alone may be too small for the compiler to pay off; all blocks together are not.
        engine="numba" if store.n_values * found.facts.rows.n_stages >= COMPILED_FROM else "auto",
        threads=threads,
    )


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


@dataclass
class _ReadingProgress:
    """Progress of both passes as one share."""

    progress: Progress | None
    n_rows: int
    rows: float = 0
    steps: int = 0

    def contents_read(self, rows: float) -> None:
        self.rows += rows
        self._show(CONTENTS_SHARE * min(1.0, self.rows / self.n_rows))

    def arranged(self, steps: int, of: int) -> None:
        self.steps += steps
        self._show(CONTENTS_SHARE + (1 - CONTENTS_SHARE) * self.steps / of)

    def _show(self, share: float) -> None:
        if self.progress is not None:
            self.progress(share)


@dataclass
class _Piece:
    """Own times of some steps of one shape."""

    steps: IntArray
    work: Seconds32 | StoredArray
    holes: BoolArray | None
    measured: Seconds32


@dataclass
class _OwnTimes:
    """Own times of all operations, in pieces of whole steps."""

    kept: list[Fitted]
    layouts: list[Layout]
    clock: FloatArray
    pieces: list[list[_Piece]] = field(init=False)
    file: ArrayFile | None = field(init=False)

    def __post_init__(self) -> None:
        self.pieces = [[] for _ in self.layouts]
        self.n_values = sum(one.n_ops * one.n_data * one.steps.size for one in self.layouts)
        self.file = ArrayFile() if self.n_values > MAX_IN_MEMORY else None

    def add(self, index: int, shape: StepShape) -> None:
        if self.clock.any():
            without_offsets(shape, self.clock)
        work, measured = observed_work(shape, self.kept[index][1])
        found = np.isnan(work)
        holes = found if found.any() else None
        if self.file is None:
            self.pieces[index].append(_Piece(shape.steps, work, holes, measured))
            return
        if holes is not None:
            fill_holes([work], [holes], shape)
        self.pieces[index].append(_Piece(shape.steps, self.file.write(work), holes, measured))

    def parts(self) -> tuple[list[ShapeReplay], FloatArray]:
        """One part per shape if patterns of microbatches are searched, else one part per piece."""
        parts: list[ShapeReplay] = []
        for layout, (sample, graph, program), pieces in zip(
            self.layouts, self.kept, self.pieces, strict=True
        ):
            if self.n_values <= MAX_FOR_MICROBATCHES:
                pieces = [_joined(pieces)]
            if self.file is None:
                _fill(pieces, sample)
            for piece in pieces:
                times = DerivedTimes(
                    piece.work, None if piece.holes is None else ~piece.holes, piece.measured
                )
                shape = replace(
                    sample,
                    steps=piece.steps,
                    chunk=layout.chunks[0],
                    global_chunk=layout.chunks[1],
                    microbatch=layout.chunks[2],
                )
                shape = _without_times(shape)
                parts.append(
                    ShapeReplay(shape, graph, program, times, np.zeros(layout.n_ops), np.empty(0, np.int64))
                )
        ideal = pooled_ideal_durations(lambda: ((part.shape, part.times) for part in parts))
        of_parts = ideal_of_operations([part.shape for part in parts], [part.times for part in parts], ideal)
        return [replace(part, ideal=own) for part, own in zip(parts, of_parts, strict=True)], ideal


def _joined(pieces: list[_Piece]) -> _Piece:
    """All steps of a shape in ascending order."""
    if len(pieces) == 1:
        return pieces[0]
    order = np.argsort(np.concatenate([piece.steps for piece in pieces]), kind="stable")
    work = np.concatenate([piece.work for piece in pieces], axis=2)[:, :, order]
    holes = None
    if any(piece.holes is not None for piece in pieces):
        holes = np.isnan(work)
    return _Piece(
        np.concatenate([piece.steps for piece in pieces])[order],
        np.ascontiguousarray(work),
        holes,
        np.concatenate([piece.measured for piece in pieces])[order],
    )


def _fill(pieces: list[_Piece], shape: StepShape) -> None:
    """Fill the missing times of all pieces from all pieces."""
    if all(piece.holes is None for piece in pieces):
        return
    works = [piece.work for piece in pieces if isinstance(piece.work, np.ndarray)]
    holes = [
        np.isnan(work) if piece.holes is None else piece.holes
        for piece, work in zip(pieces, works, strict=True)
    ]
    fill_holes(works, holes, shape)
