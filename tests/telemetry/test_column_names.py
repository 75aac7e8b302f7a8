"""Columns of steps by the names and units that people give them, in files, data frames, rows and bodies."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

import rca
from rca.errors import InvalidInput
from rca.window.rows.column_names import ColumnName, column_names
from rca.window.schema import METRICS, STEPS, TableSpec
from tests.for_each import for_each


@for_each(
    ("sent", "meant", "unit"),
    [
        ("Rank", "rank", None),
        ("globalRank", "rank", None),
        ("Iteration", "step", None),
        ("batch", "step", None),
        ("batch_time", "step_seconds", None),
        ("iter_time_ms", "step_seconds", 1e-3),
        ("Step Time (ms)", "step_seconds", 1e-3),
        ("stepTimeUs", "step_seconds", 1e-6),
        ("elapsed_time_per_iteration_ms", "step_seconds", 1e-3),
        ("ms_per_step", "step_seconds", 1e-3),
        ("duration", "step_seconds", None),
        ("Forward Seconds", "forward_seconds", 1.0),
        ("fwd_ms", "forward_seconds", 1e-3),
        ("data_time", "data_loading_seconds", None),
        ("AllReduce [ms]", "communication_seconds", 1e-3),
        ("timestamp_ms", "start_time", 1e-3),
        ("hostname", "node", None),
        ("time", "time", None),
        ("elapsed_seconds", "elapsed_seconds", None),
        ("loss", "loss", None),
    ],
)
def test_a_name_has_a_meaning_and_a_unit(sent: str, meant: str, unit: float | None) -> None:
    assert column_names(STEPS, [sent]) == [ColumnName(meant, unit)]


@for_each(
    ("spec", "names", "meant"),
    [
        (STEPS, ["step", "global_step"], ["step", "global_step"]),
        (STEPS, ["global_step", "iteration"], ["step", "iteration"]),
        (METRICS, ["timestamp", "Hostname", "metric", "value"], ["time", "node", "name", "value"]),
    ],
)
def test_of_two_names_with_one_meaning_one_gets_it(
    spec: TableSpec, names: list[str], meant: list[str]
) -> None:
    assert [name for name, _ in column_names(spec, names)] == meant


def frame() -> pd.DataFrame:
    rows = [(rank, step) for step in range(30) for rank in range(4)]
    held = pd.DataFrame(rows, columns=["Rank", "Iteration"])
    held["Iter Time (ms)"] = 500.0
    held["forward_time"] = held["Rank"].map({2: 350.0}).fillna(300.0)
    held["comm_time"] = 500.0 - held["forward_time"]
    held["hostname"] = "node-" + (held["Rank"] // 2).astype(str)
    return held


def as_csv() -> bytes:
    return frame().to_csv().encode()


@for_each(
    "given",
    [
        frame(),
        frame().to_dict("records"),
        pa.Table.from_pandas(frame()),
        as_csv(),
        gzip.compress(as_csv()),
        io.BytesIO(as_csv()),
    ],
)
def test_a_table_is_read_and_diagnosed_whatever_holds_it(given: object) -> None:
    window = rca.read_window(given)
    # A duration without a unit has that of the step.
    assert window.steps.column("forward_seconds")[2].as_py() == pytest.approx(0.35)
    assert window.job.topology.nodes_of([2, 3]) == ["node-1"]
    answer = rca.diagnose(window)
    assert (answer.failure_mode, answer.stragglers[0].ranks) == ("fail_slow", [2])


def test_a_json_window_has_the_same_names() -> None:
    columns = {name: list(values) for name, values in frame().drop(columns="hostname").items()}
    columns["timestamp"] = [step / 2 for step in columns["Iteration"]]
    job = {"job_id": "mine", "world_size": 4, "start": 0.0, "end": 15.0}
    window = rca.read_window(json.dumps({"job": job, "steps": columns}).encode())
    assert window.steps.column("step_seconds").to_pylist() == [0.5] * 120
    columns["Iter Time (ms)"][7] = "oops"
    with pytest.raises(InvalidInput, match=r"Iter Time \(ms\): contains a str.*row=7"):
        rca.read_window(json.dumps({"job": job, "steps": columns}).encode())


def test_a_file_is_read_like_its_frame(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_bytes(as_csv())
    assert rca.read_window(path).steps.equals(rca.read_window(frame()).steps)


def test_a_bad_cell_of_a_frame_is_named_with_its_row() -> None:
    mixed = frame().astype({"Iter Time (ms)": object})
    mixed.loc[7, "Iter Time (ms)"] = "oops"
    for given in (mixed, mixed.to_dict("records"), mixed.astype({"Iter Time (ms)": str})):
        with pytest.raises(InvalidInput, match=r"Iter Time \(ms\): holds what is no number.*row=7.*'oops'"):
            rca.read_window(given)


@for_each(
    ("columns", "message"),
    [
        (["worker", "batch", "time"], "no column is step_seconds; the columns are worker, batch, time"),
        (["a"], "no column is"),
    ],
)
def test_a_table_without_a_needed_column_is_refused_by_it(
    columns: list[str], message: str, tmp_path: Path
) -> None:
    held = pd.DataFrame([[0] * len(columns)], columns=columns)
    held.to_csv(tmp_path / "times.csv", index=False)
    for given in (held, tmp_path / "times.csv"):
        with pytest.raises(InvalidInput, match=message):
            rca.read_window(given)


def test_what_is_no_window_is_refused_with_the_way_to_make_one() -> None:
    with pytest.raises(InvalidInput, match="a DataFrame is no window") as refused:
        rca.diagnose(frame())  # type: ignore[arg-type]
    assert "rca.read_window" in str(refused.value.hint)
