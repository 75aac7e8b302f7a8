"""Row repairs before a trace is arranged: duplicates, tensor ranks, numbering, model chunks, metadata.

Every repair leaves a note with a count. What cannot be repaired without guessing is refused.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rca.errors import InvalidTrace
from rca.whatif.optypes import ALL_GATHER, BACKWARD, FORWARD, N_TYPES, REDUCE_SCATTER
from rca.whatif.trace import OpTrace

IntArray = npt.NDArray[np.int64]

MOST_OPERATIONS = 100_000
"""Of one type in one step of one rank; a larger seq_id is no number of an operation."""


def repaired(trace: OpTrace) -> OpTrace:
    """Leave one numbered row per operation, with model chunks; check the metadata against the rows."""
    _refuse_stage_gaps(trace)
    for repair in (_number_operations, _one_row_per_operation, _fill_chunks):
        trace = repair(trace)
    return trace.noted(*_contradictions(trace))


def _refuse_stage_gaps(trace: OpTrace) -> None:
    held = np.bincount(trace.stage)
    empty = np.flatnonzero(held == 0)
    if empty.size:
        raise InvalidTrace(f"pipeline stage(s) {', '.join(map(str, empty[:8]))} have no rows")


def _number_operations(trace: OpTrace) -> OpTrace:
    """Count by start where the producer did not: per type, step, data rank and stage."""
    lacking = int((trace.sequence < 0).sum())
    if not lacking and int(trace.sequence.min()) > 0:
        trace.sequence[:] -= trace.sequence.min()
        return trace.noted("seq_id does not count from 0: shifted")
    if not lacking and int(trace.sequence.max()) < MOST_OPERATIONS:
        return trace
    keys = (trace.rank, trace.optype, trace.stage, trace.data_rank, trace.step)
    order = np.lexsort((trace.start, *keys))
    changed = np.zeros(trace.n_ops, dtype=bool)
    changed[0] = True
    for key in keys:
        ordered = key[order]
        changed[1:] |= ordered[1:] != ordered[:-1]
    position = np.arange(trace.n_ops)
    numbers = position - np.maximum.accumulate(np.where(changed, position, 0))
    trace.sequence[order] = numbers
    why = f"{lacking} rows without seq_id" if lacking else "seq_id beyond any plausible count"
    return trace.noted(f"{why}: all operations numbered by start")


def operation_keys(trace: OpTrace) -> IntArray:
    """One integer per (step, data rank, stage, type, sequence)."""
    _, step = np.unique(trace.step, return_inverse=True)
    span = int(trace.sequence.max()) + 1
    worker = (step.astype(np.int64) * trace.n_data + trace.data_rank) * trace.n_stages + trace.stage
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
        notes.append(f"{int(same_row.sum())} repeated rows of one operation dropped, the earliest kept")
    order, same_key = order[~same_row], same_key[~same_row]
    first = np.flatnonzero(~same_key)
    if first.size < order.size:
        notes.append(
            f"several traced ranks per (data rank, stage): {order.size - first.size} rows folded into the "
            "group's operation, from its last start to its last end"
        )
    start = np.maximum.reduceat(trace.start[order], first)
    end = np.maximum.reduceat((trace.start + trace.duration)[order], first)
    folded = trace.rows(order[first], *notes)
    several = np.diff(np.append(first, order.size)) > 1
    # Where all members started together the longest duration is exact; end less start would round.
    together = np.minimum.reduceat(trace.start[order], first) == start
    longest = np.maximum.reduceat(trace.duration[order], first)
    folded.start[several] = start[several]
    folded.duration[several] = np.where(together, longest, np.maximum(end - start, 0))[several]
    return folded


def _fill_chunks(trace: OpTrace) -> OpTrace:
    """Model chunks of compute operations and of the gathers and scatters that belong to a chunk."""
    compute = (trace.optype == FORWARD) | (trace.optype == BACKWARD)
    if not compute.any():
        raise InvalidTrace("operation trace has no forward-compute or backward-compute")
    lacking = compute & (trace.chunk < 0)
    sizes = trace.meta.vpp_size or 1
    chunks = (
        max(int(trace.chunk[compute].max()), int(trace.global_chunk[compute].max()) // trace.n_stages) + 1
    )
    chunks = max(chunks, sizes if lacking.any() else 1)
    if lacking.any():
        trace.chunk[lacking] = _missing_chunks(trace, lacking, chunks)
        trace = trace.noted(f"{int(lacking.sum())} compute rows without a model chunk (mc): derived")
    unplaced = compute & (trace.global_chunk < 0)
    trace.global_chunk[unplaced] = trace.chunk[unplaced] * trace.n_stages + trace.stage[unplaced]
    if chunks == 1:
        shared = (trace.chunk < 0) & ((trace.optype == ALL_GATHER) | (trace.optype == REDUCE_SCATTER))
        trace.chunk[shared] = 0
    return trace


def _missing_chunks(trace: OpTrace, lacking: npt.NDArray[np.bool_], chunks: int) -> IntArray:
    """From the chunk within the model where given, else from the interleaved schedule's order."""
    if chunks == 1:
        return np.zeros(int(lacking.sum()), np.int64)
    whole = trace.global_chunk[lacking]
    if (whole >= 0).all():
        return whole // trace.n_stages
    per_chunk = int(trace.sequence[lacking].max()) + 1
    if per_chunk % (chunks * trace.n_stages):
        raise InvalidTrace(
            f"compute rows carry no model chunk, and {per_chunk} operations do not divide into "
            f"{chunks} chunks of {trace.n_stages} stages",
            hint="give the mc or the gmc column",
        )
    forward = trace.sequence[lacking] // trace.n_stages % chunks
    return np.where(trace.optype[lacking] == FORWARD, forward, chunks - 1 - forward)


def _contradictions(trace: OpTrace) -> list[str]:
    """Where the metadata and the rows disagree, the rows are believed and it is said."""
    meta = trace.meta
    compute = (trace.optype == FORWARD) | (trace.optype == BACKWARD)
    seen = {
        "dp_size": int(trace.data_ranks.max()) + 1,
        "pp_size": trace.n_stages,
        "vpp_size": int(trace.chunk[compute].max()) + 1,
    }
    notes = [
        f"metadata says {name} {given}, the trace shows {size}: the trace is believed"
        for name, size in seen.items()
        if (given := getattr(meta, name)) is not None and given != size
    ]
    if trace.n_data < seen["dp_size"]:
        absent = np.setdiff1d(np.arange(seen["dp_size"]), trace.data_ranks)
        notes.append(f"data rank(s) {', '.join(map(str, absent[:8]))} have no rows")
    sizes = (meta.dp_size, meta.pp_size, meta.tp_size, meta.dsp_size)
    if meta.world_size is not None and None not in sizes:
        spanned = int(np.prod([size for size in sizes if size is not None]))
        if spanned != meta.world_size:
            notes.append(f"metadata says world_size {meta.world_size}, its sizes span {spanned}")
    return notes
