"""MLPerf logs become the steps of one rank; logs without step times are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rca
from rca.errors import InvalidInput

#: 15 July 2024.
BEGIN = 1721026606.0


def line(number: int, value: dict[str, Any], key: str = "tracked_stats") -> str:
    content = {
        "namespace": "",
        "time_ms": int((BEGIN + number) * 1000),
        "event_type": "POINT_IN_TIME",
        "key": key,
        "value": value,
        "metadata": {"file": "callbacks.py", "lineno": 161, "step": number * 64},
    }
    return f"0: :::MLLOG {json.dumps(content)}"


def test_step_times_are_steps_of_one_rank(tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    lines = [line(number, {"train_step_time": 0.9, "throughput": 70.0}) for number in range(1, 31)]
    path.write_text("\n".join(["loading", line(0, {}, "run_start"), *lines, line(31, {"throughput": 70.0})]))
    window = rca.read_window(path)
    rows = window.steps.to_pylist()
    assert (window.job.world_size, [row["step"] for row in rows]) == (1, list(range(1, 31)))
    assert rows[0]["start_time"] == pytest.approx(BEGIN + 0.1)
    assert {row["step_seconds"] for row in rows} == {0.9}
    assert any("stands for the job" in note for note in window.notes)
    assert rca.diagnose(window).stragglers == []


@pytest.mark.parametrize(
    "lines",
    [
        [line(1, {"throughput": 70.0})],
        [line(1, {"train_step_time": "0.9"}), line(2, {"train_step_time": -1.0})],
        [line(1, {"train_step_time": 0.9})[:-30]],
        [line(1, {}, "run_start")],
    ],
    ids=["throughput", "bad values", "cut", "no statistics"],
)
def test_logs_without_step_times_are_refused(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "result_0.txt"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InvalidInput, match=r"result_0\.txt: an MLPerf log, but none .* has train_step_time"):
        rca.read_window(path)
