"""Impossible values are refused with their row, without a traceback or a wrong result."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic_jobs import execute, make_job, table_of
from typer.testing import CliRunner

import rca.cli
from rca.errors import InvalidTrace
from rca.whatif import what_if
from rca.whatif.trace.reader import trace_from_table
from rca.whatif.trace.trace import TraceMeta
from tests.for_each import for_each

JOB = make_job(pp=2, dp=2, microbatches=4)
EXECUTION = execute(JOB, 3)
TABLE = EXECUTION.table
Change = Callable[[pa.Table], pa.Table]


def column(name: str, values: object) -> Change:
    array = values if isinstance(values, pa.Array) else pa.array(values)
    return lambda table: table.set_column(table.schema.get_field_index(name), name, array)


def one(name: str, row: int, value: float, dtype: type = np.float64) -> Change:
    values = TABLE.column(name).to_numpy().astype(dtype)
    values[row] = value
    return column(name, values)


def all_of(name: str, value: object) -> Change:
    return column(name, np.full(TABLE.num_rows, value))


@for_each(
    ("change", "text"),
    [
        (all_of("duration", np.float32(0)), "operations take no time"),
        (column("duration", np.floor(TABLE.column("duration").to_numpy())), "operations take no time"),
        (column("duration", np.zeros(TABLE.num_rows, np.int64)), "operations take no time"),
        (one("duration", 5, 1e6), "row 5 .* takes 1e\\+06 s"),
        (one("duration", 5, 1e6, np.float32), "row 5 .* takes 1e\\+06 s"),
        (one("start_ts", 5, 1e9), "row 5 .* starts then"),
        (one("start_ts", 5, 1e9, np.float32), "row 5 .* starts then"),
        (one("start_ts", 5, -1e9), "begins with row 5 "),
        (one("step", 5, np.inf), "column step holds no whole number in row 5: inf"),
        (one("step", 5, 1e300), "column step holds no whole number in row 5: 1e\\+300"),
        (one("step", 5, 2**63 + 5, np.uint64), "column step holds no whole number in row 5"),
        (one("step", 5, np.nan), "column step is null in 1 row"),
        (column("stage", pa.array([None] + [0] * (TABLE.num_rows - 1))), "column stage is null in 1 row"),
        (all_of("mc", 10**8), "column mc holds 100000000 in row 0"),
        (all_of("mc", 50), "column mc runs to 50, but a stage has only 4 forward-compute"),
        (one("gmc", 5, 10**9), "column gmc holds 1000000000 in row 5"),
        (
            column("optype", [[name] for name in TABLE.column("optype").to_pylist()]),
            "column optype must hold",
        ),
        (column("stage", [{"a": 1}] * TABLE.num_rows), "column stage holds no whole numbers"),
        (lambda t: t.append_column("stage", t.column("stage")), "stage more than once"),
    ],
)
def test_implausible_values_are_refused_with_their_row(change: Change, text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidTrace, match=text):
        what_if(change(TABLE), JOB.meta)
    path = tmp_path / "trace.parquet"
    pq.write_table(change(TABLE), path)
    done = CliRunner().invoke(rca.cli.app, ["what-if", str(path), "--format", "json"])
    assert done.exit_code == 2
    assert json.loads(done.stderr)["code"] == "invalid-trace"


def test_overflowed_data_ranks_get_a_hint() -> None:
    wrapped = np.where(TABLE.column("dp_rank").to_numpy() == 1, -128, 0).astype(np.int8)
    with pytest.raises(InvalidTrace, match="dp_rank holds -128") as refused:
        what_if(column("dp_rank", wrapped)(TABLE), JOB.meta)
    assert refused.value.hint == "dp_rank is too narrow for the job and has overflowed: write it as int32"


def test_traces_in_memory_are_checked_for_zero_durations() -> None:
    trace = trace_from_table(TABLE, TraceMeta.of(JOB.meta))
    instant = replace(trace, duration=np.zeros_like(trace.duration))
    with pytest.raises(InvalidTrace, match=r"operations take no time in step\(s\) 0, 1, 2"):
        what_if(instant)


def test_unknown_types_are_listed_the_commonest_first() -> None:
    names = [f"mystery-{k}" for k in range(20) for _ in range(k + 1)]
    extra = [EXECUTION.rows[0] | {"optype": name} for name in names]
    (note,) = what_if(table_of(EXECUTION.rows + extra), JOB.meta).notes
    assert "launch delay: mystery-19 (20), mystery-18 (19)" in note
    assert "and 4 more types" in note
    with pytest.raises(InvalidTrace, match="known operation type") as refused:
        what_if(table_of(extra), JOB.meta)
    assert "mystery-19 (20)" in str(refused.value.hint)


def test_an_operation_a_thousand_times_longer_than_its_type_gets_a_note() -> None:
    notes = what_if(one("duration", 5, 5000.0)(TABLE), JOB.meta).notes
    assert any(note.startswith("row 5 (") and "takes 5e+03 s" in note for note in notes)


def test_dropped_rows_are_named_by_their_row_number() -> None:
    notes = what_if(one("duration", 5, -1.0)(TABLE), JOB.meta).notes
    assert any("1 rows with a negative or non-finite time dropped, the first is row 5" in n for n in notes)


def test_sparse_float_columns_of_whole_numbers_are_accepted() -> None:
    wide = column("step", TABLE.column("step").to_numpy().astype(np.float64))(TABLE)
    assert what_if(wide, JOB.meta).to_dict() == what_if(TABLE, JOB.meta).to_dict()
