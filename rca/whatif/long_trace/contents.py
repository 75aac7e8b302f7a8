"""First pass over a long trace: find the operations of every step.

Most steps have their rows in the same order as an earlier step. If all identifying columns of a step equal
those of the earlier step, its operations are known, and the second pass reads its times only. Every other
step passes the reader and the repairs like a short trace.

Without this comparison, reading takes three times the CPU time and 1.7 times the memory (10.6 M rows).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rca.arrays import BoolArray, IntArray
from rca.errors import InvalidTrace
from rca.whatif.graph.trace_replay import NO_RANK, smallest_ranks
from rca.whatif.long_trace.blocks import Block, BlockedTrace, chosen_rows
from rca.whatif.optypes import COMPUTE
from rca.whatif.trace.operation_numbers import Counting, restarted
from rca.whatif.trace.reader import (
    COARSEST_TICK,
    NoUsableRow,
    TracePart,
    numbers,
    optype_codes,
    trace_from_table,
)
from rca.whatif.trace.row_repair import RowFacts, TraceFacts, repaired_rows
from rca.whatif.trace.step_sizes import StepSizes
from rca.whatif.trace.trace import Note, OpTrace, TraceMeta
from rca.whatif.trace.trace_checks import LONGEST, UNUSUAL_SECONDS, WHOLE_SECONDS, refuse_zero_durations

Columns = dict[str, npt.NDArray[Any]]
Progress = Callable[[float], None]

TIMES = ("start_ts", "duration")
MAX_PASSES = 5
MAX_ROWS_COMPARED = 4_000_000
"""Rows of all kept row orders. One row order is always kept."""


@dataclass(frozen=True)
class RowOrder:
    """The rows of one step in the order of the file.

    Attributes
    ----------
    keys : dict of str to ndarray
        Values of the identifying columns.
    trace : OpTrace
        The repaired rows.
    rows : ndarray of int
        Positions of the rows of known types within the step.
    computes : ndarray of int
        Positions of the forward and backward computes within the step.
    """

    keys: Columns
    trace: OpTrace
    rows: IntArray
    computes: IntArray
    sizes: StepSizes


@dataclass
class TraceContents:
    """The operations of all steps of a trace, steps in ascending order.

    Attributes
    ----------
    steps : ndarray of shape (n_steps,), int
    row_order : ndarray of shape (n_steps,), int
        Position in `row_orders` of the order of the rows; -1 if the step has an order of its own.
    ranks : ndarray of shape (n_data, n_stages), int
        Smallest traced rank of every worker; `NO_RANK` where no row gives one.
    """

    facts: TraceFacts
    steps: IntArray
    sizes: StepSizes
    row_order: IntArray
    row_orders: list[RowOrder]
    ranks: IntArray
    notes: list[str]


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
    for _ in range(MAX_PASSES):
        reader = _ContentsReader(file, meta, assumed)
        for position, table, rows in file.tables(file.columns):
            reader.add(file.blocks[position], table, rows)
            progress(table.num_rows)
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

    def __init__(self, file: BlockedTrace, meta: TraceMeta, assumed: TraceFacts | None) -> None:
        self.file = file
        self.meta = meta
        self.assumed = assumed
        self.first = assumed is None
        self.facts: TraceFacts | None = None
        self.stale = False
        self.computes = self.instant = 0
        self.fractional = False
        self.row_orders: list[RowOrder] = []
        self._found: list[tuple[IntArray, StepSizes, int]] = []
        self._ranks: tuple[IntArray, IntArray] | None = None
        self._notes: dict[tuple[str, ...], Note] = {}
        self._names: dict[str, int] = {}

    def add(self, block: Block, table: pa.Table, rows: IntArray) -> None:
        """Record all steps of a block."""
        offsets = np.append(0, np.cumsum(block.sizes))
        own = np.arange(block.steps.size)
        if self.file.contiguous:
            own = self._add_known(block, table, offsets, own)
            held = sum(int(row_order.rows.size) for row_order in self.row_orders)
            if own.size and (not held or held + int(block.sizes[own[0]]) <= MAX_ROWS_COMPARED):
                self._add_own(table, rows, offsets, own[:1])
                own = self._add_known(block, table, offsets, own[1:])
        if own.size:
            self._add_own(table, rows, offsets, own)

    def result(self) -> TraceContents:
        """All steps, in ascending order."""
        if self._ranks is None or self.facts is None:
            raise InvalidTrace("no step of the trace could be read")
        steps = np.concatenate([steps for steps, _, _ in self._found])
        order = np.argsort(steps, kind="stable")
        notes = [*map(str, self._notes.values()), *([] if self.fractional else [WHOLE_SECONDS])]
        joined = [
            np.concatenate([getattr(found, name) for _, found, _ in self._found])[order] for name in _SIZES
        ]
        row_order_of = np.concatenate([np.full(steps.size, index) for steps, _, index in self._found])[order]
        return TraceContents(
            self.facts,
            steps[order],
            StepSizes(*joined),
            row_order_of,
            self.row_orders,
            self._ranks[1],
            notes,
        )

    def _add_known(self, block: Block, table: pa.Table, offsets: IntArray, left: IntArray) -> IntArray:
        """Record the steps that have a known row order; returns the other steps."""
        if not self.row_orders or not left.size:
            return left
        keys = _keys(table, self._names)
        unchanged = _times_kept_unchanged(table, offsets)
        for index, row_order in enumerate(self.row_orders):
            same = np.array([unchanged[k] and _same(keys, row_order.keys, offsets[k : k + 2]) for k in left])
            alike = block.steps[left[same]]
            if alike.size and not self.stale:
                one = row_order.sizes
                repeated = [np.repeat(getattr(one, name), alike.size, axis=0) for name in _SIZES]
                self._found.append((alike, StepSizes(*repeated), index))
                self._note(row_order.trace.notes, alike.size)
                duration = numbers(table.column("duration"), null=np.nan)
                for k in left[same]:
                    self._look_at(duration[offsets[k] : offsets[k + 1]], row_order.computes)
            left = left[~same]
            if not left.size:
                break
        return left

    def _add_own(self, table: pa.Table, places: IntArray, offsets: IntArray, own: IntArray) -> None:
        """Record steps through the reader. A single step may become a known row order."""
        rows, places = chosen_rows(table, places, offsets, own)
        try:
            trace = trace_from_table(rows, self.meta, TracePart(places, self._observed))
        except NoUsableRow as error:
            self._note(error.notes)
            return
        if self.assumed is None or self.stale:
            return
        steps, sizes = StepSizes.of(trace, self.assumed.rows.n_stages)
        index = -1
        if own.size == 1 and self.file.contiguous and self._keeps_numbers():
            known = np.flatnonzero(optype_codes(rows.column("optype"), []) >= 0)
            if trace.n_ops == known.size:
                computes = known[np.isin(trace.optype, COMPUTE)]
                index = len(self.row_orders)
                self.row_orders.append(RowOrder(_keys(rows, self._names), trace, known, computes, sizes))
        self._found.append((steps, sizes, index))
        self._note(trace.notes)
        self._merge_ranks(trace, self.assumed.rows.n_stages)

    def _note(self, notes: Iterable[Note], times: int = 1) -> None:
        """Add the notes on one part, or on several equal parts."""
        for note in notes:
            none = Note(tuple(piece if isinstance(piece, str) else 0 for piece in note.pieces))
            self._notes[note.kind] = self._notes.get(note.kind, none).plus(note, times)

    def _keeps_numbers(self) -> bool:
        """Whether the operations of a step follow from its numbers alone, without its times."""
        if self.assumed is None:
            return False
        counting = self.assumed.counting
        return self.assumed.rows.numbered and not (counting.from_first or counting.by_start)

    def _observed(self, trace: OpTrace) -> OpTrace:
        self._look_at(trace.duration, np.flatnonzero(np.isin(trace.optype, COMPUTE)))
        counting = Counting.of(trace, None if self.assumed is None else self.assumed.counting.suspects)
        renumbered = restarted(trace, counting if self.assumed is None else self.assumed.counting)
        mine = TraceFacts(counting, RowFacts.of(renumbered))
        self.facts = mine if self.facts is None else self.facts.merged(mine)
        self.assumed = self.assumed or mine
        if self.first:
            self.stale |= self.facts.decisions != self.assumed.decisions
        return trace if self.stale else repaired_rows(renumbered, self.assumed.rows)

    def _look_at(self, duration: npt.NDArray[Any], computes: IntArray) -> None:
        """Count zero and fractional durations, for checks that need all rows."""
        self.computes += computes.size
        if float(duration.min()) == 0:
            self.instant += int((duration[computes] == 0).sum())
        self.fractional = self.fractional or bool((duration != np.rint(duration)).any())

    def _merge_ranks(self, trace: OpTrace, n_stages: int) -> None:
        here = smallest_ranks(trace, n_stages)
        if self._ranks is None:
            self._ranks = (trace.data_ranks, here)
            return
        together = np.union1d(self._ranks[0], trace.data_ranks)
        ranks = np.full((together.size, n_stages), NO_RANK)
        for data_ranks, held in (self._ranks, (trace.data_ranks, here)):
            at = np.searchsorted(together, data_ranks)
            ranks[at] = np.minimum(ranks[at], held)
        self._ranks = (together, ranks)


_SIZES = ("sizes", "rows", "pauses", "paused")


def _keys(table: pa.Table, names: dict[str, int]) -> Columns:
    """Values of the identifying columns; operation types as numbers from `names`, which is extended."""
    keys: Columns = {}
    for name in table.column_names:
        if name not in (*TIMES, "optype", "step"):
            keys[name] = numbers(table.column(name), null=-1)
    codes = []
    types = table.column("optype")
    if not pa.types.is_dictionary(types.type):
        types = types.dictionary_encode()
    for chunk in types.chunks:
        here = [str(name) for name in chunk.dictionary.to_pylist()] + [""]
        lookup = np.array([names.setdefault(name, len(names)) for name in here], dtype=np.int16)
        codes.append(lookup[numbers(chunk.indices, null=len(here) - 1)])
    keys["optype"] = codes[0] if len(codes) == 1 else np.concatenate(codes)
    return keys


def _same(keys: Columns, held: Columns, bounds: IntArray) -> bool:
    first, last = int(bounds[0]), int(bounds[1])
    if last - first != held["optype"].size:
        return False
    return all(np.array_equal(keys[name][first:last], values) for name, values in held.items())


def _times_kept_unchanged(table: pa.Table, offsets: IntArray) -> BoolArray:
    """Steps whose times the reader would keep unchanged."""
    start, duration = (numbers(table.column(name), null=np.nan) for name in TIMES)
    low, high = (extreme.reduceat(start, offsets[:-1]) for extreme in (np.minimum, np.maximum))
    shortest, longest = (extreme.reduceat(duration, offsets[:-1]) for extreme in (np.minimum, np.maximum))
    with np.errstate(invalid="ignore"):
        unchanged = (high - low <= LONGEST) & (shortest >= 0) & (longest <= UNUSUAL_SECONDS)
        if start.dtype == np.float32:
            unchanged &= np.spacing(np.maximum(np.abs(low), np.abs(high))) <= COARSEST_TICK
    result: BoolArray = unchanged
    return result
