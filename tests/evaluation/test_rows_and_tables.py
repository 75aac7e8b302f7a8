"""The tidy table, its groups, and the tables made of it."""

from __future__ import annotations

from math import nan

import pyarrow.compute as pc
import pytest
from judged import HEALTHY, SILENT, row, slow_answer, slow_label

from rca.lab.evaluation.judged_rows import grouped, to_table
from rca.lab.evaluation.pictures import confusion_matrix, write_confusion
from rca.lab.evaluation.tables import (
    alarm_rate,
    alarms_table,
    confusion,
    differences_table,
    group_table,
    methods_table,
)

ROWS = [
    row(slow_answer("runtime_gc", (1,)), slow_label("runtime_gc", (1,)), severity=0.9, world_size=64),
    row(slow_answer(), slow_label(), severity=0.2),
    row(SILENT, slow_label(), severity=nan),
    row(SILENT),
]


def test_groups_come_in_their_natural_order() -> None:
    assert list(grouped(ROWS, "cause")) == ["healthy", "gpu_throttling", "runtime_gc"]
    assert list(grouped(ROWS, "severity")) == [
        "healthy", "mild, below 1/3", "severe, from 2/3", "not known",
    ]  # fmt: skip
    assert list(grouped(ROWS, "world_size")) == ["1 to 8 ranks", "33 to 128 ranks"]


@pytest.mark.parametrize(
    ("world_size", "band"),
    [(1, "1 to 8 ranks"), (8, "1 to 8 ranks"), (9, "9 to 32 ranks"), (4096, "over 128 ranks")],
)
def test_world_sizes_fall_into_closed_bands(world_size: int, band: str) -> None:
    assert list(grouped([row(SILENT, world_size=world_size)], "world_size")) == [band]


def test_the_arrow_table_has_one_flat_row_per_answer() -> None:
    table = to_table(ROWS)
    assert table.num_rows == len(ROWS)
    assert {"window", "method", "signals", "true_mode", "answered_mode", "mode_right"} <= set(
        table.column_names
    )
    assert pc.sum(table.column("mode_right")).as_py() == 3


def test_alarms_are_counted_over_the_hours_of_healthy_windows_only() -> None:
    rows = [
        row(slow_answer(), hours=2.0),
        row(SILENT, hours=3.0),
        row(slow_answer(), slow_label(), hours=100.0),
    ]
    found = alarm_rate(rows)
    assert (found.alarms, found.windows, found.hours, found.rate) == (1, 2, 5.0, 0.2)
    assert found.low < 0.2 < found.high
    assert alarms_table(rows).rows[0][2:5] == ("1 of 2", "5", "0.2")


def test_methods_stand_beside_each_other_and_are_compared() -> None:
    other = [row(SILENT, slow_label(), method="other")] * 10
    rows = [row(slow_answer(), slow_label())] * 10 + other
    table = methods_table(rows, "all")
    assert table.header[1:] == ("straggler-rca", "other")
    cells = {line[0]: line[1:] for line in table.rows}
    assert cells["failure_mode_accuracy"] == ("1.00 [0.69, 1.00]", "0.00 [0.00, 0.31]")
    assert cells["false_alarm_rate"] == ("-", "-")
    verdicts = {line[0]: line[-1] for line in differences_table(rows, "all").rows}
    assert verdicts["failure_mode_accuracy"] == "better"


def test_a_group_table_is_about_the_product() -> None:
    rows = [row(slow_answer(), slow_label()), row(SILENT, slow_label(), method="other")]
    (line,) = group_table(rows, "cause").rows
    assert line[:3] == ("gpu_throttling", "1", "1.00 [0.03, 1.00]")


def test_markdown_cells_cannot_break_the_table() -> None:
    text = group_table([row(SILENT, HEALTHY)], "source").to_markdown()
    assert text.startswith("## By source\n\n| source | windows |")


def test_a_confusion_names_the_failure_mode_where_no_cause_is_named() -> None:
    counts = confusion(ROWS)
    assert counts == {
        "healthy": {"healthy": 1},
        "gpu_throttling": {"gpu_throttling": 1, "healthy": 1},
        "runtime_gc": {"runtime_gc": 1},
    }
    true, answered, matrix = confusion_matrix({**counts, "hang": {"unknown": 2}})
    assert true == ["healthy", "gpu_throttling", "runtime_gc", "hang"]
    assert answered == [*true, "unknown"]
    assert matrix.sum() == 6
    assert matrix[3, 4] == 2


def test_the_picture_is_a_picture(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    write_confusion(confusion(ROWS), tmp_path / "confusion.png")
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")
