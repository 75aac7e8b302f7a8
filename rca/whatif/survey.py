"""First pass over a trace too long to hold: what every step consists of, before anything is arranged.

Rows of most steps stand in the same order as those of an earlier step. Where all identifying columns of a
step equal that one's, by value, it goes where that one's rows went and only its times are read again.
Every other step passes through the reader and the repairs like a trace of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rca.arrays import BoolArray, IntArray
from rca.errors import InvalidTrace
from rca.whatif.blocks import Block, BlockedTrace
from rca.whatif.density import StepSizes
from rca.whatif.meta import TraceMeta
from rca.whatif.notes import NoteSums
from rca.whatif.numbering import Counting, restarted
from rca.whatif.optypes import COMPUTE
from rca.whatif.plausible import LONGEST, UNUSUAL_SECONDS, WHOLE_SECONDS, refuse_instant
from rca.whatif.reader import (
    COARSEST_TICK,
    Part,
    numbers,
    optype_codes,
    trace_from_table,
    unusable_note,
)
from rca.whatif.repair import RowFacts, repaired_rows
from rca.whatif.trace import OpTrace
from rca.whatif.trace_replay import NO_RANK, smallest_ranks

Columns = dict[str, npt.NDArray[Any]]
Progress = Callable[[float], None]

TIMES = ("start_ts", "duration")
MOST_PASSES = 5
MOST_HELD = 4_000_000
"""Rows of arrangements held for comparison; one is held in any case."""


@dataclass(frozen=True)
class Arrangement:
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


@dataclass(frozen=True)
class Facts:
    """What the repairs must know of all rows: first how numbers begin, then the rows so renumbered."""

    counting: Counting
    rows: RowFacts

    def merged(self, other: Facts) -> Facts:
        """Facts of the rows of both."""
        return Facts(self.counting.merged(other.counting), self.rows.merged(other.rows))

    @property
    def decisions(self) -> tuple[object, ...]:
        """What the repair of a row depends on, and whether all parts were counted for all suspects."""
        rows, counting = self.rows, self.counting
        renumbered = counting.from_first, counting.by_start, counting.suspects.tobytes()
        return rows.n_stages, rows.numbered, rows.shift, rows.n_chunks, renumbered

    def repaired(self, trace: OpTrace) -> OpTrace:
        """Repair checked rows that may be a part of those these facts tell of."""
        return repaired_rows(restarted(trace, self.counting), self.rows)


@dataclass
class Survey:
    """What a whole trace consists of; its steps in ascending order.

    Attributes
    ----------
    facts : Facts
    steps : ndarray of shape (n_steps,), int
    sizes : StepSizes
    arrangement : ndarray of shape (n_steps,), int
        Whose order the rows have; -1 for an order of their own.
    arrangements : list of Arrangement
    ranks : ndarray of shape (n_data, n_stages), int
        Smallest traced rank of every worker; `NO_RANK` where no row gives one.
    notes : list of str
    """

    facts: Facts
    steps: IntArray
    sizes: StepSizes
    arrangement: IntArray
    arrangements: list[Arrangement]
    ranks: IntArray
    notes: list[str]


def survey(file: BlockedTrace, meta: TraceMeta, progress: Progress) -> Survey:
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
        surveyor = _Surveyor(file, meta, assumed)
        for position, table, rows in file.tables(file.columns):
            surveyor.add(file.blocks[position], table, rows)
            progress(table.num_rows)
        facts = surveyor.facts
        if facts is None or surveyor.assumed is None:
            raise InvalidTrace("operation trace has no row of a known operation type with a usable time")
        refuse_instant(surveyor.instant, surveyor.computes)
        facts.rows.check()
        if not surveyor.stale and facts.decisions == surveyor.assumed.decisions:
            break
        assumed = facts
    return surveyor.result()


class _Surveyor:
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
        self.arrangements: list[Arrangement] = []
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
            held = sum(int(arrangement.rows.size) for arrangement in self.arrangements)
            if own.size and (not held or held + int(block.sizes[own[0]]) <= MOST_HELD):
                self._add_own(table, rows, offsets, own[:1])
                own = self._add_known(block, table, offsets, own[1:])
        if own.size:
            self._add_own(table, rows, offsets, own)

    def result(self) -> Survey:
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
        return Survey(
            self.facts,
            steps[order],
            StepSizes(*joined),
            whose,
            self.arrangements,
            self._ranks[1],
            notes,
        )

    def _add_known(self, block: Block, table: pa.Table, offsets: IntArray, left: IntArray) -> IntArray:
        """Record steps in a known arrangement; returns the others."""
        if not self.arrangements or not left.size:
            return left
        keys = _keys(table, self._names)
        sound = _sound_times(table, offsets)
        for index, arrangement in enumerate(self.arrangements):
            same = np.array([sound[k] and _same(keys, arrangement.keys, offsets[k : k + 2]) for k in left])
            alike = block.steps[left[same]]
            if alike.size and not self.stale:
                one = arrangement.sizes
                repeated = [np.repeat(getattr(one, name), alike.size, axis=0) for name in _SIZES]
                self._found.append((alike, StepSizes(*repeated), index))
                self._notes.add(arrangement.trace.notes, alike.size)
                duration = numbers(table.column("duration"), null=np.nan)
                for k in left[same]:
                    self._look_at(duration[offsets[k] : offsets[k + 1]], arrangement.computes)
            left = left[~same]
            if not left.size:
                break
        return left

    def _add_own(self, table: pa.Table, places: IntArray, offsets: IntArray, own: IntArray) -> None:
        """Record steps through the reader; one alone may become an arrangement."""
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
                index = len(self.arrangements)
                self.arrangements.append(Arrangement(_keys(rows, self._names), trace, known, computes, sizes))
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


def chosen_rows(
    table: pa.Table, places: IntArray, offsets: IntArray, steps: IntArray
) -> tuple[pa.Table, IntArray]:
    """Rows of some steps of a block, by position, and their places in the file."""
    if steps.size == offsets.size - 1:
        return table, places
    pieces = [(int(offsets[k]), int(offsets[k + 1])) for k in steps]
    chosen = pa.concat_tables([table.slice(first, last - first) for first, last in pieces])
    return chosen, np.concatenate([places[first:last] for first, last in pieces])


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
