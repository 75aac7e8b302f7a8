"""Model chunks of operations without one: derived from other columns, or refused.

Replaying an interleaved schedule (several model chunks per stage) as one chunk gives a wrong graph
without any sign of the mistake. Therefore one chunk is never assumed: some column must show it.
"""

from __future__ import annotations

import numpy as np

from rca.arrays import BoolArray, IntArray
from rca.errors import InvalidTrace
from rca.whatif.optypes import (
    ALL_GATHER,
    BACKWARD_RECV,
    BACKWARD_SEND,
    COMPUTE,
    FORWARD,
    FORWARD_RECV,
    FORWARD_SEND,
    N_TYPES,
    POINT_TO_POINT,
    REDUCE_SCATTER,
)
from rca.whatif.trace.operation_numbers import changes
from rca.whatif.trace.trace import Note, OpTrace

MAX_CHUNKS = 16
"""Chunks per stage looked for in the order of the rows."""


def with_model_chunks(trace: OpTrace, n_stages: int, named: int) -> OpTrace:
    """Give every compute its chunk, and every gather and scatter the chunk it belongs to.

    Parameters
    ----------
    trace : OpTrace
        One numbered row per operation.
    named : int
        Chunks per stage according to ``mc`` or ``gmc`` of the whole trace; 0 if both are absent.

    Raises
    ------
    InvalidTrace
        If no column shows the chunks.
    """
    compute = np.isin(trace.optype, COMPUTE)
    if not compute.any():
        return trace
    lacking = compute & (trace.chunk < 0)
    if lacking.any():
        how = _give_chunks(trace, lacking, n_stages, named)
        trace = trace.noted(Note((int(lacking.sum()), f" compute rows without a model chunk (mc): {how}")))
    unplaced = compute & (trace.global_chunk < 0)
    trace.global_chunk[unplaced] = trace.chunk[unplaced] * n_stages + trace.stage[unplaced]
    return _collectives(trace, max(named, int(trace.chunk[compute].max()) + 1))


def _give_chunks(trace: OpTrace, lacking: BoolArray, n_stages: int, named: int) -> str:
    """Fill the chunks of the lacking rows in place; returns their origin for the note."""
    placed = lacking & (trace.global_chunk >= 0)
    trace.chunk[placed] = trace.global_chunk[placed] // n_stages
    known = np.isin(trace.optype, COMPUTE) & (trace.chunk >= 0)
    left = lacking & ~placed
    if left.any() and known.any():
        trace.chunk[left] = _of_the_same_operation(trace, known, left)
        left &= trace.chunk < 0
    if not left.any():
        return "derived from gmc" if known.any() and placed.any() else "derived from other cells"
    if (trace.microbatch[left] >= 0).all() and not known.any():
        trace.chunk[left] = _by_microbatch(trace, left)
        return "derived from how often each mb_id occurs"
    n_chunks = named if named else _shown_by_order(trace, left, n_stages)
    trace.chunk[left] = _interleaved(trace, left, n_chunks, n_stages)
    return "derived, one chunk per stage" if n_chunks == 1 else f"derived, {n_chunks} interleaved chunks"


def _operation(trace: OpTrace) -> IntArray:
    """One integer per (stage, type, sequence)."""
    return (trace.stage * N_TYPES + trace.optype) * (int(trace.sequence.max()) + 1) + trace.sequence


def _of_the_same_operation(trace: OpTrace, known: BoolArray, wanted: BoolArray) -> IntArray:
    """The chunk of the known rows of the same operation; -1 if there is none."""
    operation = _operation(trace)
    keys, first = np.unique(operation[known], return_index=True)
    values = trace.chunk[known][first]
    at = np.minimum(np.searchsorted(keys, operation[wanted]), keys.size - 1)
    return np.where(keys[at] == operation[wanted], values[at], -1)


def _by_microbatch(trace: OpTrace, rows: BoolArray) -> IntArray:
    """Chunks from microbatches: a microbatch passes a stage once per chunk.

    Its k-th forward is chunk k; backwards count from the last chunk. Workers that lack a row get the chunk
    from the other workers.
    """
    at = np.flatnonzero(rows)
    keys = (trace.microbatch[at], trace.optype[at], trace.stage[at], trace.data_rank[at], trace.step[at])
    order = np.lexsort((trace.sequence[at], *keys))
    starts = np.flatnonzero(changes(keys, order))
    size = np.diff(np.append(starts, at.size))
    n_chunks = int(np.bincount(size).argmax())
    occurrence = np.arange(at.size) - np.repeat(starts, size)
    forward = trace.optype[at][order] == FORWARD
    chunk = np.where(forward, occurrence, n_chunks - 1 - occurrence)
    whole = np.repeat(size == n_chunks, size)
    found = np.full(at.size, -1)
    found[order] = np.where(whole, chunk, -1)
    if not whole.all():
        filled = trace.chunk.copy()
        filled[at] = found
        known, wanted = rows & (filled >= 0), rows & (filled < 0)
        trace.chunk[at] = found
        found[wanted[at]] = _of_the_same_operation(trace, known, wanted)
        trace.chunk[at] = -1
    if (found < 0).any():
        raise InvalidTrace(
            f"compute rows carry no model chunk, and mb_id occurs {int(size.min())} to {int(size.max())} "
            "times per stage: the chunks are ambiguous",
            hint="give the mc or the gmc column",
        )
    return found


def _shown_by_order(trace: OpTrace, rows: BoolArray, n_stages: int) -> int:
    """Chunks per stage on which transfers, warm-up and metadata agree."""
    declared = trace.meta.vpp_size
    if n_stages == 1:
        return declared or 1
    transfers = np.isin(trace.optype, POINT_TO_POINT)
    first, last = trace.stage == 0, trace.stage == n_stages - 1
    # With several chunks the last stage sends to stage 0. With one chunk it does not.
    around = (first & np.isin(trace.optype, (FORWARD_RECV, BACKWARD_SEND))) | (
        last & np.isin(trace.optype, (FORWARD_SEND, BACKWARD_RECV))
    )
    if transfers.any() and not around.any():
        return 1
    fitting = _fitting_warm_up(trace, rows, n_stages)
    if declared is not None and (not fitting or declared in fitting):
        return declared
    if declared is None and len(fitting) == 1:
        return fitting[0]
    shown = " or ".join(map(str, fitting)) if fitting else "no schedule of this kind"
    claimed = "" if declared is None else f" while the metadata says vpp_size {declared}"
    raise InvalidTrace(
        f"compute rows carry no model chunk, and their order shows {shown} per stage{claimed}",
        hint="give the mc, gmc or mb_id column, or vpp_size in the metadata",
    )


def _fitting_warm_up(trace: OpTrace, rows: BoolArray, n_stages: int) -> list[int]:
    """Numbers of chunks whose 1F1B schedule has the traced number of forwards before the first backward.

    Returns
    -------
    list of int
        Numbers that fit every stage.
    """
    at = np.flatnonzero(rows)
    place = (trace.step[at] - trace.step.min()) * trace.n_data + trace.data_rank[at]
    cells, cell = np.unique(place * n_stages + trace.stage[at], return_inverse=True)
    forward = trace.optype[at] == FORWARD
    first = np.full(cells.size, np.inf)
    np.minimum.at(first, cell[~forward], trace.start[at[~forward]])
    counts = np.bincount(cell[forward & (trace.start[at] < first[cell])], minlength=cells.size)
    total = int(trace.sequence[at].max()) + 1
    seen = np.array([np.median(counts[cells % n_stages == stage]) for stage in np.unique(trace.stage[at])])
    if seen.size < n_stages:
        return []
    stage = np.arange(n_stages)
    fitting = []
    for n_chunks in range(1, MAX_CHUNKS + 1):
        if n_chunks > 1 and total % (n_chunks * n_stages):
            continue
        ahead = n_stages - stage - 1
        warm = ahead + 1 if n_chunks == 1 else 2 * ahead + (n_chunks - 1) * n_stages + 1
        if np.array_equal(np.minimum(warm, total), seen):
            fitting.append(n_chunks)
    return fitting


def _interleaved(trace: OpTrace, rows: BoolArray, n_chunks: int, n_stages: int) -> IntArray:
    """Chunks in the order of an interleaved schedule: each chunk runs one microbatch per stage in a row."""
    if n_chunks == 1:
        return np.zeros(int(rows.sum()), np.int64)
    total = int(trace.sequence[rows].max()) + 1
    if total % (n_chunks * n_stages):
        raise InvalidTrace(
            f"compute rows carry no model chunk, and {total} operations do not divide into "
            f"{n_chunks} chunks of {n_stages} stages",
            hint="give the mc or the gmc column",
        )
    forward = trace.sequence[rows] // n_stages % n_chunks
    return np.where(trace.optype[rows] == FORWARD, forward, n_chunks - 1 - forward)


def _collectives(trace: OpTrace, n_chunks: int) -> OpTrace:
    """Gathers follow the order of the chunks, scatters the reverse order, equally many per chunk."""
    notes = []
    for optype in (ALL_GATHER, REDUCE_SCATTER):
        rows = (trace.optype == optype) & (trace.chunk < 0)
        if not rows.any():
            continue
        total = int(trace.sequence[trace.optype == optype].max()) + 1
        if total % n_chunks:
            notes.append("gathers or scatters do not divide into the model chunks: not tied to computes")
            continue
        if n_chunks > 1:
            notes.append("gathers or scatters without a model chunk (mc): given one by their order")
        chunk = trace.sequence[rows] // (total // n_chunks)
        trace.chunk[rows] = chunk if optype == ALL_GATHER else n_chunks - 1 - chunk
    return trace.noted(*dict.fromkeys(notes))
