"""A timeline of the real and of the ideal job, in the trace-event format that Perfetto opens."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rca.errors import InvalidInput
from rca.whatif.optypes import BACKWARD_RECV, BACKWARD_SEND, COMPUTE, FORWARD_RECV, FORWARD_SEND, NAMES
from rca.whatif.replay import end_times
from rca.whatif.schedules import DATA_COLLECTIVES
from rca.whatif.trace_replay import ShapeReplay, TraceReplay

LANES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("compute", COMPUTE),
    ("forward send", (FORWARD_SEND,)),
    ("forward recv", (FORWARD_RECV,)),
    ("backward send", (BACKWARD_SEND,)),
    ("backward recv", (BACKWARD_RECV,)),
    ("gradients and parameters", DATA_COLLECTIVES),
)
TAIL_LANE = "end of step"
MOST_WORKERS = 64
"""More rows than a viewer shows at once; the slowest data ranks are kept."""


def timeline(replay: TraceReplay, step: int | None = None) -> dict[str, Any]:
    """One step as traced and as it would be without stragglers.

    Parameters
    ----------
    replay : TraceReplay
    step : int, optional
        Training step; the one with the median measured time if not given.

    Returns
    -------
    dict
        Trace events: a process per worker and variant, a thread per kind of operation.

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
    kept = _slowest_data_ranks(part, column, max(1, MOST_WORKERS // replay.n_stages))
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


def _slowest_data_ranks(part: ShapeReplay, column: int, count: int) -> npt.NDArray[np.int64]:
    compute = np.isin(part.shape.optype, COMPUTE)
    busy = np.nansum(part.shape.duration[compute][:, :, column], axis=0)
    return np.sort(np.argsort(-busy, kind="stable")[:count])


def _lane(optype: int) -> int:
    for lane, (_, held) in enumerate(LANES):
        if optype in held:
            return lane
    return len(LANES)


def _labels(pid: int, title: str) -> list[dict[str, Any]]:
    names = [*(name for name, _ in LANES), TAIL_LANE]
    return [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": title}},
        {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}},
        *(
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": lane + 1, "args": {"name": name}}
            for lane, name in enumerate(names)
        ),
    ]


def _slices(
    part: ShapeReplay,
    stage: int,
    pid: int,
    start: npt.NDArray[np.float64],
    end: npt.NDArray[np.float64],
) -> list[dict[str, Any]]:
    shape = part.shape
    slices = []
    for op in np.flatnonzero(shape.stage == stage):
        if not np.isfinite(start[op]):
            continue
        slices.append(
            {
                "ph": "X",
                "name": NAMES[shape.optype[op]],
                "pid": pid,
                "tid": _lane(int(shape.optype[op])) + 1,
                "ts": round(float(start[op]) * 1e6, 1),
                "dur": round(max(float(end[op] - start[op]), 0.0) * 1e6, 1),
                "args": {"seq_id": int(shape.sequence[op]), "microbatch": int(shape.microbatch[op])},
            }
        )
    return slices
