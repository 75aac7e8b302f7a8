"""Skewed clocks: one, several, drifting; and delays that are no skew."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic_jobs import Execution, execute, make_job, rows_of, run, table_of
from typer.testing import CliRunner

import rca.cli
from rca.whatif.analysis import replay_of, what_if
from rca.whatif.graph.clock_offsets import joint_offsets
from tests.for_each import for_each

HERE = Path(os.environ.get("RCA_WHAT_IF_TRACES", "../shared/traces/what-if"))
Row = dict[str, Any]

SHARED: dict[str, Callable[[Row], bool]] = {
    "one worker": lambda row: (row["dp_rank"], row["stage"]) == (1, 2),
    "two stages of a data rank": lambda row: row["dp_rank"] == 2 and row["stage"] < 2,
    "a stage": lambda row: row["stage"] == 2,
    "the last stage": lambda row: row["stage"] == 3,
    "a data rank": lambda row: row["dp_rank"] == 0,
    "two data ranks": lambda row: row["dp_rank"] > 0,
}


@pytest.fixture(scope="module")
def execution() -> Execution:
    return execute(make_job(pp=4, dp=3, microbatches=6), n_steps=9)


def skewed(execution: Execution, seconds: Callable[[Row], float]) -> pa.Table:
    # Away from zero, so that a negative skew does not make the step start earlier than the file says.
    return table_of([row | {"start_ts": row["start_ts"] + 0.1 + seconds(row)} for row in execution.rows])


@for_each("skew", [0.02, -0.02, 0.3])
@for_each("name", SHARED)
def test_a_shared_clock_is_corrected(execution: Execution, name: str, skew: float) -> None:
    right = what_if(execution.table, execution.job.meta)
    found = what_if(skewed(execution, lambda row: skew * SHARED[name](row)), execution.job.meta)
    assert abs(found.slowdown - right.slowdown) < 0.002
    assert found.m_w.exact == pytest.approx(right.m_w.exact, abs=0.02)
    (note,) = found.notes
    assert "corrected" in note
    assert not right.notes


def test_all_clocks_are_corrected_if_all_are_off(execution: Execution) -> None:
    offsets = np.random.default_rng(3).normal(0, 0.01, (3, 4))
    right = what_if(execution.table, execution.job.meta)
    table = skewed(execution, lambda row: float(offsets[row["dp_rank"], row["stage"]]))
    replay = replay_of(table, execution.job.meta)
    assert abs(what_if(replay).slowdown - right.slowdown) < 0.002
    np.testing.assert_allclose(np.ptp(replay.clock - offsets), 0, atol=2.5e-3)
    (note,) = replay.notes
    assert f"{int((replay.clock != 0).sum())} of 12 workers" in note


def test_a_drifting_clock_gets_a_note(execution: Execution) -> None:
    table = skewed(
        execution, lambda row: 0.02 * (row["dp_rank"] == 1 and row["stage"] == 1) * (row["step"] > 5)
    )
    notes = what_if(table, execution.job.meta).notes
    assert any("clocks of 1 of 12 workers move by up to 20." in note for note in notes)
    drifting = skewed(execution, lambda row: 0.004 * row["step"] * (row["stage"] == 1))
    assert any(
        "clocks of 3 of 12 workers move" in note for note in what_if(drifting, execution.job.meta).notes
    )


def test_one_late_collective_is_no_clock_skew() -> None:
    job = make_job(pp=4, dp=2, microbatches=4)
    rows: list[Row] = []
    for step in range(8):
        times = execute(job, 1, seed=step).times[0]
        for stage in range(2):
            times[0]["optimizer-clip-main-grad", 0, stage] += 0.02
        rows += rows_of(job, step, *run(job, times))
    replay = replay_of(table_of(rows), job.meta)
    assert not replay.clock.any()
    assert replay.notes == ()


def test_the_published_format_leaves_clocks_as_traced(execution: Execution, tmp_path: Path) -> None:
    table = skewed(execution, lambda row: 0.02 * (row["stage"] == 2))
    raw = what_if(table, execution.job.meta, correct_clocks=False)
    assert raw.slowdown > what_if(table, execution.job.meta).slowdown + 0.002
    assert raw.notes == ()
    pq.write_table(table, tmp_path / "t.parquet")
    command = ["what-if", str(tmp_path / "t.parquet"), "--format", "published"]
    printed = CliRunner().invoke(rca.cli.app, command)
    assert printed.exit_code == 0
    assert f'"blocking_slowdown": {raw.slowdown}' in printed.stdout


def test_offsets_of_many_workers_are_found() -> None:
    rng = np.random.default_rng(0)
    truth = np.where(rng.random((400, 4)) < 0.1, 0.02, 0.0)
    noise = rng.normal(0, 1e-4, truth.shape)
    gaps = [((s,), True, truth[:, [s]] + noise[:, [s]] + rng.normal()) for s in (0, 1, 2, 3) for _ in (0, 1)]
    gaps += [
        ((s, s + 1), False, truth[:, s : s + 2] + rng.normal(size=(400, 1)))
        for s in (0, 1, 2)
        for _ in (0, 1)
    ]
    gaps += [((0, 1, 2, 3), True, truth + noise)]
    np.testing.assert_allclose(joint_offsets(gaps, 400, 4, 1e-3), truth, atol=1e-3)


@pytest.mark.skipif(not HERE.is_dir(), reason=f"no real traces at {HERE}")
@pytest.mark.parametrize(
    ("name", "column", "value"),
    [("ST", "rank", 3), ("ST", "stage", 3), ("AR", "stage", 2), ("AR", "dp_rank", 2)],
)
def test_real_traces_with_a_skewed_clock(name: str, column: str, value: int) -> None:
    table = pq.read_table(HERE / f"trace-{name}.parquet")
    right = what_if(table)
    start = np.asarray(table.column("start_ts")) + 0.02 * (np.asarray(table.column(column)) == value)
    place = table.schema.get_field_index("start_ts")
    found = what_if(table.set_column(place, "start_ts", pa.array(start.astype(np.float32))))
    assert abs(found.slowdown - right.slowdown) < 0.002
    assert right.notes == ()
