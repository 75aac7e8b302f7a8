"""Model chunks that no row names: derived from other columns, or refused; one chunk is never assumed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from synthetic_jobs import execute, make_job, table_of

from rca.errors import InvalidTrace
from rca.whatif.analysis import replay_of, what_if
from rca.whatif.optypes import FORWARD
from rca.whatif.trace.reader import trace_from_table
from rca.whatif.trace.trace import TraceMeta
from tests.for_each import for_each

Row = dict[str, Any]
SIZES = [
    {"pp": 4, "dp": 2, "vpp": 2, "microbatches": 8},
    {"pp": 2, "dp": 2, "vpp": 3, "microbatches": 6, "overlap": True},
    {"pp": 2, "dp": 3, "vpp": 1, "microbatches": 4},
    {"pp": 1, "dp": 2, "vpp": 1, "microbatches": 3},
    {"pp": 4, "dp": 1, "vpp": 2, "microbatches": 4},
]
EVIDENCE = {
    "gmc": {"mc": -1},
    "mb_id": {"mc": -1, "gmc": -1},
    "order": {"mc": -1, "gmc": -1, "mb_id": -1},
}
UNSAID = {"vpp_size": None}


def is_compute(row: Row) -> bool:
    return str(row["optype"]).endswith("compute")


@for_each("sizes", SIZES, ids=str)
@for_each("evidence", EVIDENCE)
def test_chunks_are_derived_from_the_rows(sizes: dict[str, int], evidence: str) -> None:
    ran = execute(make_job(**sizes), n_steps=3)  # type: ignore[arg-type]
    right = replay_of(ran.table, ran.job.meta)
    rows = [row | EVIDENCE[evidence] for row in ran.rows]
    found = replay_of(table_of(rows), ran.job.meta | UNSAID)
    assert found.parts[0].graph == right.parts[0].graph
    np.testing.assert_array_equal(found.parts[0].shape.chunk, right.parts[0].shape.chunk)
    assert any("compute rows without a model chunk" in note for note in found.notes)


@pytest.mark.parametrize("evidence", EVIDENCE)
def test_derived_chunks_give_the_results_of_the_interleaved_schedule(evidence: str) -> None:
    ran = execute(make_job(pp=4, dp=2, vpp=2, microbatches=8), n_steps=3)
    right = what_if(ran.table, ran.job.meta)
    found = what_if(table_of([row | EVIDENCE[evidence] for row in ran.rows]), ran.job.meta | UNSAID)
    np.testing.assert_allclose(found.no_delay, right.no_delay, rtol=1e-6)
    np.testing.assert_allclose(found.ideal, right.ideal, rtol=1e-6)


def test_a_missing_row_does_not_hide_the_chunks() -> None:
    ran = execute(make_job(pp=4, dp=2, vpp=2, microbatches=8), n_steps=3)
    lost = next(k for k, row in enumerate(ran.rows) if is_compute(row) and row["stage"] == 1)
    rows = [row | EVIDENCE["mb_id"] for k, row in enumerate(ran.rows) if k != lost]
    found = replay_of(table_of(rows), ran.job.meta | UNSAID)
    assert found.parts[0].graph == replay_of(ran.table, ran.job.meta).parts[0].graph


def test_chunks_given_in_one_step_serve_the_others() -> None:
    ran = execute(make_job(pp=4, dp=2, vpp=2, microbatches=8), n_steps=3)
    rows = [row | (EVIDENCE["order"] if row["step"] else {}) for row in ran.rows]
    found = replay_of(table_of(rows), ran.job.meta | UNSAID)
    assert found.parts[0].graph == replay_of(ran.table, ran.job.meta).parts[0].graph
    assert any("other cells" in note for note in found.notes)


def test_metadata_that_contradicts_the_order_is_refused() -> None:
    ran = execute(make_job(pp=4, dp=2, vpp=2, microbatches=8), n_steps=3)
    rows = [row | EVIDENCE["order"] for row in ran.rows]
    with pytest.raises(InvalidTrace, match="order shows 2 per stage while the metadata says vpp_size 1"):
        what_if(table_of(rows), ran.job.meta | {"vpp_size": 1})


def test_too_little_evidence_is_refused() -> None:
    ran = execute(make_job(pp=4, dp=2, vpp=2, microbatches=8), n_steps=3)
    # All forwards run before all backwards, so the warm-up does not show the chunks.
    rows = [
        row
        | EVIDENCE["order"]
        | {"start_ts": row["start_ts"] + 100.0 * (not row["optype"].startswith("forward"))}
        for row in ran.rows
    ]
    with pytest.raises(InvalidTrace, match="no schedule of this kind per stage") as refused:
        what_if(table_of(rows), ran.job.meta | UNSAID)
    assert "mb_id" in str(refused.value.hint)


def test_microbatches_that_do_not_repeat_evenly_are_refused() -> None:
    ran = execute(make_job(pp=4, dp=2, vpp=2, microbatches=8), n_steps=3)
    rows = [row | {"mc": -1, "gmc": -1, "mb_id": min(row["mb_id"], 5)} for row in ran.rows]
    with pytest.raises(InvalidTrace, match="mb_id occurs 2 to 6 times"):
        what_if(table_of(rows), ran.job.meta | UNSAID)


def test_without_transfers_the_warm_up_shows_the_chunks() -> None:
    ran = execute(make_job(pp=4, dp=2, vpp=1, microbatches=8), n_steps=3)
    rows = [row | EVIDENCE["order"] for row in ran.rows if not row["optype"].endswith(("send", "recv"))]
    trace = trace_from_table(table_of(rows), TraceMeta())
    assert set(trace.chunk[trace.optype == FORWARD]) == {0}
