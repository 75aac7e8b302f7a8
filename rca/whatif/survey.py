"""First pass over a trace too long to hold: what every step consists of, before anything is arranged.

Rows of most steps stand in the same order as those of an earlier step. Where all identifying columns of a
step equal that one's, by value, it goes where that one's rows went and only its times are read again.
Every other step passes through the reader and the repairs like a trace of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rca.errors import InvalidTrace
from rca.whatif.blocks import Block, BlockedTrace
from rca.whatif.meta import TraceMeta
from rca.whatif.optypes import GC, N_TYPES
from rca.whatif.reader import COARSEST_TICK, LONGEST_STEP, numbers, optype_codes, trace_from_table
from rca.whatif.repair import RowFacts, repaired_rows
from rca.whatif.trace import OpTrace
from rca.whatif.trace_replay import NO_RANK, smallest_ranks

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Columns = dict[str, npt.NDArray[Any]]
Progress = Callable[[float], None]

TIMES = ("start_ts", "duration")
MOST_HELD = 4_000_000
"""Rows of arrangements held for comparison; one is held in any case."""


@dataclass(frozen=True)
class StepSizes:
    """Sizes of some steps.

    Attributes
    ----------
    sizes : ndarray of shape (n, n_stages, N_TYPES), int
        Largest sequence number plus 1, over the data ranks.
    rows, pauses : ndarray of shape (n,), int
        Operations, and how many of them are garbage collections.
    """

    sizes: IntArray
    rows: IntArray
    pauses: IntArray

    @classmethod
    def of(cls, trace: OpTrace, n_stages: int) -> tuple[IntArray, StepSizes]:
        """Step numbers of a trace, and their sizes."""
        steps, step = np.unique(trace.step, return_inverse=True)
        sizes = np.zeros(steps.size * n_stages * N_TYPES, np.int64)
        np.maximum.at(sizes, (step * n_stages + trace.stage) * N_TYPES + trace.optype, trace.sequence + 1)
        return steps, cls(
            sizes.reshape(steps.size, n_stages, N_TYPES),
            np.bincount(step, minlength=steps.size),
            np.bincount(step[trace.optype == GC], minlength=steps.size),
        )


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
    sizes : StepSizes
    """

    keys: Columns
    trace: OpTrace
    rows: IntArray
    sizes: StepSizes


@dataclass
class Survey:
    """What a whole trace consists of; its steps in ascending order.

    Attributes
    ----------
    facts : RowFacts
    steps : ndarray of shape (n_steps,), int
    sizes : StepSizes
    arrangement : ndarray of shape (n_steps,), int
        Whose order the rows have; -1 for an order of their own.
    arrangements : list of Arrangement
    ranks : ndarray of shape (n_data, n_stages), int
        Smallest traced rank of every worker; `NO_RANK` where no row gives one.
    notes : list of str
    """

    facts: RowFacts
    steps: IntArray
    sizes: StepSizes
    arrangement: IntArray
    arrangements: list[Arrangement]
    ranks: IntArray
    notes: list[str]


def survey(file: BlockedTrace, meta: TraceMeta, progress: Progress) -> Survey:
    """Read the whole file once; a second time if its first steps do not show what holds for all.

    Raises
    ------
    InvalidTrace
        Whatever the reader of whole traces refuses.
    """
    assumed: RowFacts | None = None
    while True:
        surveyor = _Surveyor(file, meta, assumed)
        for position, table in file.tables(file.columns):
            surveyor.add(file.blocks[position], table)
            progress(table.num_rows)
        facts, assumed = surveyor.facts, surveyor.assumed
        if facts is None or assumed is None:
            raise InvalidTrace("operation trace has no row of a known operation type with a usable time")
        facts.check()
        if not surveyor.stale:
            return surveyor.result(facts)
        assumed = facts


def _decisions(facts: RowFacts) -> tuple[object, ...]:
    """What the repair of a row depends on."""
    return facts.n_stages, facts.numbered, facts.shift, facts.n_chunks


class _Surveyor:
    """Notes on the steps read so far.

    `assumed` is what the repairs go by. Where later rows contradict it, the rest of the pass only collects
    facts (`stale`), and the next one goes by those.
    """

    def __init__(self, file: BlockedTrace, meta: TraceMeta, assumed: RowFacts | None) -> None:
        self.file = file
        self.meta = meta
        self.assumed = assumed
        self.facts: RowFacts | None = None
        self.stale = False
        self.arrangements: list[Arrangement] = []
        self._found: list[tuple[IntArray, StepSizes, int]] = []
        self._ranks: tuple[IntArray, IntArray] | None = None
        self._notes: dict[str, IntArray] = {}
        self._names: dict[str, int] = {}

    def add(self, block: Block, table: pa.Table) -> None:
        """Record every step of a block."""
        offsets = np.append(0, np.cumsum(block.sizes))
        own = np.arange(block.steps.size)
        if self.file.contiguous:
            own = self._add_known(block, table, offsets, own)
            held = sum(int(arrangement.rows.size) for arrangement in self.arrangements)
            if own.size and (not held or held + int(block.sizes[own[0]]) <= MOST_HELD):
                self._add_own(table, offsets, own[:1])
                own = self._add_known(block, table, offsets, own[1:])
        if own.size:
            self._add_own(table, offsets, own)

    def result(self, facts: RowFacts) -> Survey:
        """All steps, in ascending order."""
        if self._ranks is None:
            raise InvalidTrace("no step of the trace could be read")
        steps = np.concatenate([steps for steps, _, _ in self._found])
        order = np.argsort(steps, kind="stable")
        joined = [
            np.concatenate([getattr(found, name) for _, found, _ in self._found])[order] for name in _SIZES
        ]
        whose = np.concatenate([np.full(steps.size, index) for steps, _, index in self._found])[order]
        return Survey(
            facts,
            steps[order],
            StepSizes(*joined),
            whose,
            self.arrangements,
            self._ranks[1],
            self._merged_notes(),
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
                self._note(arrangement.trace.notes, alike.size)
            left = left[~same]
            if not left.size:
                break
        return left

    def _add_own(self, table: pa.Table, offsets: IntArray, own: IntArray) -> None:
        """Record steps through the reader; one alone may become an arrangement."""
        rows = table if own.size == offsets.size - 1 else chosen_rows(table, offsets, own)
        trace = own_trace(rows, self.meta, self._observed)
        if trace is None:
            unknown: list[str] = []
            dropped = int((optype_codes(rows.column("optype"), unknown) >= 0).sum())
            if dropped:
                unknown.append(f"{dropped} rows with a negative or non-finite time dropped")
            self._note(tuple(unknown), 1)
            return
        if self.assumed is None or self.stale:
            return
        steps, sizes = StepSizes.of(trace, self.assumed.n_stages)
        index = -1
        if own.size == 1 and self.file.contiguous and self.assumed.numbered:
            known = np.flatnonzero(optype_codes(rows.column("optype"), []) >= 0)
            if trace.n_ops == known.size:
                index = len(self.arrangements)
                self.arrangements.append(Arrangement(_keys(rows, self._names), trace, known, sizes))
        self._found.append((steps, sizes, index))
        self._note(trace.notes, 1)
        self._merge_ranks(trace, self.assumed.n_stages)

    def _observed(self, trace: OpTrace) -> OpTrace:
        mine = RowFacts.of(trace)
        self.facts = mine if self.facts is None else self.facts.merged(mine)
        self.assumed = self.assumed or mine
        self.stale |= _decisions(self.facts.merged(self.assumed)) != _decisions(self.assumed)
        return trace if self.stale else repaired_rows(trace, self.assumed)

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

    def _note(self, notes: tuple[str, ...], times: int) -> None:
        """Add up the counts of equal notes."""
        for note in notes:
            counts = times * np.array(_COUNT.findall(note), dtype=np.int64)
            key = _COUNT.sub("\0", note)
            self._notes[key] = self._notes.get(key, 0) + counts

    def _merged_notes(self) -> list[str]:
        notes = []
        for key, counts in self._notes.items():
            parts = key.split("\0")
            numbers_ = [*map(str, counts.tolist()), ""]
            notes.append("".join(part + number for part, number in zip(parts, numbers_, strict=True)))
        return notes


_SIZES = ("sizes", "rows", "pauses")
_COUNT = re.compile(r"(?<=\()\d+(?=\))|^\d+|(?<=: )\d+(?= rows)")
"""Counts in notes on rows: at their start, after a colon, or in brackets behind a name."""


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


def own_trace(table: pa.Table, meta: TraceMeta, repair: Callable[[OpTrace], OpTrace]) -> OpTrace | None:
    """The checked and repaired rows of a part of a trace; None if it has no usable row."""
    try:
        return trace_from_table(table, meta, repair)
    except InvalidTrace:
        if not all(pa.types.is_floating(table.column(name).type) for name in TIMES):
            raise
        start, duration = (numbers(table.column(name), null=np.nan) for name in TIMES)
        known = optype_codes(table.column("optype"), []) >= 0
        if (known & np.isfinite(start) & np.isfinite(duration) & (duration >= 0)).any():
            raise
        return None


def chosen_rows(table: pa.Table, offsets: IntArray, steps: IntArray) -> pa.Table:
    """Rows of some steps of a block, by position."""
    return pa.concat_tables([table.slice(int(offsets[k]), int(offsets[k + 1] - offsets[k])) for k in steps])


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
        sound = (high - low <= LONGEST_STEP) & (shortest >= 0) & (longest < np.inf)
        for values in (np.maximum(np.abs(low), np.abs(high)), longest):
            if values.dtype == np.float32:
                sound &= np.spacing(values) <= COARSEST_TICK
    result: BoolArray = sound
    return result
