"""Fragments of a job join to one window, in any order and with repetitions."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rca.errors import InvalidInput
from rca.telemetry.fragments import between_steps, complete_until, joined, within
from rca.telemetry.window import Window


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


@pytest.mark.parametrize("order", list(permutations(range(4)))[::5])
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
