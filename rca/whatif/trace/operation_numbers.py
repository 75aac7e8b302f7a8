"""Renumber operations whose ``seq_id`` counts on over the steps instead of restarting in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rca.arrays import BoolArray, IntArray
from rca.whatif.optypes import N_TYPES, NAMES
from rca.whatif.trace.trace import Note, OpTrace, distinct

NO_NUMBER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Counting:
    """Counts of first operation numbers per cell. A cell is one type on one rank in one step.

    The counts of parts of a trace add up.

    Attributes
    ----------
    suspects : ndarray of shape (N_TYPES,), bool
        Types whose lowest number exceeds 0 in some step. The other attributes cover only these types.
    cells, above, running : ndarray of shape (N_TYPES,), int
        All cells, cells that begin above 0, and cells with consecutive numbers.
    lowest, highest : int
        Smallest and largest first number of a cell.
    all_rows : bool
        Whether every row is of a suspect type.
    given : bool
        Whether every row has a number.
    """

    suspects: BoolArray
    cells: IntArray
    above: IntArray
    running: IntArray
    lowest: int
    highest: int
    all_rows: bool
    given: bool

    @classmethod
    def of(cls, trace: OpTrace, also: BoolArray | None = None) -> Counting:
        """Count the cells of some rows; `also` adds types that are suspects in other rows."""
        suspects = np.zeros(N_TYPES, dtype=bool) if also is None else also.copy()
        given = int(trace.sequence.min()) >= 0
        if given:
            suspects[_suspects(trace)] = True
        rows = np.flatnonzero(suspects[trace.optype])
        counted = np.zeros((3, N_TYPES), np.int64)
        if not rows.size or not given:
            return cls(suspects, *_split(counted), NO_NUMBER, -1, rows.size == trace.n_ops, given)
        place = cells_of(trace, rows)
        order = np.lexsort([trace.sequence[rows], *place])
        begin = np.flatnonzero(changes(place, order))
        counts = np.diff(np.append(begin, order.size))
        numbers = trace.sequence[rows[order]]
        first, last = numbers[begin], numbers[begin + counts - 1]
        optype = trace.optype[rows[order[begin]]]
        for total, chosen in zip(counted, (first >= 0, first > 0, last - first < counts), strict=True):
            total += np.bincount(optype[chosen], minlength=N_TYPES)
        everything = rows.size == trace.n_ops
        return cls(suspects, *_split(counted), int(first.min()), int(first.max()), everything, given)

    def merged(self, other: Counting) -> Counting:
        """Counts of both parts together."""
        return Counting(
            self.suspects | other.suspects,
            self.cells + other.cells,
            self.above + other.above,
            self.running + other.running,
            min(self.lowest, other.lowest),
            max(self.highest, other.highest),
            self.all_rows and other.all_rows,
            self.given and other.given,
        )

    @property
    def from_first(self) -> tuple[int, ...]:
        """Types whose numbers are reduced by the first number of the step."""
        return self._counting_on(follow=True)

    @property
    def by_start(self) -> tuple[int, ...]:
        """Types that are numbered by start time."""
        return self._counting_on(follow=False)

    def _counting_on(self, *, follow: bool) -> tuple[int, ...]:
        if not self.given or (self.all_rows and self.lowest == self.highest):
            # Numbers that all begin at 1 are shifted by `rca.whatif.trace.row_repair`.
            return ()
        chosen = (2 * self.above > self.cells) & ((2 * self.running > self.cells) == follow)
        return tuple(np.flatnonzero(chosen).tolist())


def _split(counted: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    return counted[0], counted[1], counted[2]


def restarted(trace: OpTrace, counting: Counting | None = None) -> OpTrace:
    """Number the operations of every step from 0 if ``seq_id`` counts on over the steps.

    A type counts on if it begins above 0 in most cells. If most of its cells have consecutive numbers, the
    first number of the step is subtracted, so that a missing row stays missing. Otherwise one counter serves
    several types, and the order of the starts gives the numbers.

    Parameters
    ----------
    counting : Counting, optional
        Counts of the whole trace, if `trace` is a part.
    """
    if trace.n_ops == 0:
        return trace
    counting = counting or Counting.of(trace)
    codes = (*counting.from_first, *counting.by_start)
    rows = np.flatnonzero(np.isin(trace.optype, codes)) if codes else np.empty(0, np.int64)
    if not rows.size:
        return trace
    place = cells_of(trace, rows)
    keys: list[npt.NDArray[np.generic]] = [trace.start[rows], *place]
    order = np.lexsort(keys)
    first = changes(place, order)
    begin = np.flatnonzero(first)
    cell = np.cumsum(first) - 1
    ordered = rows[order]
    lowest = np.minimum.reduceat(trace.sequence[ordered], begin)
    keeps = np.isin(trace.optype[ordered], counting.from_first)
    sequence = trace.sequence.copy()
    sequence[ordered] = np.where(
        keeps, trace.sequence[ordered] - lowest[cell], np.arange(rows.size) - begin[cell]
    )
    here = set(np.unique(trace.optype[rows]).tolist())
    changed = {
        "counted from the step's first": [code for code in counting.from_first if code in here],
        "numbered by start": [code for code in counting.by_start if code in here],
    }
    return replace(trace, sequence=sequence).noted(*_notes(trace, changed))


def cells_of(trace: OpTrace, rows: IntArray | slice) -> list[IntArray]:
    """Columns that identify the cell of each row: one type on one rank in one step."""
    return [key[rows] for key in (trace.rank, trace.optype, trace.stage, trace.data_rank, trace.step)]


def _notes(trace: OpTrace, changed: dict[str, list[int]]) -> list[Note]:
    named = {how: ", ".join(NAMES[code] for code in codes) for how, codes in changed.items()}
    return [
        Note(
            (
                "seq_id does not restart with every step: ",
                int(np.isin(trace.optype, codes).sum()),
                f" rows {how}, of {named[how]}",
            )
        )
        for how, codes in changed.items()
        if codes
    ]


def changes(keys: Sequence[IntArray], order: IntArray) -> BoolArray:
    """Where, in the given order, a key differs from the previous row."""
    first = np.zeros(order.size, dtype=bool)
    first[0] = True
    for key in keys:
        first[1:] |= key[order[1:]] != key[order[:-1]]
    return first


def _suspects(trace: OpTrace) -> IntArray:
    """Types whose lowest number exceeds 0 in at least one step. Most traces have none."""
    steps, step = distinct(trace.step)
    lowest = np.full(steps.size * N_TYPES, NO_NUMBER)
    np.minimum.at(lowest, step * N_TYPES + trace.optype, trace.sequence)
    above = (lowest > 0) & (lowest < NO_NUMBER)
    return np.flatnonzero(above.reshape(-1, N_TYPES).any(axis=0))
