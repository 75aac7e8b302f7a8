"""Timeline of one step, real and ideal, in the trace-event format that Perfetto opens."""

from __future__ import annotations

from typing import Any

import numpy as np

from rca.arrays import FloatArray, IntArray
from rca.errors import InvalidInput
from rca.whatif.graph.replay import end_times
from rca.whatif.graph.trace_replay import ShapeReplay, TraceReplay
from rca.whatif.optypes import (
    ALL_GATHER,
    BACKWARD_RECV,
    BACKWARD_SEND,
    CLIP,
    COLLECTIVE,
    COMPUTE,
    EMBEDDING,
    FORWARD_RECV,
    FORWARD_SEND,
    GC,
    LAYERNORM,
    NAMES,
    OPTIMIZER,
    REDUCE_SCATTER,
    SEPARATE_ALL_REDUCE,
)

STREAMS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("compute", COMPUTE),
    ("forward send", (FORWARD_SEND,)),
    ("forward recv", (FORWARD_RECV,)),
    ("backward send", (BACKWARD_SEND,)),
    ("backward recv", (BACKWARD_RECV,)),
    ("parameter gathers and gradient scatters", (ALL_GATHER, REDUCE_SCATTER)),
    ("gradient all-reduces", (SEPARATE_ALL_REDUCE, LAYERNORM, EMBEDDING, CLIP)),
    ("garbage collection", (GC,)),
    ("optimizer", (OPTIMIZER,)),
    ("collectives", (COLLECTIVE,)),
)
"""One track per stream. A stream with overlapping operations gets more tracks."""

RESOLUTION = 10
"""Microseconds. Single-precision times of one chain may overlap by this much."""

TRACKS = 100
"""Thread numbers reserved for each stream."""

MAX_WORKERS = 64
"""Workers in a timeline. In larger jobs the slowest data ranks are kept."""


def timeline(replay: TraceReplay, step: int | None = None) -> dict[str, Any]:
    """One step as traced, and as it would be without stragglers.

    Parameters
    ----------
    step : int, optional
        Training step; by default the step with the median measured time.

    Returns
    -------
    dict
        Trace events: one process per worker and variant, one thread per stream of operations. Times are
        whole microseconds. Slices of one thread never overlap. `start` and `end` of a slice are the exact
        seconds. A transfer may end up to 10 ms before its own start; its slice has no width. A slice that
        starts within 10 us of the previous end is drawn from that end.

    Raises
    ------
    InvalidInput
        If the step was not replayed.
    """
    if step is None:
        step = int(replay.steps[np.argsort(replay.measured, kind="stable")[replay.steps.size // 2]])
    part, column = _find(replay, step)
    shape = part.shape
    real_start = shape.start[:, :, column].astype(np.float64)
    real_end = real_start + shape.duration[:, :, column]
    work = np.broadcast_to(part.ideal[:, None, None], (shape.n_ops, shape.n_data, 1))
    ideal_start, ideal_end = (times[:, :, 0] for times in end_times(part.graph, work))
    kept = _slowest_data_ranks(part, column, max(1, MAX_WORKERS // replay.n_stages))
    origin = float(np.nanmin(real_start))
    events: list[dict[str, Any]] = []
    for variant, (name, start, end) in enumerate(
        (("real", real_start - origin, real_end - origin), ("ideal", ideal_start, ideal_end))
    ):
        for data_rank in kept:
            for stage in range(replay.n_stages):
                pid = 1 + (variant * replay.n_data + int(data_rank)) * replay.n_stages + stage
                rank = int(replay.ranks[data_rank, stage])
                title = f"{name}: rank {rank} (data rank {replay.data_ranks[data_rank]}, stage {stage})"
                events += _labels(pid, title)
                events += _slices(part, stage, pid, start[:, data_rank], end[:, data_rank])
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"step": step}}


def _find(replay: TraceReplay, step: int) -> tuple[ShapeReplay, int]:
    for part in replay.parts:
        at = np.flatnonzero(part.shape.steps == step)
        if at.size:
            return part, int(at[0])
    raise InvalidInput(
        f"step {step} was not replayed", hint=f"steps run from {replay.steps[0]} to {replay.steps[-1]}"
    )


def _slowest_data_ranks(part: ShapeReplay, column: int, count: int) -> IntArray:
    compute = np.isin(part.shape.optype, COMPUTE)
    busy = np.nansum(part.shape.duration[compute][:, :, column], axis=0)
    return np.sort(np.argsort(-busy, kind="stable")[:count])


def _labels(pid: int, title: str) -> list[dict[str, Any]]:
    return [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": title}},
        {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}},
    ]


def _slices(
    part: ShapeReplay,
    stage: int,
    pid: int,
    start: FloatArray,
    end: FloatArray,
) -> list[dict[str, Any]]:
    shape = part.shape
    known = (shape.stage == stage) & np.isfinite(start) & np.isfinite(end)
    events: list[dict[str, Any]] = []
    for lane, (name, optypes) in enumerate(STREAMS):
        ops = np.flatnonzero(known & np.isin(shape.optype, optypes))
        begin = np.rint(start[ops] * 1e6).astype(np.int64)
        until = np.maximum(np.rint(end[ops] * 1e6).astype(np.int64), begin)
        tracks = _tracks(begin, until)
        for track in range(int(tracks.max(initial=0)) + 1):
            label = f"{name} ({track + 1})" if track else name
            tid = 1 + lane * TRACKS + track
            events += [
                {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": label}},
                {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}},
            ]
        events += [
            {
                "ph": "X",
                "name": NAMES[shape.optype[op]],
                "pid": pid,
                "tid": 1 + lane * TRACKS + int(tracks[k]),
                "ts": int(begin[k]),
                "dur": int(until[k] - begin[k]),
                "args": {
                    "seq_id": int(shape.sequence[op]),
                    "microbatch": int(shape.microbatch[op]),
                    "start": round(float(start[op]), 7),
                    "end": round(float(end[op]), 7),
                },
            }
            for k, op in enumerate(ops)
        ]
    return events


def _tracks(begin: IntArray, until: IntArray) -> IntArray:
    """Track of each slice: the first track that is free at its begin.

    A track counts as free if it ends within `RESOLUTION` after the begin. The begin is then moved, in place.
    """
    tracks = np.zeros(begin.size, np.int64)
    free: list[int] = []
    for k in np.lexsort((until, begin)):
        track = next((t for t, at in enumerate(free) if at - begin[k] <= RESOLUTION), len(free))
        if track == len(free):
            free.append(int(begin[k]))
        begin[k] = max(int(begin[k]), free[track])
        until[k] = max(int(until[k]), int(begin[k]))
        free[track] = int(until[k])
        tracks[k] = track
    return tracks
