"""Traces whose dense arrays would be nearly empty are refused, or lose the steps that make them so."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from synthetic_jobs import execute, make_job, table_of

from rca.errors import InvalidTrace
from rca.whatif import what_if
from rca.whatif.trace.trace import distinct

MAX_MEMORY = 16 << 20
"""Bytes for a refusal. The arrays of the smallest trace here take more than 400 MB."""

JOB = make_job(pp=2, dp=3, microbatches=4)
EXECUTION = execute(JOB, 6)


def grid(ranks: int, stages: int = 1, steps: int = 1) -> dict[str, np.ndarray]:
    rank, stage, step, kind = (axis.ravel() for axis in np.indices((ranks, stages, steps, 2)))
    return {
        "dp_rank": rank,
        "stage": stage,
        "step": step,
        "optype": np.array(["forward-compute", "backward-compute"])[kind],
        "start_ts": kind.astype(np.float64),
        "duration": np.full(rank.size, 0.5),
        "seq_id": np.zeros(rank.size, np.int64),
        "mc": np.zeros(rank.size, np.int64),
    }


def diagonal(n: int) -> dict[str, np.ndarray]:
    columns = grid(n)
    columns["step"] = columns["dp_rank"]
    return columns


def one_large_number(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    columns["seq_id"][0] = 99_999
    return columns


def refusal(columns: dict[str, np.ndarray]) -> tuple[InvalidTrace, int]:
    """The error of a trace, and the most memory in bytes that Python and numpy held until then."""
    table = pa.table(columns)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidTrace) as refused:
            what_if(table)
        return refused.value, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("columns", "hint"),
    [
        (diagonal(5_000), "5,000 data ranks"),
        (one_large_number(grid(400)), "seq_id of forward-compute runs to 99,999 in step 0, stage 0"),
        (one_large_number(grid(30, 40)), "30 data ranks, 40 stages and 1 steps"),
    ],
    ids=["one step per data rank", "one large seq_id", "one large seq_id in many stages"],
)
def test_sparse_traces_are_refused_before_their_arrays_are_made(
    columns: dict[str, np.ndarray], hint: str
) -> None:
    error, peak = refusal(columns)
    assert hint in str(error.hint)
    assert peak < MAX_MEMORY


def test_many_stages_in_many_steps_are_refused_before_they_are_counted() -> None:
    columns = grid(1, 3_000)
    columns["step"] = columns["stage"]
    error, peak = refusal(columns)
    assert "9,000,000 places (step, stage)" in error.message
    assert peak < MAX_MEMORY


def test_many_pauses_on_every_rank_are_refused_before_their_arrays_are_made() -> None:
    columns = grid(2_000)
    rank, sequence = (axis.ravel() for axis in np.indices((1, 3_000)))
    pauses = {
        "dp_rank": rank,
        "stage": rank,
        "step": rank,
        "optype": np.full(rank.size, "gc"),
        "start_ts": 1.0 + 1e-3 * sequence,
        "duration": np.full(rank.size, 1e-4),
        "seq_id": sequence,
        "mc": np.full(rank.size, -1),
    }
    error, peak = refusal({name: np.concatenate((columns[name], pauses[name])) for name in columns})
    assert "7,000 rows are spread over 6,004,000 places" in error.message
    assert "seq_id of gc runs to 2,999" in str(error.hint)
    assert peak < MAX_MEMORY


@pytest.mark.parametrize("optype", ["forward-compute", "gc", "optimizer"])
def test_one_damaged_number_costs_its_step_only(optype: str) -> None:
    rows = [dict(row) for row in EXECUTION.rows]
    next(row for row in rows if row["optype"] == optype)["seq_id"] = 50_000
    found = what_if(table_of(rows), JOB.meta)
    assert found.steps.tolist() == [1, 2, 3, 4, 5]
    assert any("1 step(s) lack more than half of their rows and are dropped: 0" in n for n in found.notes)


def test_a_step_without_computes_is_dropped_not_the_trace() -> None:
    rows = [row for row in EXECUTION.rows if row["step"] != 2 or row["optype"] == "gc"]
    found = what_if(table_of(rows), JOB.meta)
    assert found.steps.tolist() == [0, 1, 3, 4, 5]


def test_rare_garbage_collection_is_no_missing_row_and_gets_a_note() -> None:
    rows = [row for row in EXECUTION.rows if row["optype"] != "gc" or row["step"] == 4]
    notes = what_if(table_of(rows), JOB.meta).notes
    assert "gc rows in 6 of 36 places (rank, step): elsewhere no pause is assumed" in notes


@pytest.mark.parametrize("values", [[], [7], [-3, 5, -3, 4, 5, 2, 2, 2, 2], [-(1 << 63), (1 << 63) - 1, 0]])
def test_distinct_finds_the_values_that_sorting_finds(values: list[int]) -> None:
    given = np.array(values, np.int64)
    expected = np.unique(given, return_inverse=True)
    for mine, theirs in zip(distinct(given), expected, strict=True):
        assert mine.dtype == np.int64
        assert mine.tolist() == theirs.tolist()
