"""CSV, JSON lines, data frames and rows become a window; what cannot is refused by name."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import rca
from rca.errors import InvalidInput, InvalidWindow, TooLarge
from rca.sources import table_text
from rca.sources.registry import source_of
from tests.for_each import for_each

BEGIN = datetime(2026, 3, 21, 2, 7, 8, tzinfo=UTC)
JOB = {"job_id": "mine", "world_size": 4, "start": BEGIN.timestamp(), "end": BEGIN.timestamp() + 40}


def rows(n_ranks: int = 4, n_steps: int = 40, slow: int | None = None) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank,
            "step": step,
            "start_time": (BEGIN + timedelta(seconds=step)).isoformat(),
            "step_ms": 1000.0,
            "forward_ms": 700.0 if rank == slow else 500.0 + (rank + step) % 3,
            "communication_ms": 300.0 if rank == slow else 500.0 - (rank + step) % 3,
        }
        for rank in range(n_ranks)
        for step in range(n_steps)
    ]


def csv(content: list[dict[str, Any]], separator: str = ",") -> str:
    lines = [separator.join(content[0])]
    lines += [separator.join(str(value) for value in row.values()) for row in content]
    return "\n".join(lines) + "\n"


def json_lines(content: list[dict[str, Any]]) -> str:
    return "\n".join(json.dumps(row) for row in content) + "\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("steps.csv", csv(rows(slow=2))),
        ("steps.tsv", csv(rows(slow=2), "\t")),
        ("steps.txt", "\ufeff" + csv(rows(slow=2), ";")),
        ("steps.jsonl", json_lines(rows(slow=2))),
    ],
)
def test_a_file_of_steps_is_diagnosed(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    window = rca.read_window(path)
    assert (window.job.world_size, window.steps.num_rows) == (4, 160)
    assert window.job.start == BEGIN.timestamp()
    assert window.job.end == pytest.approx(BEGIN.timestamp() + 40)
    assert "steps: forward_ms (milliseconds) is read as forward_seconds" in window.notes
    answer = rca.diagnose(window)
    assert (answer.failure_mode, answer.stragglers[0].ranks) == ("fail_slow", [2])


def test_a_folder_has_one_file_per_rank_and_metrics(tmp_path: Path) -> None:
    for rank in range(3):
        own = [row for row in rows(3) if row["rank"] == rank]
        (tmp_path / f"rank_{rank}.csv").write_text(csv(own))
    sample = {
        "time": "2026-03-21T02:07:10Z",
        "node": 7,
        "rank": 1,
        "name": "DCGM_FI_DEV_SM_CLOCK",
        "value": 1755,
    }
    (tmp_path / "metrics.csv").write_text(csv([sample]))
    window = rca.read_window(tmp_path)
    assert (window.job.world_size, window.steps.num_rows) == (3, 120)
    assert window.metrics.to_pylist()[0]["node"] == "7"
    assert window.metrics.to_pylist()[0]["time"] == BEGIN.timestamp() + 2


def test_metrics_without_ranks_count_nodes(tmp_path: Path) -> None:
    samples = [
        {"time": BEGIN.timestamp() + second, "node": node, "name": "node_load1", "value": 1.0}
        for node in ("b", "a")
        for second in range(5)
    ]
    (tmp_path / "metrics.csv").write_text(csv(samples))
    window = rca.read_window(tmp_path / "metrics.csv")
    assert window.job.world_size == 2
    assert list(window.job.topology.node_names) == ["a", "b"]
    assert any("each node counts as one rank" in note for note in window.notes)


@for_each(
    "header",
    [
        "Rank,step,start_time,step_time",
        "global_rank,Iteration,start_time,iter_time_ms",
        "rank_id;iter;start_time;STEP_TIME_MS",
    ],
)
def test_usual_names_of_columns_are_those_of_the_format(tmp_path: Path, header: str) -> None:
    unit = 1e3 if "ms" in header.lower() else 1.0
    separator = ";" if ";" in header else ","
    rows = [(rank, step, BEGIN.timestamp() + step, 0.5 * unit) for rank in (0, 1) for step in range(3)]
    text = "\n".join([header, *(separator.join(map(str, row)) for row in rows)])
    (tmp_path / "steps.csv").write_text(text)
    window = rca.read_window(tmp_path / "steps.csv")
    assert window.steps.column("step_seconds").to_pylist() == [0.5] * 6
    assert window.job.world_size == 2


def test_steps_without_times_follow_one_another(tmp_path: Path) -> None:
    """One file per rank; rank 1 takes longer, and all ranks wait for it."""
    for rank in (0, 1):
        rows = [f"{rank},{step},{0.5 + rank}" for step in range(3)]
        (tmp_path / f"rank{rank}.csv").write_text("\n".join(["rank,step,step_time", *rows]))
    window = rca.read_window(tmp_path)
    assert window.steps.column("start_time").to_pylist() == [0.0, 1.5, 3.0] * 2
    assert any("no start_time" in note for note in window.notes)


@for_each("unit", [1e3, 1e6, 1e9])
def test_unix_times_in_smaller_units_are_read_as_seconds(tmp_path: Path, unit: float) -> None:
    path = tmp_path / "steps.csv"
    rows = [f"{rank},{step},{int((1774058828 + step) * unit)},0.5" for step in range(3) for rank in (0, 1)]
    path.write_text("\n".join(["rank,iter,ts,step_time", *rows]))
    window = rca.read_window(path)
    assert window.steps.column("start_time").to_numpy()[0] == pytest.approx(1774058828, abs=1)
    assert window.steps.column("step_seconds").to_pylist() == [0.5] * 6
    assert any("start_time is read as" in note for note in window.notes)


@for_each(
    ("text", "message"),
    [
        ("rank,step,ts,step_ms\n0,1,1774058828,5\n1,1,1774058828000,5\n0,2,1774058829,5\n", "year 5000"),
        (
            "rank,step,start_time,iter_time_ms\n0,1,5,oops\n",
            "line 2, column iter_time_ms: 'oops' is no number",
        ),
        ("rank,step,step_ms\n0,one,5\n", "line 2, column step: 'one' is no number"),
        (
            "rank,step,start_time\n0,1,5\n",
            "no column is step_seconds; the columns are rank, step, start_time",
        ),
        ("rank,step,start_time,step_ms\n", "names of columns, and no row"),
        ("rank,step,start_time,step_ms\n0,1,2026-03-21T02:07:08Z\n", "no complete table"),
        ("rank,step,start_time,step_ms\n0,1,yesterday,5\n", "start_time: is no time"),
        ("rank,step,start_time,step_ms\nx,1,2026-03-21T02:07:08Z,5\n", "rank"),
        ("rank,step,start_time,step_ms\n0,1,2026-03-21T02:07:08Z,-5\n", "negative"),
        ("rank,step,start_time,step_ms\n" + "9" * 12 + ",1,2026-03-21T02:07:08Z,5\n", "rank"),
        ("rank,step,start_time,step_ms\n0,1,,5\n", "no time in any row"),
        ('{"rank": 0, "step": 1, "start_time": 5, "step_ms": 5}\n{"rank": \n', "no complete table"),
    ],
)
def test_unusable_files_are_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=rf"steps\.csv(?s:.*){message}"):
        rca.read_window(path)


def test_values_after_the_first_block_may_have_fractions_or_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_text, "MAX_ROW_BYTES", 256)
    lines = ["rank,step,start_time,step_ms,forward_ms,remark"]
    lines += [f"0,{step},2026-03-21T02:07:{step:02d}Z,5,," for step in range(20)]
    lines += [f"0,{step},2026-03-21T02:07:{step:02d}.250Z,5.5,2.5,slow" for step in range(20, 40)]
    path = tmp_path / "steps.csv"
    path.write_text("\n".join(lines) + "\n")
    steps = rca.read_window(path).steps.to_pylist()
    assert (steps[0]["step_seconds"], steps[39]["step_seconds"]) == (0.005, 0.0055)
    assert (steps[39]["forward_seconds"], steps[39]["start_time"] % 1) == (0.0025, 0.25)
    path.write_text("\n".join([*lines, "0,40,2026-03-21T02:07:40Z,five,,"]) + "\n")
    with pytest.raises(InvalidInput, match=r"steps\.csv: line 42, column step_ms: 'five' is no number"):
        rca.read_window(path)


@pytest.mark.parametrize("write", [csv, json_lines])
def test_more_rows_than_the_limit_are_refused_by_name(tmp_path: Path, monkeypatch: Any, write: Any) -> None:
    monkeypatch.setattr(table_text, "MAX_ROWS", 100)
    for rank in range(4):
        own = [row for row in rows() if row["rank"] == rank]
        (tmp_path / f"rank_{rank}.csv").write_text(write(own))
    with pytest.raises(
        TooLarge, match=r"rank_2\.csv has more than 20 rows; .* all tables is 100 rows"
    ) as refused:
        rca.read_window(tmp_path)
    assert "shorter time" in str(refused.value.hint)


def test_windows_and_other_csv_are_no_tables(tmp_path: Path, real_windows: Path) -> None:
    path = tmp_path / "window.json"
    path.write_bytes(rca.read_window(real_windows / "healthy").to_json())
    assert source_of(path) is None
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InvalidInput, match="no line is of a known kind"):
        rca.read_window(path)


def test_frames_and_rows_are_taken_as_tables() -> None:
    frame = pd.DataFrame(rows())
    frame["start_time"] = pd.to_datetime(frame["start_time"])
    plain = rca.Window.from_tables(JOB, steps=pa.Table.from_pylist(rows()))
    for given in (rows(), frame):
        window = rca.Window.from_tables(JOB, steps=given)
        assert window.steps.to_pylist() == plain.steps.to_pylist()
    assert plain.steps.column("start_time")[1].as_py() == BEGIN.timestamp() + 1
    assert plain.steps.column("step_seconds")[1].as_py() == 1.0


def test_times_without_a_zone_are_noted_and_durations_are_read() -> None:
    frame = pd.DataFrame(rows()).drop(columns="step_ms")
    frame["start_time"] = pd.to_datetime(frame["start_time"]).dt.tz_localize(None)
    frame["step_seconds"] = pd.to_timedelta(1.5, unit="s")
    window = rca.Window.from_tables(JOB, steps=frame)
    assert "steps: start_time has no zone and is taken for UTC" in window.notes
    assert window.steps.column("start_time")[0].as_py() == BEGIN.timestamp()
    assert window.steps.column("step_seconds")[0].as_py() == 1.5


@for_each(
    ("steps", "message"),
    [
        (5, "is a int"),
        ([], "is a list"),
        ([3], "is a list"),
        ([{"rank": 0}, {"rank": "a"}], "rank: holds what is no number.*row=1, rank='a'"),
        ([{"rank": 0}, {"rank": [3]}], "mixed or unknown types"),
        (
            [{"start_time": "2026-03-21T02:07:08Z"}, {"start_time": "2026-03-21T02:07:08"}],
            "has a zone in some rows only",
        ),
    ],
)
def test_what_is_no_table_is_refused(steps: object, message: str) -> None:
    with pytest.raises(InvalidWindow, match=message):
        rca.Window.from_tables(JOB, steps=steps)


@pytest.mark.parametrize("column", ["start_time", "rank"])
def test_text_that_is_not_utf8_is_refused_by_its_column(tmp_path: Path, column: str) -> None:
    path = tmp_path / "steps.csv"
    frame = pd.DataFrame(rows()).astype(object)
    frame.loc[5, column] = "caf\xe9"
    path.write_bytes(frame.to_csv(index=False).encode("latin-1"))
    with pytest.raises(
        InvalidInput, match=rf"steps\.csv: the column {column} holds bytes that are not UTF-8"
    ):
        rca.read_window(path)


def test_an_impossible_step_is_refused_by_its_row(tmp_path: Path) -> None:
    content = rows()
    content[7]["step_ms"] = 1e300
    path = tmp_path / "steps.csv"
    path.write_text(csv(content))
    with pytest.raises(InvalidInput, match=r"ends beyond the year 5000.*row=7, end=1e\+297"):
        rca.read_window(path)
