"""Repair the rows of a trace: duplicates, tensor ranks, operation numbers, metadata.

Every repair adds a note with a count. Rows that only a guess could repair are refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rca.arrays import IntArray
from rca.errors import InvalidTrace
from rca.whatif.optypes import COMPUTE, N_TYPES
from rca.whatif.trace.model_chunks import with_model_chunks
from rca.whatif.trace.operation_numbers import Counting, cells_of, changes
from rca.whatif.trace.trace import Note, OpTrace, TraceMeta, distinct

MAX_OPERATIONS = 100_000
"""Operations of one type in one step of one rank. A larger seq_id is no operation number."""


@dataclass(frozen=True)
class RowFacts:
    """Facts about all rows that the repairs need. Facts of the blocks of a long trace are merged.

    Attributes
    ----------
    stages, data_ranks : ndarray of int
        Sorted, as the producer numbers them.
    lacking : int
        Rows without ``seq_id``.
    lowest, highest : int
        Smallest and largest ``seq_id``.
    computes : int
        Number of forward and backward computes.
    chunk, global_chunk : int
        Largest ``mc`` and ``gmc`` of a compute; -1 if all are absent.
    """

    stages: IntArray
    data_ranks: IntArray
    lacking: int
    lowest: int
    highest: int
    computes: int
    chunk: int
    global_chunk: int

    @classmethod
    def of(cls, trace: OpTrace) -> RowFacts:
        """Facts of the rows of a trace."""
        compute = np.isin(trace.optype, COMPUTE)
        return cls(
            stages=np.flatnonzero(np.bincount(trace.stage)),
            data_ranks=trace.data_ranks,
            lacking=int((trace.sequence < 0).sum()),
            lowest=int(trace.sequence.min()),
            highest=int(trace.sequence.max()),
            computes=int(compute.sum()),
            chunk=int(trace.chunk[compute].max(initial=-1)),
            global_chunk=int(trace.global_chunk[compute].max(initial=-1)),
        )

    def merged(self, other: RowFacts) -> RowFacts:
        """Facts of the rows of both."""
        return RowFacts(
            stages=np.union1d(self.stages, other.stages),
            data_ranks=np.union1d(self.data_ranks, other.data_ranks),
            lacking=self.lacking + other.lacking,
            lowest=min(self.lowest, other.lowest),
            highest=max(self.highest, other.highest),
            computes=self.computes + other.computes,
            chunk=max(self.chunk, other.chunk),
            global_chunk=max(self.global_chunk, other.global_chunk),
        )

    @property
    def n_stages(self) -> int:
        return int(self.stages[-1]) + 1

    @property
    def numbered(self) -> bool:
        """Whether ``seq_id`` is usable."""
        return not self.lacking and self.highest - self.lowest < MAX_OPERATIONS

    @property
    def shift(self) -> int:
        """Number to subtract from every ``seq_id``."""
        return self.lowest if self.numbered else 0

    @property
    def n_chunks(self) -> int:
        """Model chunks per stage according to the rows."""
        return max(self.chunk, self.global_chunk // self.n_stages) + 1

    def check(self) -> None:
        """Refuse rows that no repair can turn into a job.

        Raises
        ------
        InvalidTrace
            If a stage has no rows, or the trace has no compute.
        """
        if self.stages.size < self.n_stages:
            empty = np.setdiff1d(np.arange(self.n_stages), self.stages)
            raise InvalidTrace(f"pipeline stage(s) {', '.join(map(str, empty[:8]))} have no rows")
        if not self.computes:
            raise InvalidTrace("operation trace has no forward-compute, backward-compute or own-work")


@dataclass(frozen=True)
class TraceFacts:
    """Facts about all rows that the repairs need: how numbers begin, then the renumbered rows."""

    counting: Counting
    rows: RowFacts

    def merged(self, other: TraceFacts) -> TraceFacts:
        """Facts of the rows of both."""
        return TraceFacts(self.counting.merged(other.counting), self.rows.merged(other.rows))

    @property
    def decisions(self) -> tuple[object, ...]:
        """Facts that decide the repair of a row, and the types for which all parts were counted."""
        rows, counting = self.rows, self.counting
        renumbered = counting.from_first, counting.by_start, counting.suspects.tobytes()
        return rows.n_stages, rows.numbered, rows.shift, rows.n_chunks, renumbered


def repaired(trace: OpTrace) -> OpTrace:
    """Leave one numbered row with a model chunk per operation, and check the metadata."""
    facts = RowFacts.of(trace)
    facts.check()
    trace = repaired_rows(trace, facts)
    compute = np.isin(trace.optype, COMPUTE)
    n_chunks = int(trace.chunk[compute].max()) + 1
    return trace.noted(*contradictions(trace.meta, trace.data_ranks, facts.n_stages, n_chunks))


def repaired_rows(trace: OpTrace, facts: RowFacts) -> OpTrace:
    """Repair rows, which may be a part of the trace that `facts` describes, without metadata checks."""
    trace = _one_row_per_operation(_number_operations(trace, facts))
    return with_model_chunks(trace, facts.n_stages, facts.n_chunks)


def _number_operations(trace: OpTrace, facts: RowFacts) -> OpTrace:
    """Number operations by start if ``seq_id`` is unusable: per type, step, rank, data rank and stage."""
    if facts.shift:
        trace.sequence[:] -= facts.shift
        return trace.noted("seq_id does not count from 0: shifted")
    if facts.numbered:
        return trace
    lacking = int((trace.sequence < 0).sum())
    cells = cells_of(trace, slice(None))
    keys: list[npt.NDArray[np.generic]] = [trace.start, *cells]
    order = np.lexsort(keys)
    first = changes(cells, order)
    position = np.arange(trace.n_ops)
    trace.sequence[order] = position - np.maximum.accumulate(np.where(first, position, 0))
    how = ": all operations numbered by start"
    if not facts.lacking:
        return trace.noted(f"seq_id beyond any plausible count{how}")
    return trace.noted(Note((lacking, f" rows without seq_id{how}")))


def operation_keys(trace: OpTrace) -> IntArray:
    """One integer per (step, data rank, stage, type, sequence)."""
    _, step = distinct(trace.step)
    span = int(trace.sequence.max()) + 1
    worker = (step * trace.n_data + trace.data_rank) * trace.n_stages + trace.stage
    return (worker * N_TYPES + trace.optype) * span + trace.sequence


def _one_row_per_operation(trace: OpTrace) -> OpTrace:
    """Fold the ranks of a tensor or context group into one worker; drop repeated rows of one rank."""
    keys = operation_keys(trace)
    size = int(keys.max()) + 1
    if size <= 16 * trace.n_ops + 1_000_000:
        if int(np.bincount(keys, minlength=1).max()) == 1:
            return trace
    elif np.unique(keys).size == keys.size:
        return trace
    order = np.lexsort((trace.start, trace.rank, keys))
    ordered_keys, ordered_rank = keys[order], trace.rank[order]
    same_key = np.append(False, ordered_keys[1:] == ordered_keys[:-1])
    same_row = same_key & np.append(False, ordered_rank[1:] == ordered_rank[:-1])
    notes = []
    if same_row.any():
        repeated = int(same_row.sum())
        notes.append(Note((repeated, " repeated rows of one operation dropped, the earliest kept")))
    order, same_key = order[~same_row], same_key[~same_row]
    first = np.flatnonzero(~same_key)
    if first.size < order.size:
        said = "several traced ranks per (data rank, stage): "
        how = " rows folded into the group's operation, from its last start to its last end"
        notes.append(Note((said, order.size - first.size, how)))
    start = np.maximum.reduceat(trace.start[order], first)
    end = np.maximum.reduceat((trace.start + trace.duration)[order], first)
    folded = trace.rows(order[first], *notes)
    several = np.diff(np.append(first, order.size)) > 1
    # If all members started together, the longest duration is exact. End minus start would be rounded.
    together = np.minimum.reduceat(trace.start[order], first) == start
    longest = np.maximum.reduceat(trace.duration[order], first)
    folded.start[several] = start[several]
    folded.duration[several] = np.where(together, longest, np.maximum(end - start, 0))[several]
    return folded


def contradictions(meta: TraceMeta, data_ranks: IntArray, n_stages: int, n_chunks: int) -> list[str]:
    """Notes on metadata that contradict the rows; the rows are used."""
    seen = {"dp_size": int(data_ranks.max()) + 1, "pp_size": n_stages, "vpp_size": n_chunks}
    notes = [
        f"metadata says {name} {given}, the trace shows {size}: the trace is used"
        for name, size in seen.items()
        if (given := getattr(meta, name)) is not None and given != size
    ]
    if data_ranks.size < seen["dp_size"]:
        absent = np.setdiff1d(np.arange(seen["dp_size"]), data_ranks)
        notes.append(f"data rank(s) {', '.join(map(str, absent[:8]))} have no rows")
    sizes = (meta.dp_size, meta.pp_size, meta.tp_size, meta.dsp_size)
    if meta.world_size is not None and None not in sizes:
        spanned = int(np.prod([size for size in sizes if size is not None]))
        if spanned != meta.world_size:
            notes.append(f"metadata says world_size {meta.world_size}, its sizes span {spanned}")
    return notes
