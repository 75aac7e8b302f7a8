"""Operation traces of real LLM jobs, seen as a timer around the phases would have seen them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import rca
from rca.window import Window

TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "traces" / "what-if"
PHASES = {
    "forward-compute": "forward_seconds",
    "backward-compute": "backward_seconds",
    "optimizer": "optimizer_seconds",
}
START = 1_700_000_000.0

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"the real traces are not here: {TRACES}")


def as_window(name: str, n_data: int, n_stages: int) -> Window:
    """Phases summed from operations; whatever is neither compute nor optimizer was communication."""
    trace = pq.read_table(TRACES / f"trace-{name}.parquet")
    column = {
        key: trace.column(key).to_numpy() for key in ("dp_rank", "stage", "step", "start_ts", "duration")
    }
    optype = np.asarray(trace.column("optype").to_pylist())
    steps, step = np.unique(column["step"], return_inverse=True)
    cell = (column["stage"].astype(int) * n_data + column["dp_rank"]) * steps.size + step
    n_cells = n_data * n_stages * steps.size
    begin = column["start_ts"].astype(float)
    end = begin + column["duration"]
    first, last = np.full(n_cells, np.inf), np.zeros(n_cells)
    np.minimum.at(first, cell, begin)
    np.maximum.at(last, cell, end)
    # Every step of the published traces counts its time from zero.
    spans = last.reshape(-1, steps.size).max(axis=0)
    shift = np.tile(np.cumsum(spans) - spans, n_data * n_stages)
    columns = {
        phase: np.bincount(cell, column["duration"] * (optype == kind), n_cells)
        for kind, phase in PHASES.items()
    }
    whole = last - first
    columns["communication_seconds"] = np.maximum(whole - sum(columns.values()), 0.0)
    columns["step_seconds"] = whole
    table = pa.table(
        {
            "rank": np.repeat(np.arange(n_data * n_stages, dtype=np.int32), steps.size),
            "step": np.tile(steps.astype(np.int64), n_data * n_stages),
            "start_time": START + shift + first,
            **columns,
        }
    )
    job = {
        "format": 1,
        "job_id": name,
        "world_size": n_data * n_stages,
        "parallelism": {"data": n_data, "pipeline": n_stages},
        "start": START - 1.0,
        "end": START + float(spans.sum()) + 1.0,
    }
    return Window.from_tables(job, table)


def test_the_worker_that_was_slowed_is_named() -> None:
    """Trace AR: one of 16 workers computes two and a half times as long."""
    diagnosis = rca.diagnose(as_window("AR", 4, 4))
    assert diagnosis.failure_mode == "fail_slow"
    assert [suspect.ranks for suspect in diagnosis.stragglers] == [[0]]
    assert diagnosis.stragglers[0].straggler_type == "compute"
    # The published replay, by operation, finds S = 1.97.
    assert diagnosis.slowdown.ratio == pytest.approx(1.97, rel=0.15)


def test_the_stage_that_is_too_long_is_named() -> None:
    """Trace ST: the last pipeline stage computes twice as long forward."""
    diagnosis = rca.diagnose(as_window("ST", 2, 4))
    assert diagnosis.failure_mode == "fail_slow"
    assert [(suspect.ranks, suspect.scope) for suspect in diagnosis.stragglers] == [([6, 7], "stage")]
    assert diagnosis.causes[0].cause == "stage_imbalance"
    assert diagnosis.slowdown.ratio == pytest.approx(1.18, rel=0.15)


def test_without_the_culprit_the_job_is_healthy() -> None:
    """Trace AR without its slowed replica: three replicas that nothing distinguishes."""
    whole = as_window("AR", 4, 4)
    kept = whole.steps.filter(
        pc.not_equal(pc.bit_wise_and(whole.steps.column("rank"), pa.scalar(3, pa.int32())), 0)
    )
    rank = kept.column("rank").to_numpy()
    renumbered = kept.set_column(0, "rank", pa.array((rank // 4 * 3 + rank % 4 - 1).astype(np.int32)))
    waiting = np.asarray(renumbered.column("communication_seconds"))
    usual = 0.3 * np.median(waiting)
    for name in ("communication_seconds", "step_seconds"):
        place = renumbered.column_names.index(name)
        shorter = np.asarray(renumbered.column(name)) - waiting + usual
        renumbered = renumbered.set_column(place, name, pa.array(shorter))
    job = whole.job.model_dump(exclude={"ranks"}) | {
        "world_size": 12,
        "parallelism": {"data": 3, "pipeline": 4},
    }
    diagnosis = rca.diagnose(Window.from_tables(job, renumbered))
    assert diagnosis.failure_mode == "healthy"
