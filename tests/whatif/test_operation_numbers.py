"""Operation numbers that do not restart, shared rank numbers, and world sizes that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from synthetic_jobs import execute, make_job, table_of

from rca.errors import InvalidWindow
from rca.whatif import WhatIf, what_if
from rca.whatif.trace.trace_checks import shared_ranks
from rca.window.window import Window
from tests.for_each import for_each

Row = dict[str, Any]
JOB = make_job(pp=2, dp=2, microbatches=4)
EXECUTION = execute(JOB, 5, slow=lambda key, d, step: 1.5 if (d, key[2]) == (1, 0) else 1.0)
PER_STEP = {
    (row["optype"], row["stage"]): sum(
        1
        for other in EXECUTION.rows
        if (other["optype"], other["stage"], other["dp_rank"], other["step"])
        == (row["optype"], row["stage"], 0, 0)
    )
    for row in EXECUTION.rows
}


@pytest.fixture(scope="module")
def clean() -> WhatIf:
    return what_if(EXECUTION.table, JOB.meta)


def counted_on(row: Row, steps_before: int = 0) -> Row:
    per_step = PER_STEP[row["optype"], row["stage"]]
    return row | {"seq_id": row["seq_id"] + (row["step"] + steps_before) * per_step}


def only(optype: str, change: Callable[[Row], Row]) -> Callable[[Row], Row]:
    return lambda row: change(row) if row["optype"] == optype else row


@for_each(
    "change",
    [
        counted_on,
        lambda row: counted_on(row, 500),
        only("gc", lambda row: counted_on(row, 7)),
        only("forward-compute", counted_on),
        only("forward-compute", lambda row: row | {"seq_id": row["seq_id"] + 1}),
        lambda row: row | {"seq_id": 3 * row["seq_id"] + 1000 * row["step"]},
    ],
)
def test_numbers_that_do_not_restart_give_the_same_results(
    change: Callable[[Row], Row], clean: WhatIf
) -> None:
    found = what_if(table_of([change(row) for row in EXECUTION.rows]), JOB.meta)
    np.testing.assert_array_equal(found.no_delay, clean.no_delay)
    np.testing.assert_array_equal(found.workers.seconds, clean.workers.seconds)
    assert any("does not restart with every step: " in note for note in found.notes)


def test_a_missing_row_among_numbers_that_go_on_stays_missing(clean: WhatIf) -> None:
    lost = ("forward-compute", 2, 3, 0, 0)
    rows = [
        counted_on(row)
        for row in EXECUTION.rows
        if tuple(row[name] for name in ("optype", "seq_id", "step", "dp_rank", "stage")) != lost
    ]
    found = what_if(table_of(rows), JOB.meta)
    assert any("1 missing rows in 1 step(s)" in note for note in found.notes)
    assert found.slowdown == pytest.approx(clean.slowdown, rel=1e-2)


def test_one_rank_number_for_all_workers_is_not_used(clean: WhatIf) -> None:
    for wrong in ({"rank": 0}, {"rank": 3}):
        found = what_if(table_of([row | wrong for row in EXECUTION.rows]), JOB.meta)
        assert found.workers.rank.tolist() == [0, 2, 1, 3]
        assert found.findings[0].ranks == clean.findings[0].ranks == (1,)
        assert any("under several (data rank, stage)" in note for note in found.notes)


def test_huge_rank_numbers_are_accepted() -> None:
    rows = [row | {"rank": 10**15 + int(row["rank"])} for row in EXECUTION.rows]  # type: ignore[call-overload]
    found = what_if(table_of(rows), JOB.meta)
    assert found.workers.rank.min() == 10**15
    assert found.notes == ()


def test_shared_ranks_are_found_by_row() -> None:
    rank = np.array([0, 1, -1, -1, 10**12, 1, 10**12])
    assert shared_ranks(rank, np.array([0, 1, 2, 3, 4, 5, 4])).tolist() == [1, 5]
    assert shared_ranks(rank[2:4], np.array([0, 1])).size == 0


def test_a_window_with_one_rank_under_two_stages_is_refused_with_its_rows() -> None:
    job: dict[str, object] = {
        "format": 1,
        "job_id": "job",
        "world_size": 4,
        "start": 1.7e9,
        "end": 1.7e9 + 60,
    }
    steps = pa.table({"rank": [0], "step": [0], "start_time": [1.7e9], "step_seconds": [1.0]})
    moved = [
        row | ({"rank": 0} if row["optype"] == "gc" and row["rank"] == 2 else {}) for row in EXECUTION.rows
    ]
    rows = [row for row in moved if row["optype"] != "gc" or row["rank"] != 0 or row["stage"] == 1]
    window = Window.from_tables(job, steps, ops=table_of(rows, single=False))
    with pytest.raises(InvalidWindow, match="one rank under several") as refused:
        what_if(window)
    assert (refused.value.table, refused.value.column) == ("ops", "rank")
    assert [(row["dp_rank"], row["stage"]) for row in refused.value.rows] == [(0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("meta", "text", "world_size"),
    [
        ({"world_size": 3}, "world_size 3; 4 workers were traced, 4 ranks", 4),
        ({"world_size": 6}, "world_size 6; 4 workers were traced, 4 ranks", 6),
        ({"world_size": 8, "tp_size": 4}, "world_size 8; 4 workers were traced, 16 ranks", 8),
    ],
)
def test_a_world_size_that_does_not_fit_gets_a_note(meta: dict[str, int], text: str, world_size: int) -> None:
    found = what_if(EXECUTION.table, meta)
    assert any(text in note for note in found.notes)
    assert found.world_size == world_size


def test_a_world_size_that_fits_gets_no_note() -> None:
    found = what_if(EXECUTION.table, {"world_size": 16})
    assert found.notes == ()
    assert found.world_size == 16
