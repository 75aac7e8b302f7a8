"""What a window costs follows from what it contains: sparse windows are refused before any array is made."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from telemetry_windows import START, job, metrics, steps

import rca
from rca.errors import InvalidWindow, TooLarge
from rca.window import Window
from rca.window.job import RankPlace
from rca.window.rows import validation
from rca.window.rows.density import CELLS_PER_ROW, FREE_CELLS, FREE_RANKS, RANKS_PER_REPORTING
from rca.window.rows.validation import MAX_WORLD_SIZE
from tests.for_each import for_each

MAX_MEMORY = 24 << 20
"""Bytes for a refusal. The arrays of the smallest window here would take more than 100 MB."""


def few_rows(ranks: list[int], numbers: list[int]) -> pa.Table:
    n = len(ranks)
    return pa.table(
        {
            "rank": pa.array(ranks, pa.int32()),
            "step": pa.array(numbers, pa.int64()),
            "start_time": np.full(n, START + 1.0),
            "forward_seconds": np.full(n, 1e-4),
            "step_seconds": np.full(n, 2e-4),
        }
    )


FOUR = few_rows([0, 1, 2, 3], [1, 1, 1, 1])


def diagonal(n: int) -> pa.Table:
    """Every rank in a step of its own."""
    return few_rows(list(range(n)), list(range(n)))


def refused(work: Callable[[], object], kind: type[InvalidWindow | TooLarge]) -> Any:
    """The error of some work that takes little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(kind) as caught:
            work()
        assert tracemalloc.get_traced_memory()[1] < MAX_MEMORY
        return caught.value
    finally:
        tracemalloc.stop()


@for_each(
    ("fields", "table", "column", "message"),
    [
        ({"world_size": 1_000_000}, FOUR, "world_size", "is 1000000"),
        ({"world_size": 200_000}, FOUR, "world_size", "is 200,000, and only 4 ranks report anything"),
        (
            {"world_size": 200_000, "parallelism": {"data": 2, "pipeline": 100_000}},
            FOUR,
            "world_size",
            "only 4 ranks report",
        ),
        ({"world_size": 5_000}, diagonal(5_000), "step", "25,000,000 cells for 5,000 ranks in 5,000 rows"),
        ({"world_size": 16_000}, few_rows([0] * 40, list(range(40))), "step", "40 distinct steps"),
        ({"world_size": 1_000}, few_rows([0] * 600, list(range(0, 2**40, 2**40 // 599))), "step", "distinct"),
    ],
    ids=[
        "a world of a million",
        "a silent world",
        "silent stages",
        "a diagonal",
        "steps of one rank",
        "gaps",
    ],
)
def test_a_world_or_steps_that_hardly_any_row_fills_are_refused(
    fields: dict[str, Any], table: pa.Table, column: str, message: str
) -> None:
    error = refused(lambda: Window.from_tables(job(**fields), table), InvalidWindow)
    assert (error.table, error.column) == ("job" if column == "world_size" else "steps", column)
    assert message in error.message


def test_a_list_of_more_places_than_any_job_has_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(validation, "MAX_WORLD_SIZE", 1_000)
    made = 0

    def counted(*_: object) -> None:
        nonlocal made
        made += 1

    monkeypatch.setattr(RankPlace, "__init__", counted)
    places = [{"rank": 0}] * 1_001
    error = refused(lambda: Window.from_tables(job(ranks=places), steps()), InvalidWindow)
    assert (error.column, error.message, made) == ("ranks", "lists 1,001 ranks", 0)


@pytest.mark.parametrize("silent", [FREE_RANKS, FREE_RANKS + 4 * RANKS_PER_REPORTING])
def test_ranks_that_do_not_report_are_evidence_not_an_error(silent: int) -> None:
    window = Window.from_tables(job(world_size=silent), FOUR)
    assert window.job.world_size == silent


def test_ranks_report_through_any_table() -> None:
    """A job that hangs in its first step has hardly any rows, but samples of all ranks."""
    n_reporting = 2_000
    world = FREE_RANKS + RANKS_PER_REPORTING * n_reporting
    samples = metrics(*((1.0, "DCGM_FI_DEV_GPU_UTIL", 1.0, None, rank) for rank in range(n_reporting)))
    assert Window.from_tables(job(world_size=world), FOUR, samples).job.world_size == world
    error = refused(lambda: Window.from_tables(job(world_size=world + 1), FOUR, samples), InvalidWindow)
    assert error.expected == f"at most {world:,} ranks for {n_reporting:,} that report"


@pytest.mark.parametrize("n_ranks", [100, 1_000])
def test_rows_in_one_of_32_cells_are_enough(n_ranks: int) -> None:
    n_steps = 2_000_000 // n_ranks
    n_rows = (n_ranks * n_steps - FREE_CELLS) // CELLS_PER_ROW + n_steps
    cell = np.unique(np.linspace(0, n_ranks * n_steps - 1, n_rows).astype(np.int64))
    table = few_rows((cell // n_steps).tolist(), (cell % n_steps).tolist())
    assert Window.from_tables(job(world_size=n_ranks), table).steps.num_rows == cell.size


@pytest.mark.parametrize("work", [rca.diagnose, rca.what_if])
def test_a_window_beyond_the_limit_is_refused_before_any_array_is_made(
    work: Callable[..., object],
) -> None:
    window = Window.from_tables(job(world_size=FREE_RANKS), FOUR)
    error = refused(lambda: work(window, max_memory_bytes=40 << 20), TooLarge)
    assert error.message.startswith("16,384 ranks, 1 steps, 0 samples, 0 events need about ")
    assert error.message.endswith(" MiB of memory; the limit is 40 MiB")
    assert "RCA_MAX_WINDOW_MEMORY_BYTES" in str(error.hint)


def test_without_a_limit_every_valid_window_is_diagnosed() -> None:
    window = Window.from_tables(job(world_size=2_000), FOUR)
    diagnosis = rca.diagnose(window, max_memory_bytes=None)
    (note,) = diagnosis.quality.notes[:1]
    assert note.startswith("1996 of 2000 ranks reported no step: ranks 4, 5, 6")


def test_an_earlier_window_counts_as_well(make_window: Callable[..., Window]) -> None:
    from tests.shifted_windows import shifted

    window = make_window(64, 100)
    earlier = shifted(window, -3600.0)
    alone = rca.window.memory.WindowCounts.of(window).memory()
    rca.diagnose(window, max_memory_bytes=alone)
    with pytest.raises(TooLarge):
        rca.diagnose(window, earlier=earlier, max_memory_bytes=alone)


def test_the_largest_world_is_within_reach() -> None:
    assert FREE_RANKS < MAX_WORLD_SIZE
