"""Damaged traces: missing rows and ranks, unknown types, wrong metadata, skewed clocks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from synthetic_jobs import Execution, Key, execute, make_job, rows_of, run, table_of

from rca.errors import InvalidTrace
from rca.whatif.analysis import replay_of, what_if
from rca.whatif.result import WhatIf
from tests.for_each import for_each

Row = dict[str, Any]


def slow_rank(key: Key, d: int, step: int) -> float:
    return 1.6 if (d, key[2]) == (1, 0) and key[0].endswith("compute") else 1.0


@pytest.fixture(scope="module")
def execution() -> Execution:
    return execute(make_job(pp=2, dp=3, microbatches=4), n_steps=8, slow=slow_rank)


@pytest.fixture(scope="module")
def clean(execution: Execution) -> WhatIf:
    return what_if(execution.table, execution.job.meta)


def answer_without(execution: Execution, drop: Callable[[Row], bool], **meta: int) -> WhatIf:
    rows = [row for row in execution.rows if not drop(row)]
    assert len(rows) < len(execution.rows)
    return what_if(table_of(rows), execution.job.meta | meta)


def is_op(row: Row, optype: str, **where: int) -> bool:
    return row["optype"] == optype and all(row[name] == value for name, value in where.items())


@for_each(
    "optype",
    [
        "forward-compute",
        "backward-compute",
        "forward-send",
        "forward-recv",
        "backward-send",
        "backward-recv",
        "params-all-gather",
        "grads-reduce-scatter",
        "layernorm-grads-all-reduce",
        "embedding-grads-all-reduce",
        "optimizer-clip-main-grad",
        "optimizer",
        "gc",
    ],
)
def test_one_missing_row_is_filled_and_counted(execution: Execution, clean: WhatIf, optype: str) -> None:
    at = {"step": 0, "dp_rank": 0, "seq_id": 1 if optype.split("-")[-1] in ("compute", "send", "recv") else 0}
    stage = {"forward-recv": 1, "backward-send": 1}.get(optype, 0)
    found = answer_without(execution, lambda row: is_op(row, optype, stage=stage, **at))
    assert any("1 missing rows in 1 step" in note for note in found.notes)
    assert found.steps.tolist() == clean.steps.tolist()
    assert found.slowdown == pytest.approx(clean.slowdown, rel=5e-3)


def test_a_rank_missing_from_one_step_is_filled(execution: Execution, clean: WhatIf) -> None:
    found = answer_without(execution, lambda row: (row["step"], row["rank"]) == (3, 4))
    assert any("missing rows in 1 step" in note for note in found.notes)
    assert found.slowdown == pytest.approx(clean.slowdown, rel=1e-2)


def test_a_data_rank_missing_everywhere_is_named(execution: Execution) -> None:
    found = answer_without(execution, lambda row: row["dp_rank"] == 2)
    assert any("metadata says dp_size 3, the trace shows 2" in note for note in found.notes)
    found = answer_without(execution, lambda row: row["dp_rank"] == 0)
    assert any("data rank(s) 0 have no rows" in note for note in found.notes)


@pytest.mark.parametrize(
    "optype", ["optimizer", "gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce"]
)
def test_types_without_rows_are_left_out_of_the_graph(
    execution: Execution, clean: WhatIf, optype: str
) -> None:
    found = answer_without(execution, lambda row: is_op(row, optype))
    assert optype not in found.by_type.labels
    assert found.slowdown == pytest.approx(clean.slowdown, rel=2e-2)


def test_unknown_types_are_named_and_counted(execution: Execution, clean: WhatIf) -> None:
    extra = [row | {"optype": "moe-all-to-all"} for row in execution.rows if is_op(row, "forward-compute")]
    found = what_if(table_of(execution.rows + extra), execution.job.meta)
    assert any(f"moe-all-to-all ({len(extra)})" in note for note in found.notes)
    assert found.slowdown == clean.slowdown


def test_reduce_scatter_rows_without_data_parallelism_are_left_out() -> None:
    ran = execute(make_job(pp=2, dp=2, microbatches=4), n_steps=3)
    rows = [row for row in ran.rows if row["dp_rank"] == 0]
    found = what_if(table_of(rows), ran.job.meta | {"dp_size": 1})
    assert "grads-reduce-scatter" not in found.by_type.labels


def test_more_than_128_data_ranks() -> None:
    ran = execute(make_job(pp=1, dp=130, microbatches=1), n_steps=2)
    found = what_if(ran.table, ran.job.meta)
    assert found.workers.data_rank.max() == 129


@pytest.mark.parametrize(
    ("meta", "text"),
    [
        ({"pp_size": 8}, "pp_size 8"),
        ({"dp_size": 1}, "dp_size 1"),
        ({"vpp_size": 4}, "vpp_size 4"),
        ({"world_size": 64}, "world_size 64"),
    ],
)
def test_contradicting_metadata_gets_a_note(
    execution: Execution, clean: WhatIf, meta: dict[str, int], text: str
) -> None:
    found = what_if(execution.table, execution.job.meta | meta)
    assert any(text in note for note in found.notes)
    assert found.slowdown == clean.slowdown


@for_each("skew", [0.02, -0.02])
@for_each("sizes", [{"pp": 4, "dp": 2}, {"pp": 2, "dp": 3}, {"pp": 1, "dp": 4}])
def test_a_skewed_clock_is_corrected(sizes: dict[str, int], skew: float) -> None:
    ran = execute(make_job(microbatches=4, **sizes), n_steps=6)
    right = what_if(ran.table, ran.job.meta)
    rows = [row | {"start_ts": row["start_ts"] + 0.05} for row in ran.rows]
    for row in rows:
        if (row["dp_rank"], row["stage"]) == (1, 0):
            row["start_ts"] += skew
    found = what_if(table_of(rows), ran.job.meta)
    (note,) = found.notes
    off = re.fullmatch(r"clock of data rank 1, stage 0 is (\S+) ms off and was corrected", note)
    assert off is not None
    assert float(off[1]) == pytest.approx(skew * 1e3, abs=1.0)
    assert found.slowdown == pytest.approx(right.slowdown, rel=2e-3)
    assert not right.notes


@pytest.mark.parametrize("vpp", [1, 2])
def test_missing_model_chunks_are_derived(vpp: int) -> None:
    ran = execute(make_job(pp=2, dp=2, vpp=vpp, microbatches=4), n_steps=3)
    right = what_if(ran.table, ran.job.meta)
    for lost in ({"mc": -1}, {"mc": -1, "gmc": -1}):
        found = what_if(table_of([row | lost for row in ran.rows]), ran.job.meta)
        assert any("without a model chunk" in note for note in found.notes)
        assert found.slowdown == pytest.approx(right.slowdown, rel=1e-3)


def test_changing_microbatches_are_replayed_per_shape() -> None:
    rows: list[Row] = []
    for step, microbatches in enumerate([4, 6, 4, 6, 4]):
        ran = execute(make_job(pp=2, dp=2, microbatches=microbatches), n_steps=1, seed=step)
        rows += [row | {"step": step} for row in ran.rows]
    replay = replay_of(table_of(rows), ran.job.meta)
    assert sorted(part.shape.steps.tolist() for part in replay.parts) == [[0, 2, 4], [1, 3]]
    found = what_if(replay)
    assert found.no_delay[1] > 1.2 * found.no_delay[0]
    np.testing.assert_allclose(found.no_delay, found.measured, rtol=0.1)


def test_every_tensor_rank_may_be_traced() -> None:
    ran = execute(make_job(pp=2, dp=2, microbatches=4), n_steps=3)
    right = what_if(ran.table, ran.job.meta)
    rows = [row | {"rank": 2 * row["rank"] + t} for row in ran.rows for t in (0, 1)]
    found = what_if(table_of(rows), ran.job.meta)
    assert any("folded" in note for note in found.notes)
    assert found.slowdown == right.slowdown


def test_repeated_rows_are_dropped(execution: Execution, clean: WhatIf) -> None:
    found = what_if(table_of(execution.rows + execution.rows[:7]), execution.job.meta)
    assert any("7 repeated rows" in note for note in found.notes)
    assert found.slowdown == clean.slowdown


def test_absolute_double_precision_clocks_are_accepted(execution: Execution, clean: WhatIf) -> None:
    rows = [row | {"start_ts": row["start_ts"] + 1.7e9 + 10.0 * row["step"]} for row in execution.rows]
    found = what_if(table_of(rows, single=False), execution.job.meta)
    assert found.slowdown == pytest.approx(clean.slowdown, rel=1e-5)


def test_row_order_does_not_matter(execution: Execution, clean: WhatIf) -> None:
    order = np.random.default_rng(1).permutation(len(execution.rows))
    found = what_if(execution.table.take(pa.array(order)), execution.job.meta)
    assert found.to_dict() == clean.to_dict()


def test_columns_that_can_be_derived_may_be_absent(execution: Execution, clean: WhatIf) -> None:
    found = what_if(execution.table.drop_columns(["seq_id", "mb_id", "gmc", "mc", "rank"]), {})
    assert found.slowdown == pytest.approx(clean.slowdown, rel=1e-6)


def test_one_step_of_one_rank_with_a_hole() -> None:
    ran = execute(make_job(pp=1, dp=1, microbatches=4), n_steps=1)
    rows = [row for row in ran.rows if not is_op(row, "backward-compute", seq_id=2)]
    found = what_if(table_of(rows), ran.job.meta)
    assert np.isfinite(found.slowdown)
    assert any("1 missing rows" in note for note in found.notes)


def edit(**values: object) -> Callable[[Row], Row]:
    return lambda row: row | values


@for_each(
    ("change", "text"),
    [
        (lambda t: t.drop_columns(["optype"]), "optype"),
        (lambda t: t.slice(0, 0), "no rows"),
        (lambda t: t.set_column(4, "optype", pa.array(["x"] * t.num_rows)), "known operation type"),
        (lambda t: t.set_column(1, "stage", pa.array([-1] * t.num_rows)), "stage"),
        (lambda t: t.set_column(1, "stage", pa.array(["a"] * t.num_rows)), "stage"),
        (lambda t: t.set_column(6, "duration", pa.array([np.nan] * t.num_rows)), "usable"),
        (lambda t: t.set_column(6, "duration", pa.array(["1"] * t.num_rows)), "duration"),
        (
            lambda t: t.set_column(5, "start_ts", pa.array(np.full(t.num_rows, 1.7e9, np.float32))),
            "single precision",
        ),
    ],
)
def test_traces_that_cannot_be_repaired_are_refused(
    execution: Execution, change: Callable[[pa.Table], pa.Table], text: str
) -> None:
    with pytest.raises(InvalidTrace, match=text):
        what_if(change(execution.table), execution.job.meta)


def test_a_stage_without_rows_is_refused(execution: Execution) -> None:
    rows = [row | {"stage": 2 * row["stage"]} for row in execution.rows]
    with pytest.raises(InvalidTrace, match=r"stage\(s\) 1 have no rows"):
        what_if(table_of(rows))


def test_half_the_sends_of_a_stage_lost_is_filled_or_refused(execution: Execution) -> None:
    found = answer_without(
        execution, lambda row: is_op(row, "forward-send", stage=0) and row["seq_id"] % 2 == 0
    )
    assert any("missing rows" in note for note in found.notes)


def test_random_damage_never_crashes(execution: Execution) -> None:
    rng = np.random.default_rng(7)
    for _ in range(30):
        kept = rng.random(len(execution.rows)) > rng.choice([0.001, 0.02, 0.2, 0.6])
        rows = [row for row, keep in zip(execution.rows, kept, strict=True) if keep]
        try:
            found = what_if(table_of(rows), execution.job.meta)
        except InvalidTrace as error:
            assert error.message  # noqa: PT017  (either an answer or a named refusal will do)
        else:
            assert np.isfinite(found.no_delay).all()
            assert found.notes or kept.all()


def test_a_delayed_worker_has_no_skewed_clock() -> None:
    job = make_job(pp=2, dp=2, microbatches=4)
    rows: list[Row] = []
    for step in range(4):
        ran = execute(job, 1, seed=step)
        times = ran.times[0]
        times[0]["optimizer-clip-main-grad", 0, 0] += 0.02
        rows += rows_of(job, step, *run(job, times))
    assert what_if(table_of(rows), job.meta).notes == ()
