"""Fragments of a job join to one window, in any order and with repetitions."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rca.errors import InvalidInput
from rca.window.fragments import between_steps, complete_until, current, joined, within
from rca.window.window import Window
from tests.for_each import for_each


@pytest.fixture
def window(make_window) -> Window:
    made: Window = make_window(4, 12)
    return made


def of_rank(window: Window, rank: int) -> Window:
    steps = window.steps.filter(pc.equal(window.steps.column("rank"), rank))
    metrics = window.metrics
    if metrics.num_rows:
        metrics = metrics.filter(pc.fill_null(pc.equal(metrics.column("rank"), rank), rank == 0))
    return replace(window, steps=steps, metrics=metrics)


def sorted_rows(table: pa.Table, *keys: str) -> list[dict[str, object]]:
    names = sorted(table.column_names)
    return table.select(names).sort_by([(key, "ascending") for key in keys]).to_pylist()


@for_each("order", list(permutations(range(4)))[::5])
def test_rows_of_all_ranks_make_the_window(window: Window, order: tuple[int, ...]) -> None:
    found = joined([of_rank(window, rank) for rank in (*order, order[0], order[2])])
    assert sorted_rows(found.steps, "step", "rank") == sorted_rows(window.steps, "step", "rank")
    assert found.job == window.job


def test_the_last_row_of_a_key_counts(window: Window) -> None:
    place = window.steps.column_names.index("step_seconds")
    later = window.steps.set_column(place, "step_seconds", pa.array(np.full(window.steps.num_rows, 0.125)))
    found = joined([window, replace(window, steps=later.slice(0, 5))])
    assert found.steps.num_rows == window.steps.num_rows
    assert (found.steps.column("step_seconds").to_numpy() == 0.125).sum() == 5


def test_columns_that_some_fragments_lack_are_not_measured_there(window: Window) -> None:
    less = replace(window, steps=window.steps.slice(0, 8).drop_columns(["forward_seconds"]))
    found = joined([replace(window, steps=window.steps.slice(8)), less])
    forward = found.steps.column("forward_seconds").to_numpy()
    assert np.isnan(forward).sum() == 8


@pytest.mark.parametrize(("name", "value"), [("job_id", "other"), ("world_size", 8)])
def test_fragments_of_two_jobs_are_refused(window: Window, name: str, value: object) -> None:
    other = replace(
        window, job=window.job.model_copy(update={name: value, "ranks": None, "parallelism": None})
    )
    with pytest.raises(InvalidInput, match=name):
        joined([window, other])


def test_no_fragments_are_refused() -> None:
    with pytest.raises(InvalidInput, match="no fragments"):
        joined([])


def test_steps_belong_to_the_time_at_which_they_began(window: Window) -> None:
    starts = np.sort(window.steps.column("start_time").to_numpy())
    found = within(window, starts[8], starts[20])
    began = found.steps.column("start_time").to_numpy()
    assert began.min() == starts[8]
    assert began.max() < starts[20]
    assert (found.job.start, found.job.end) == (starts[8], starts[20])


def test_a_time_without_telemetry_is_refused(window: Window) -> None:
    with pytest.raises(InvalidInput, match="no telemetry of this time"):
        within(replace(window, collectives=window.collectives.slice(0, 0)), 0.0, 1.0)


def test_a_step_is_complete_when_all_ranks_have_sent_it(window: Window) -> None:
    steps = window.steps
    late = pc.and_(pc.equal(steps.column("rank"), 2), pc.greater(steps.column("step"), 7))
    partly = replace(window, steps=steps.filter(pc.invert(late)))
    assert complete_until(window) == int(steps.column("step").to_numpy().max())
    assert complete_until(partly) == 7
    assert complete_until(partly, most_behind=1) == complete_until(window)


def test_steps_between_two_numbers(window: Window) -> None:
    found = between_steps(window, 4, 6)
    assert set(found.steps.column("step").to_numpy()) == {4, 5, 6}
    assert found.steps.num_rows == 12
    with pytest.raises(InvalidInput, match="no steps from 400 to 401"):
        between_steps(window, 400, 401)


def test_the_last_steps_have_the_event_that_ended_the_job(window: Window) -> None:
    exit_ = {"time": window.job.end, "node": None, "rank": 0, "kind": "process_exit", "code": "1"}
    ended = pa.Table.from_pylist([exit_ | {"message": None}], schema=window.events.schema)
    window = replace(window, events=ended)
    assert between_steps(window, 4, 11).events.num_rows == 1
    assert between_steps(window, 4, 6).events.num_rows == 0


def test_an_earlier_attempt_is_left_out_where_the_job_went_back(window: Window) -> None:
    steps = window.steps
    number = steps.column("step").to_numpy()
    again = steps.filter(pa.array(number >= 8)).combine_chunks()
    length = window.job.end - window.job.start
    moved = {
        "step": pa.array(again.column("step").to_numpy() - 6),
        "start_time": pa.array(again.column("start_time").to_numpy() + length),
    }
    for name, values in moved.items():
        place = again.column_names.index(name)
        again = again.set_column(place, again.schema.field(name), values.cast(again.schema.field(name).type))
    later = replace(
        window,
        steps=again,
        job=window.job.model_copy(update={"start": window.job.end, "end": window.job.end + length}),
        metrics=window.metrics.slice(0, 0),
        events=window.events.slice(0, 0),
    )
    found = current(joined([window, later])).steps
    first, last = int(number.min()), int(number.max())
    assert set(found.column("step").to_numpy()) == {*range(first, 2), *range(2, last - 5)}
    began = found.filter(pc.greater_equal(found.column("step"), 2)).column("start_time").to_numpy()
    assert began.min() >= window.job.end


def test_a_step_number_that_was_wrong_once_hides_no_later_step(window: Window) -> None:
    place = window.steps.column_names.index("step")
    number = window.steps.column("step").to_numpy().copy()
    wrong = window.steps.slice(0, 1).set_column(
        place, "step", pa.array([10**9], window.steps.schema.field("step").type)
    )
    found = current(joined([replace(window, steps=wrong), replace(window, steps=window.steps.slice(1))]))
    assert complete_until(found) == int(number.max())
