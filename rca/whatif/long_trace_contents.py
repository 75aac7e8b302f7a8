"""First pass over a trace too long to hold: what every step consists of, before anything is arranged.

Rows of most steps stand in the same order as those of an earlier step. Where all identifying columns of a
step equal that one's, by value, it goes where that one's rows went and only its times are read again.
Every other step passes through the reader and the repairs like a trace of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rca.arrays import BoolArray, IntArray
from rca.errors import InvalidTrace
from rca.whatif.long_trace_blocks import Block, BlockedTrace, chosen_rows
from rca.whatif.operation_numbers import Counting, restarted
from rca.whatif.optypes import COMPUTE
from rca.whatif.reader import (
    COARSEST_TICK,
    Part,
    numbers,
    optype_codes,
    trace_from_table,
    unusable_note,
)
from rca.whatif.row_repair import Facts, RowFacts, repaired_rows
from rca.whatif.step_sizes import StepSizes
from rca.whatif.trace import OpTrace, TraceMeta
from rca.whatif.trace_checks import LONGEST, UNUSUAL_SECONDS, WHOLE_SECONDS, refuse_zero_durations
from rca.whatif.trace_replay import NO_RANK, smallest_ranks

_NUMBER = re.compile(r"((?<=\()\d+(?=\))|^\d+(?= )|(?<=: )\d+(?= rows))|((?<=the first is row )\d+)")
"""Numbers in notes on rows: counts at their start, after a colon or in brackets; and the first row."""


class NoteSums:
    """Notes whose counts add up, and whose first rows are the first of all."""

    def __init__(self) -> None:
        self._numbers: dict[str, list[int]] = {}

    def add(self, notes: Iterable[str], times: int = 1) -> None:
        """Add notes on one part, or on several that are alike."""
        for note in notes:
            key = _NUMBER.sub("\0", note)
            held = self._numbers.get(key)
            merged = []
            for k, match in enumerate(_NUMBER.finditer(note)):
                number = int(match[0])
                if match[1]:
                    merged.append(number * times + (held[k] if held else 0))
                else:
                    merged.append(min(number, held[k]) if held else number)
            self._numbers[key] = merged

    def merged(self) -> list[str]:
        """One note each, in the order they were first met."""
        notes = []
        for key, held in self._numbers.items():
            texts = [*map(str, held), ""]
            notes.append("".join(part + text for part, text in zip(key.split("\0"), texts, strict=True)))
        return notes


Columns = dict[str, npt.NDArray[Any]]
Progress = Callable[[float], None]

TIMES = ("start_ts", "duration")
MOST_PASSES = 5
MOST_ROWS_COMPARED = 4_000_000
"""Rows of row_orders held for comparison; one is held in any case."""


@dataclass(frozen=True)
class RowOrder:
    """The rows of one step as they stand in the file.

    Attributes
    ----------
    keys : dict of str to ndarray
        Identifying columns, by value.
    trace : OpTrace
        The repaired rows.
    rows : ndarray of int
        Which rows of the step they are: those of known types.
    computes : ndarray of int
        Which of the step's rows are forward and backward computes.
    sizes : StepSizes
    """

    keys: Columns
    trace: OpTrace
    rows: IntArray
    computes: IntArray
    sizes: StepSizes


@dataclass
class TraceContents:
    """What a whole trace consists of; its steps in ascending order.

    Attributes
    ----------
    facts : Facts
    steps : ndarray of shape (n_steps,), int
    sizes : StepSizes
    row_order : ndarray of shape (n_steps,), int
        Whose order the rows have; -1 for an order of their own.
    row_orders : list of RowOrder
    ranks : ndarray of shape (n_data, n_stages), int
        Smallest traced rank of every worker; `NO_RANK` where no row gives one.
    notes : list of str
    """

    facts: Facts
    steps: IntArray
    sizes: StepSizes
    row_order: IntArray
    row_orders: list[RowOrder]
    ranks: IntArray
    notes: list[str]


def read_contents(file: BlockedTrace, meta: TraceMeta, progress: Progress) -> TraceContents:
    """Read the whole file once; again if its first steps do not show what holds for all.

    What is suspected of the numbers, how they are put right and which stages and chunks the rows then show
    may each take a pass of their own.

    Raises
    ------
    InvalidTrace
        Whatever the reader of whole traces refuses.
    """
    assumed: Facts | None = None
    for _ in range(MOST_PASSES):
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
    """Notes on the steps read so far.

    `assumed` is what the repairs go by; in the first pass, what the first rows show. Where later ones
    contradict it, the rest of that pass only collects facts (`stale`), and the next one goes by those.
    """

    def __init__(self, file: BlockedTrace, meta: TraceMeta, assumed: Facts | None) -> None:
        self.file = file
        self.meta = meta
        self.assumed = assumed
        self.first = assumed is None
        self.facts: Facts | None = None
        self.stale = False
        self.computes = self.instant = 0
        self.fractional = False
        self.row_orders: list[RowOrder] = []
        self._found: list[tuple[IntArray, StepSizes, int]] = []
        self._ranks: tuple[IntArray, IntArray] | None = None
        self._notes = NoteSums()
        self._names: dict[str, int] = {}

    def add(self, block: Block, table: pa.Table, rows: IntArray) -> None:
        """Record every step of a block."""
        offsets = np.append(0, np.cumsum(block.sizes))
        own = np.arange(block.steps.size)
        if self.file.contiguous:
            own = self._add_known(block, table, offsets, own)
            held = sum(int(row_order.rows.size) for row_order in self.row_orders)
            if own.size and (not held or held + int(block.sizes[own[0]]) <= MOST_ROWS_COMPARED):
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
        notes = self._notes.merged() + ([] if self.fractional else [WHOLE_SECONDS])
        joined = [
            np.concatenate([getattr(found, name) for _, found, _ in self._found])[order] for name in _SIZES
        ]
        whose = np.concatenate([np.full(steps.size, index) for steps, _, index in self._found])[order]
        return TraceContents(
            self.facts,
            steps[order],
            StepSizes(*joined),
            whose,
            self.row_orders,
            self._ranks[1],
            notes,
        )

    def _add_known(self, block: Block, table: pa.Table, offsets: IntArray, left: IntArray) -> IntArray:
        """Record steps in a known row_order; returns the others."""
        if not self.row_orders or not left.size:
            return left
        keys = _keys(table, self._names)
        sound = _sound_times(table, offsets)
        for index, row_order in enumerate(self.row_orders):
            same = np.array([sound[k] and _same(keys, row_order.keys, offsets[k : k + 2]) for k in left])
            alike = block.steps[left[same]]
            if alike.size and not self.stale:
                one = row_order.sizes
                repeated = [np.repeat(getattr(one, name), alike.size, axis=0) for name in _SIZES]
                self._found.append((alike, StepSizes(*repeated), index))
                self._notes.add(row_order.trace.notes, alike.size)
                duration = numbers(table.column("duration"), null=np.nan)
                for k in left[same]:
                    self._look_at(duration[offsets[k] : offsets[k + 1]], row_order.computes)
            left = left[~same]
            if not left.size:
                break
        return left

    def _add_own(self, table: pa.Table, places: IntArray, offsets: IntArray, own: IntArray) -> None:
        """Record steps through the reader; one alone may become an row_order."""
        rows, places = chosen_rows(table, places, offsets, own)
        trace = own_trace(rows, self.meta, Part(places, self._observed))
        if trace is None:
            unknown: list[str] = []
            dropped = int((optype_codes(rows.column("optype"), unknown) >= 0).sum())
            if dropped:
                unknown.append(unusable_note(dropped, int(places[0])))
            self._notes.add(unknown)
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
        self._notes.add(trace.notes)
        self._merge_ranks(trace, self.assumed.rows.n_stages)

    def _keeps_numbers(self) -> bool:
        """Whether the operations of a step are those its numbers say, whatever its times."""
        if self.assumed is None:
            return False
        counting = self.assumed.counting
        return self.assumed.rows.numbered and not (counting.from_first or counting.by_start)

    def _observed(self, trace: OpTrace) -> OpTrace:
        self._look_at(trace.duration, np.flatnonzero(np.isin(trace.optype, COMPUTE)))
        counting = Counting.of(trace, None if self.assumed is None else self.assumed.counting.suspects)
        renumbered = restarted(trace, counting if self.assumed is None else self.assumed.counting)
        mine = Facts(counting, RowFacts.of(renumbered))
        self.facts = mine if self.facts is None else self.facts.merged(mine)
        self.assumed = self.assumed or mine
        if self.first:
            self.stale |= self.facts.decisions != self.assumed.decisions
        return trace if self.stale else repaired_rows(renumbered, self.assumed.rows)

    def _look_at(self, duration: npt.NDArray[Any], computes: IntArray) -> None:
        """Count what only all rows together can condemn."""
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
    """The identifying columns by value; operation types by numbers that `names` gives, and adds to."""
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


def own_trace(table: pa.Table, meta: TraceMeta, part: Part) -> OpTrace | None:
    """The checked and repaired rows of a part of a trace; None if it has no usable row."""
    try:
        return trace_from_table(table, meta, part)
    except InvalidTrace:
        if not all(pa.types.is_floating(table.column(name).type) for name in TIMES):
            raise
        start, duration = (numbers(table.column(name), null=np.nan) for name in TIMES)
        known = optype_codes(table.column("optype"), []) >= 0
        if (known & np.isfinite(start) & np.isfinite(duration) & (duration >= 0)).any():
            raise
        return None


def _same(keys: Columns, held: Columns, bounds: IntArray) -> bool:
    first, last = int(bounds[0]), int(bounds[1])
    if last - first != held["optype"].size:
        return False
    return all(np.array_equal(keys[name][first:last], values) for name, values in held.items())


def _sound_times(table: pa.Table, offsets: IntArray) -> BoolArray:
    """Steps whose times the reader would take as they are."""
    start, duration = (numbers(table.column(name), null=np.nan) for name in TIMES)
    low, high = (extreme.reduceat(start, offsets[:-1]) for extreme in (np.minimum, np.maximum))
    shortest, longest = (extreme.reduceat(duration, offsets[:-1]) for extreme in (np.minimum, np.maximum))
    with np.errstate(invalid="ignore"):
        sound = (high - low <= LONGEST) & (shortest >= 0) & (longest <= UNUSUAL_SECONDS)
        if start.dtype == np.float32:
            sound &= np.spacing(np.maximum(np.abs(low), np.abs(high))) <= COARSEST_TICK
    result: BoolArray = sound
    return result
