"""Read the blocks of a long trace: repair their rows, and arrange them per block."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa

from rca.arrays import IntArray
from rca.errors import InvalidTrace
from rca.whatif.graph.trace_replay import NO_RANK, smallest_ranks
from rca.whatif.long_trace.blocks import BlockedTrace
from rca.whatif.optypes import COMPUTE, N_TYPES
from rca.whatif.trace.operation_numbers import Counting, restarted
from rca.whatif.trace.reader import NoUsableRow, TracePart, trace_from_table
from rca.whatif.trace.row_repair import RowFacts, TraceFacts, repaired_rows
from rca.whatif.trace.step_shapes import StepShape, arranged, empty_shape
from rca.whatif.trace.step_sizes import StepSizes
from rca.whatif.trace.trace import Note, OpTrace, TraceMeta
from rca.whatif.trace.trace_checks import WHOLE_SECONDS, refuse_zero_durations

Progress = Callable[[float], None]

MAX_PASSES = 5


@dataclass(frozen=True)
class TraceContents:
    """All rows of a trace, arranged per block.

    Attributes
    ----------
    steps : ndarray of shape (n_steps,), int
        Ascending.
    ranks : ndarray of shape (n_data, n_stages), int
        Smallest traced rank of every worker; `NO_RANK` where no row gives one.
    n_chunks : int
        Model chunks per stage.
    pieces : list of (ndarray of int, StepShape)
        Data ranks, and some steps with the same operations.
    """

    facts: RowFacts
    steps: IntArray
    sizes: StepSizes
    ranks: IntArray
    n_chunks: int
    notes: list[str]
    pieces: list[tuple[IntArray, StepShape]]

    def shape(self, size: IntArray, members: IntArray) -> StepShape:
        """Some steps, by position, with operations of shape (n_stages, N_TYPES)."""
        shape = empty_shape(self.steps[members], size, self.facts.data_ranks.size)
        base = np.cumsum(size) - size.ravel()
        for data_ranks, piece in self.pieces:
            mine = np.flatnonzero(np.isin(piece.steps, shape.steps))
            if mine.size:
                op = base[piece.stage * N_TYPES + piece.optype] + piece.sequence
                data = np.searchsorted(self.facts.data_ranks, data_ranks)
                place = np.ix_(op, data, np.searchsorted(shape.steps, piece.steps[mine]))
                shape.start[place] = piece.start[:, :, mine]
                shape.duration[place] = piece.duration[:, :, mine]
                for name in ("chunk", "global_chunk", "microbatch"):
                    known = getattr(piece, name) >= 0
                    getattr(shape, name)[op[known]] = getattr(piece, name)[known]
        return shape


def read_contents(file: BlockedTrace, meta: TraceMeta, progress: Progress) -> TraceContents:
    """Read the whole file, and again if later rows change the repairs that the first rows need.

    One more pass each may be needed for three facts. These are the types that count on over the steps, their
    new numbers, and the stages and chunks of the renumbered rows.

    Raises
    ------
    InvalidTrace
        If the reader of short traces would refuse the trace.
    """
    assumed: TraceFacts | None = None
    done = 0
    for _ in range(MAX_PASSES):
        reader = _ContentsReader(meta, assumed)
        for table, rows in file.blocks():
            reader.add(table, rows)
            done += table.num_rows
            progress(min(1.0, done / file.n_rows))
        facts = reader.facts
        if facts is None or reader.assumed is None:
            raise InvalidTrace("operation trace has no row of a known operation type with a usable time")
        refuse_zero_durations(reader.instant, reader.computes)
        facts.rows.check()
        if not reader.stale and facts.decisions == reader.assumed.decisions:
            break
        assumed = facts
    return reader.result()


class _ContentsReader:
    """Collects the operations of the steps read so far.

    The repairs use the facts `assumed`; in the first pass these come from the first rows. If later rows
    contradict them, the pass is `stale`: it only collects facts, and the next pass uses those.
    """

    def __init__(self, meta: TraceMeta, assumed: TraceFacts | None) -> None:
        self.meta = meta
        self.assumed = assumed
        self.first = assumed is None
        self.facts: TraceFacts | None = None
        self.stale = False
        self.computes = self.instant = self.n_chunks = 0
        self.fractional = False
        self._found: list[tuple[IntArray, StepSizes]] = []
        self._ranks: list[tuple[IntArray, IntArray]] = []
        self._pieces: list[tuple[IntArray, StepShape]] = []
        self._notes: dict[tuple[str, ...], Note] = {}

    def add(self, table: pa.Table, rows: IntArray) -> None:
        """Record all steps of a block."""
        try:
            trace = trace_from_table(table, self.meta, TracePart(rows, self._observed))
        except NoUsableRow as error:
            self._note(error.notes)
            return
        if self.assumed is None or self.stale:
            self._pieces.clear()
            return
        n_stages = self.assumed.rows.n_stages
        steps, sizes = StepSizes.of(trace, n_stages)
        step = np.searchsorted(steps, trace.step)
        kinds, kind = np.unique(sizes.sizes, axis=0, return_inverse=True)
        for number, size in enumerate(kinds):
            members = np.flatnonzero(kind.ravel() == number)
            self._pieces.append((trace.data_ranks, arranged(trace, steps, step, size, members)))
        self._found.append((steps, sizes))
        self._ranks.append((trace.data_ranks, smallest_ranks(trace, n_stages)))
        self._note(trace.notes)
        self.n_chunks = max(
            self.n_chunks, int(trace.chunk[np.isin(trace.optype, COMPUTE)].max(initial=-1)) + 1
        )

    def result(self) -> TraceContents:
        """All steps, in ascending order."""
        if not self._found or self.facts is None:
            raise InvalidTrace("no step of the trace could be read")
        steps = np.concatenate([steps for steps, _ in self._found])
        order = np.argsort(steps)
        sizes = [
            np.concatenate([getattr(held, each.name) for _, held in self._found])[order]
            for each in fields(StepSizes)
        ]
        rows = self.facts.rows
        ranks = np.full((rows.data_ranks.size, rows.n_stages), NO_RANK)
        for data_ranks, here in self._ranks:
            at = np.searchsorted(rows.data_ranks, data_ranks)
            ranks[at] = np.minimum(ranks[at], here)
        notes = [*map(str, self._notes.values()), *([] if self.fractional else [WHOLE_SECONDS])]
        return TraceContents(rows, steps[order], StepSizes(*sizes), ranks, self.n_chunks, notes, self._pieces)

    def _note(self, notes: Iterable[Note]) -> None:
        """Add the notes on one part."""
        for note in notes:
            held = self._notes.get(note.kind)
            self._notes[note.kind] = note if held is None else held.plus(note)

    def _observed(self, trace: OpTrace) -> OpTrace:
        computes = np.isin(trace.optype, COMPUTE)
        self.computes += int(computes.sum())
        self.instant += int((trace.duration[computes] == 0).sum())
        self.fractional = self.fractional or bool((trace.duration != np.rint(trace.duration)).any())
        counting = Counting.of(trace, None if self.assumed is None else self.assumed.counting.suspects)
        renumbered = restarted(trace, counting if self.assumed is None else self.assumed.counting)
        mine = TraceFacts(counting, RowFacts.of(renumbered))
        self.facts = mine if self.facts is None else self.facts.merged(mine)
        self.assumed = self.assumed or mine
        if self.first:
            self.stale |= self.facts.decisions != self.assumed.decisions
        return trace if self.stale else repaired_rows(renumbered, self.assumed.rows)
