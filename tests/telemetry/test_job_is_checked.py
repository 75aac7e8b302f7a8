"""What the metadata of a window must get right."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from telemetry_windows import START, UNUSABLE_NAMES, job, refusal, window

from rca.window import names
from rca.window.job import Job
from tests.for_each import for_each


def test_one_rank_is_a_job() -> None:
    alone = pa.table({"rank": [0], "step": [1], "start_time": [START], "step_seconds": [0.5]})
    assert window(job=job(world_size=1), steps=alone).job.world_size == 1


def test_unknown_metadata_is_kept() -> None:
    assert window(job=job(cluster="west")).job.model_dump()["cluster"] == "west"


@for_each(
    ("change", "column"),
    [
        ({"job_id": None}, "job_id"),
        ({"job_id": ""}, "job_id"),
        ({"world_size": 0}, "world_size"),
        ({"world_size": "2"}, "world_size"),
        ({"world_size": True}, "world_size"),
        ({"format": "1"}, "format"),
        ({"start": "yesterday"}, "start"),
        ({"start": True}, "start"),
        ({"end": float("inf")}, "end"),
        ({"start": float("nan")}, "start"),
        ({"ranks": [{"rank": 0}, {"rank": -1}]}, "ranks.1.rank"),
        ({"parallelism": {"data": 2, "sequence": 1}}, "parallelism.sequence"),
    ],
)
def test_a_wrong_field_is_named_by_its_path(change: dict[str, object], column: str) -> None:
    error = refusal(job(**change))
    assert (error.table, error.column) == ("job", column)
    assert error.rows[0]["field"] == column


def test_all_wrong_fields_are_counted() -> None:
    error = refusal({"world_size": 0})
    assert error.n_rows == 4
    assert {row["field"] for row in error.rows} == {"job_id", "world_size", "start", "end"}


def test_metadata_must_be_an_object() -> None:
    assert refusal(["job"]).expected == "an object"  # type: ignore[arg-type]


def test_a_newer_format_is_not_guessed_at() -> None:
    error = refusal(job(format=2))
    assert error.column == "format"
    assert "newer" in str(error.hint)


def test_the_world_size_must_be_the_product_of_the_parallel_sizes() -> None:
    error = refusal(job(world_size=2, parallelism={"data": 2, "tensor": 2}))
    assert error.column == "world_size"
    assert "= 4" in error.message


def test_experts_do_not_multiply_the_world() -> None:
    assert window(job=job(parallelism={"data": 2, "expert": 2})).job.world_size == 2


def test_a_tiny_document_cannot_declare_a_gigantic_world() -> None:
    assert refusal(job(world_size=10**15)).column == "world_size"


@pytest.mark.parametrize("end", [START, START - 1])
def test_the_window_must_end_after_it_starts(end: float) -> None:
    assert refusal(job(end=end)).column == "end"


@pytest.mark.parametrize(
    ("factor", "unit"), [(1e3, "milliseconds"), (1e6, "microseconds"), (1e9, "nanoseconds")]
)
def test_bounds_in_another_unit_are_recognised(factor: float, unit: str) -> None:
    error = refusal(job(start=START * factor, end=(START + 10) * factor))
    assert error.column == "start"
    assert error.hint == f"the values look like {unit}: convert them to seconds"


def test_a_rank_is_listed_once() -> None:
    error = refusal(job(ranks=[{"rank": 0}, {"rank": 1}, {"rank": 0}]))
    assert error.column == "ranks.rank"
    assert error.rows == [{"row": 2, "rank": 0}]


def test_a_listed_rank_must_exist() -> None:
    error = refusal(job(ranks=[{"rank": 0}, {"rank": 2}]))
    assert error.rows == [{"row": 1, "rank": 2}]
    assert "0..1" in error.message


@pytest.mark.parametrize("field", ["data_rank", "tensor_rank", "pipeline_rank"])
def test_coordinates_must_lie_inside_their_sizes(field: str) -> None:
    error = refusal(job(parallelism={"data": 2}, ranks=[{"rank": 1, field: 2}]))
    assert error.column == f"ranks.{field}"
    assert error.rows == [{"row": 0, "rank": 1, field: 2}]


def test_context_ranks_count_along_the_data_dimension() -> None:
    placed = job(parallelism={"context": 2}, ranks=[{"rank": 1, "data_rank": 1}])
    assert window(job=placed).job.topology.data_rank.tolist() == [0, 1]


def test_ranks_without_a_tensor_group_work_alone_however_they_are_listed() -> None:
    """Stages listed by hand may leave two ranks with one data rank; that makes no group of them."""
    ranks = [{"rank": rank, "pipeline_rank": rank % 2} for rank in range(8)]
    listed = Job(
        job_id="j", world_size=8, parallelism={"data": 4, "pipeline": 2}, ranks=ranks, start=0.0, end=1.0
    )
    assert np.unique(listed.topology.worker).size == 8
    grouped = Job(job_id="j", world_size=8, parallelism={"data": 2, "tensor": 4}, start=0.0, end=1.0)
    assert grouped.topology.worker.tolist() == [0] * 4 + [1] * 4


@for_each("bad", UNUSABLE_NAMES, ids=ascii)
@for_each("field", ["job_id", "window_id", "ranks.0.node"])
def test_names_are_not_blank_nor_relative_and_all_of_them_is_seen(field: str, bad: str) -> None:
    change = {"ranks": [{"rank": 0, "node": bad}]} if field == "ranks.0.node" else {field: bad}
    error = refusal(job(**change))
    assert error.column == field
    assert error.message in (names.BLANK, names.RELATIVE, names.UNPRINTABLE, names.INVISIBLE)


def test_a_framework_may_be_empty_but_has_one_line() -> None:
    assert window(job=job(framework="")).job.framework == ""
    assert refusal(job(framework="torch\n2")).column == "framework"


@for_each(
    "name", ["node 1", "ノード-1", "a/b:c%2F", "\u00a0x", "\U0001f600", " padded ", "...", "a/..b", "שלום"]
)
def test_other_characters_are_accepted_in_names(name: str) -> None:
    ranks = [{"rank": 0, "node": name}]
    assert window(job=job(job_id=name, window_id=name, ranks=ranks)).job.job_id == name


def places(*coordinates: tuple[int, ...], **sizes: int) -> dict[str, object]:
    """A job whose ranks are at these coordinates, in the order of `sizes`."""
    fields = {
        "data": "data_rank",
        "context": "data_rank",
        "tensor": "tensor_rank",
        "pipeline": "pipeline_rank",
    }
    names = list(dict.fromkeys(fields[size] for size in sizes))
    ranks = [{"rank": rank, **dict(zip(names, place, strict=True))} for rank, place in enumerate(coordinates)]
    return job(world_size=len(ranks), parallelism=sizes, ranks=ranks)


@for_each(
    "shared",
    [
        places((0,), (0,), data=2),
        places((0,), (1,), (1,), (2,), data=4),
        places((0, 0), (0, 1), (1, 1), (1, 1), data=2, tensor=2),
        places((0, 0), (0, 0), (0, 0), (0, 0), tensor=2, pipeline=2),
        places((0, 0), (0, 0), (0, 0), (0, 1), context=2, tensor=2),
    ],
)
def test_two_ranks_cannot_be_at_one_place(shared: dict[str, object]) -> None:
    error = refusal(shared)
    assert (error.table, error.column) == ("job", "ranks")
    assert {"row", "rank"} < set(error.rows[0])
    assert "default order" in str(error.hint)


@for_each(
    "apart",
    [
        # Tensor parallel alone: the one data rank is shared, as it has to be.
        places((0, 0), (0, 1), data=1, tensor=2),
        places((0, 0), (1, 0), (0, 1), (1, 1), context=2, pipeline=2),
        places((0, 0), (0, 1), (0, 0), (0, 1), context=2, tensor=2),
        # The tensor ranks are not listed, so the ranks may be apart.
        job(
            world_size=4,
            parallelism={"data": 2, "tensor": 2},
            ranks=[{"rank": rank, "data_rank": rank // 2} for rank in range(4)],
        ),
        # Groups that are not declared.
        job(world_size=4, ranks=[{"rank": rank, "data_rank": rank // 2} for rank in range(4)]),
        job(world_size=4, ranks=[{"rank": rank, "data_rank": 0} for rank in range(2)]),
        job(world_size=1, ranks=[{"rank": 0, "data_rank": 0}]),
        job(ranks=[{"rank": 0}, {"rank": 1}]),
    ],
)
def test_ranks_that_may_be_at_different_places_are_accepted(apart: dict[str, object]) -> None:
    steps = pa.table({"rank": [0], "step": [1], "start_time": [START], "step_seconds": [0.5]})
    assert window(job=apart, steps=steps).job.world_size == apart["world_size"]


def test_not_all_ranks_can_be_at_one_data_rank_of_undeclared_sizes() -> None:
    everywhere = job(world_size=4, ranks=[{"rank": rank, "data_rank": 0} for rank in range(4)])
    error = refusal(everywhere)
    assert (error.column, error.n_rows) == ("ranks", 3)
    assert error.rows[0] == {"row": 1, "rank": 1, "data_rank": 0}
