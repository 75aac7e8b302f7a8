"""What the rows of ranks and steps must get right, and what they may leave out."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from telemetry_windows import START, job, refusal, steps, window

from rca.errors import InvalidWindow
from rca.sources.read import read_window
from rca.window import PhaseArrays
from tests.for_each import for_each


def test_tables_come_out_in_the_formats_types_and_order() -> None:
    mixed = pa.table(
        {
            "step_seconds": pa.array([1, 2], pa.int16()),
            "start_time": [START, START],
            "rank": pa.array([1, 0], pa.uint64()),
            "step": pa.array([3, 3], pa.int8()),
        }
    )
    table = window(steps=mixed).steps
    assert table.schema == pa.schema(
        {"rank": pa.int32(), "step": pa.int64(), "start_time": pa.float64(), "step_seconds": pa.float64()}
    )
    assert table.column("rank").to_pylist() == [1, 0]


def test_what_was_not_measured_is_nan() -> None:
    forward = PhaseArrays.from_window(window()).phase("forward_seconds")
    assert np.isnan(forward).tolist() == [[False, False], [False, True]]


def test_a_single_step_is_a_window() -> None:
    assert window(steps=steps().slice(0, 1)).steps.num_rows == 1


def test_a_step_that_never_finished_has_no_duration() -> None:
    assert np.isnan(window(steps=steps(step_seconds=[0.9, 0.9, 0.9, None])).steps["step_seconds"][3].as_py())


def test_steps_that_take_no_time_are_refused() -> None:
    """A timer that was never wired up would make every ratio meaningless."""
    error = refusal(table=steps(step_seconds=[0.0, 0.0, 0.9, 0.9]))
    assert (error.column, error.n_rows) == ("step_seconds", 2)
    assert window(steps=steps(step_seconds=[0.0, 0.9, 0.9, 0.9])).steps.num_rows == 4


def test_unknown_columns_are_kept_out_and_noted() -> None:
    clean = window(steps=steps(loss=[1.0, 2.0, 3.0, 4.0]))
    assert "loss" not in clean.steps.column_names
    assert clean.notes == ("steps: dropped unknown columns: loss",)


@pytest.mark.parametrize("wrong", ["foward_seconds", "forwrd_seconds"])
def test_a_misspelt_phase_is_dropped_with_the_name_that_may_be_meant(wrong: str) -> None:
    clean = window(steps=steps().rename_columns({"forward_seconds": wrong}))
    assert clean.notes == (
        f"steps: dropped unknown columns: {wrong}; did you mean forward_seconds by {wrong}?",
    )


@pytest.mark.parametrize("wrong", ["stpe_seconds", "step_secnods"])
def test_a_misspelt_required_column_is_named_with_its_unit(wrong: str) -> None:
    sent = json.loads(window().to_json())
    sent["steps"][wrong] = sent["steps"].pop("step_seconds")
    with pytest.raises(InvalidWindow) as caught:
        read_window(json.dumps(sent).encode())
    assert (caught.value.message, caught.value.column) == ("is missing", "step_seconds")
    assert caught.value.hint == f"did you mean step_seconds by {wrong}? Durations are in seconds."


def test_no_rows_are_no_window() -> None:
    assert "empty window" in refusal(table=steps().slice(0, 0)).message


@pytest.mark.parametrize("column", ["rank", "step", "start_time", "step_seconds"])
def test_four_columns_are_required(column: str) -> None:
    error = refusal(table=steps(**{column: None}))
    assert (error.table, error.column, error.message) == ("steps", column, "is missing")


def test_every_other_phase_may_be_missing() -> None:
    assert "forward_seconds" not in window(steps=steps(forward_seconds=None)).steps.column_names


def test_a_rank_reports_a_step_once() -> None:
    error = refusal(table=steps(step=[7, 7, 7, 7]))
    assert error.n_rows == 2
    assert error.rows[0] == {"row": 1, "rank": 0, "step": 7, "earlier_row": 0}


def test_repeats_are_found_among_far_apart_step_numbers() -> None:
    lowest, highest = -(2**62), 2**62
    error = refusal(table=steps(step=[lowest, highest, highest, highest]))
    assert error.rows == [{"row": 3, "rank": 1, "step": highest, "earlier_row": 2}]


@pytest.mark.parametrize("rank", [-1, 2, 10**6])
def test_ranks_lie_inside_the_world(rank: int) -> None:
    error = refusal(table=steps(rank=[0, 0, 1, rank]))
    assert error.column == "rank"
    assert error.rows == [{"row": 3, "rank": rank, "step": 8}]
    assert error.expected == "0..1 (world_size 2)"


def test_a_rank_beyond_its_type_is_still_named() -> None:
    error = refusal(table=steps(rank=[0, 0, 1, 2**40]))
    assert error.rows == [{"row": 3, "rank": 2**40, "step": 8}]


@pytest.mark.parametrize("value", [-0.1, float("inf"), float("-inf")])
def test_durations_are_finite_and_not_negative(value: float) -> None:
    error = refusal(table=steps(forward_seconds=[0.4, value, 0.4, 0.4]))
    assert (error.table, error.column, error.n_rows) == ("steps", "forward_seconds", 1)
    assert error.rows[0]["row"] == 1


def test_negative_loads_are_refused() -> None:
    assert refusal(table=steps(tokens=[1, 2, -3, 4])).column == "tokens"


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_every_step_has_a_start(value: float | None) -> None:
    error = refusal(table=steps(start_time=[START, value, START, START]))
    assert error.column == "start_time"
    assert error.rows[0]["row"] == 1


def test_a_missing_rank_is_not_rank_zero() -> None:
    error = refusal(table=steps(rank=[0, None, 1, 1]))
    assert (error.column, error.message) == ("rank", "is missing")


@for_each("values", [["0.4"] * 4, [True] * 4, [[0.4]] * 4, [{"s": 0.4}] * 4, [b"0.4"] * 4])
def test_numbers_are_numbers(values: list[object]) -> None:
    error = refusal(table=steps(forward_seconds=values))
    assert (error.column, error.expected) == ("forward_seconds", "numbers")


@pytest.mark.parametrize("values", [[False, False, True, True], ["0", "0", "1", "1"]])
def test_ranks_are_integers(values: list[object]) -> None:
    assert refusal(table=steps(rank=values)).expected == "integers"


def test_whole_floats_pass_as_integers_because_pandas_makes_them() -> None:
    assert window(steps=steps(rank=[0.0, 0.0, 1.0, 1.0])).steps["rank"].to_pylist() == [0, 0, 1, 1]


@pytest.mark.parametrize("value", [0.5, float("inf"), 2.0**60])
def test_other_floats_are_no_integers(value: float) -> None:
    error = refusal(table=steps(rank=[0.0, 0.0, 1.0, value]))
    assert error.message == "is not a whole number"
    assert error.rows[0]["row"] == 3


def test_a_column_may_occur_only_once() -> None:
    twice = pa.Table.from_arrays(
        [*steps().columns, pa.chunked_array([[0, 0, 1, 1]])], names=[*steps().column_names, "rank"]
    )
    assert "more than once" in refusal(table=twice).message


def test_only_arrow_tables_are_tables() -> None:
    assert "pyarrow.Table" in refusal(table={"rank": [0]}).expected  # type: ignore[arg-type]


def test_the_first_five_offending_rows_are_shown_and_all_are_counted() -> None:
    many = pa.table(
        {
            "rank": np.zeros(9, np.int32),
            "step": np.arange(9),
            "start_time": np.full(9, START),
            "step_seconds": np.full(9, -1.0),
        }
    )
    error = refusal(table=many)
    assert error.n_rows == 9
    assert [row["row"] for row in error.rows] == [0, 1, 2, 3, 4]
    assert "9 bad rows" in str(error)


def test_evidence_survives_json() -> None:
    details = refusal(table=steps(forward_seconds=[float("inf")] * 4)).details()
    assert json.loads(json.dumps(details, allow_nan=False))["rows"][0]["forward_seconds"] == "inf"


def test_sparse_ranks_are_fine_while_the_array_stays_small() -> None:
    assert window(job=job(world_size=16_000)).job.world_size == 16_000


def test_several_chunks_are_one_table() -> None:
    chunked = pa.concat_tables([steps().slice(0, 1), steps().slice(1)])
    assert window(steps=chunked).steps["step"].to_pylist() == [7, 8, 7, 8]


def test_a_timer_that_is_0_in_every_row_counts_as_not_measured() -> None:
    idle = window(steps=steps(backward_seconds=[0.0] * 4, forward_seconds=[0.0, 0.4, None, 0.0]))
    assert "backward_seconds" not in idle.steps.column_names
    assert "forward_seconds" in idle.steps.column_names
    assert "steps: backward_seconds is 0 in every row, and counts as not measured" in idle.notes
    # Steps without a checkpoint or a collection take no time for it.
    assert "checkpoint_seconds" in window(steps=steps(checkpoint_seconds=[0.0] * 4)).steps.column_names
