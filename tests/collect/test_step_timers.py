"""Step timers: exclusive phases, steps, threads, and a ring that never grows."""

from __future__ import annotations

import math
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from collector_clock import rows, spend, timer_with_clock

from rca.collect.timers import COLUMNS, PHASE_NUMBERS


def test_a_step_has_its_phases_and_its_whole_duration() -> None:
    timer, clock = timer_with_clock()
    clock.now = 5.0
    timer.begin()
    spend(timer, clock, "forward", 1.0)
    spend(timer, clock, "backward", 2.0)
    spend(timer, clock, "forward", 0.5)
    clock.now += 0.25
    timer.end()
    (row,) = rows(timer)
    assert (row["step"], row["start_time"], row["step_seconds"]) == (0, 1005.0, 3.75)
    assert (row["forward_seconds"], row["backward_seconds"], row["gc_seconds"]) == (1.5, 2.0, 0.0)
    assert math.isnan(row["optimizer_seconds"])


def test_time_in_an_inner_phase_does_not_count_for_the_outer() -> None:
    timer, clock = timer_with_clock()
    timer.begin()
    timer.enter(PHASE_NUMBERS["backward"])
    clock.now += 1.0
    spend(timer, clock, "communication", 0.5)
    clock.now += 1.0
    timer.leave(PHASE_NUMBERS["backward"])
    timer.end()
    (row,) = rows(timer)
    assert (row["backward_seconds"], row["communication_seconds"]) == (2.0, 0.5)


def test_garbage_collection_is_a_phase_of_its_own() -> None:
    timer, clock = timer_with_clock()
    timer.collected = 7.0  # before the step
    timer.begin()
    timer.enter(PHASE_NUMBERS["forward"])
    clock.now += 1.0
    timer.collected += 0.25
    timer.leave(PHASE_NUMBERS["forward"])
    timer.end()
    (row,) = rows(timer)
    assert (row["forward_seconds"], row["gc_seconds"], row["step_seconds"]) == (0.75, 0.25, 1.0)


def test_a_phase_that_a_later_step_lacks_took_no_time_there() -> None:
    timer, clock = timer_with_clock()
    for step in range(3):
        timer.begin()
        if step == 1:
            spend(timer, clock, "checkpoint", 1.0)
        timer.end()
    found = [row["checkpoint_seconds"] for row in rows(timer)]
    assert np.array_equal(found, [np.nan, 1.0, 0.0], equal_nan=True)


def test_a_phase_before_the_step_belongs_to_it() -> None:
    timer, clock = timer_with_clock()
    spend(timer, clock, "data_loading", 2.0)
    clock.now += 0.5
    timer.begin(41)
    clock.now += 1.0
    timer.end()
    (row,) = rows(timer)
    assert (row["step"], row["start_time"]) == (41, 1000.0)
    assert (row["data_loading_seconds"], row["step_seconds"]) == (2.0, 3.5)


def test_other_threads_do_not_change_the_step() -> None:
    timer, clock = timer_with_clock()
    timer.begin()
    other = threading.Thread(target=spend, args=(timer, clock, "forward", 1.0))
    other.start()
    other.join()
    timer.end()
    (row,) = rows(timer)
    assert math.isnan(row["forward_seconds"])


def test_leaving_twice_and_ending_twice_changes_nothing() -> None:
    timer, clock = timer_with_clock()
    timer.leave(PHASE_NUMBERS["forward"])
    timer.end()
    timer.begin()
    spend(timer, clock, "forward", 1.0)
    timer.leave(PHASE_NUMBERS["forward"])
    timer.end()
    timer.end()
    assert [row["forward_seconds"] for row in rows(timer)] == [1.0]


def test_a_step_that_begins_again_is_forgotten() -> None:
    timer, clock = timer_with_clock()
    timer.begin()
    spend(timer, clock, "forward", 9.0)
    timer.begin()
    spend(timer, clock, "forward", 1.0)
    timer.end()
    assert [row["forward_seconds"] for row in rows(timer)] == [1.0]


def test_a_cancelled_step_leaves_its_number() -> None:
    timer, _ = timer_with_clock()
    timer.begin()
    timer.end()
    timer.begin()
    timer.cancel()
    timer.begin()
    timer.end()
    assert [row["step"] for row in rows(timer)] == [0, 1]


def test_rows_that_are_not_taken_in_time_are_counted_as_lost() -> None:
    timer, _ = timer_with_clock(rows=8)
    for _ in range(20):
        timer.begin()
        timer.end()
    assert [row["step"] for row in rows(timer)] == list(range(13, 20))
    assert timer.lost_rows == 13
    assert rows(timer) == []


def test_a_step_in_progress_shows_what_is_over() -> None:
    timer, clock = timer_with_clock()
    assert timer.open_row() is None
    timer.begin()
    spend(timer, clock, "forward", 1.0)
    timer.enter(PHASE_NUMBERS["communication"])
    clock.now += 100.0
    found = timer.open_row()
    assert found is not None
    row = dict(zip(COLUMNS, found.tolist(), strict=True))
    assert (row["step"], row["forward_seconds"]) == (0, 1.0)
    for name in ("communication_seconds", "optimizer_seconds", "step_seconds"):
        assert math.isnan(row[name])


def test_work_of_a_step_adds_up() -> None:
    timer, _ = timer_with_clock()
    timer.begin()
    timer.load(0, 16)
    timer.load(0, 16)
    timer.end()
    (row,) = rows(timer)
    assert row["samples"] == 32
    assert math.isnan(row["tokens"])


@pytest.mark.parametrize("depth", [1, 3])
def test_leaving_an_outer_phase_ends_the_inner_ones(depth: int) -> None:
    timer, clock = timer_with_clock()
    timer.begin()
    timer.enter(PHASE_NUMBERS["backward"])
    for _ in range(depth):
        timer.enter(PHASE_NUMBERS["communication"])
    clock.now += 1.0
    timer.leave(PHASE_NUMBERS["backward"])
    clock.now += 1.0
    timer.end()
    (row,) = rows(timer)
    assert (row["backward_seconds"], row["communication_seconds"], row["step_seconds"]) == (0.0, 1.0, 2.0)


def test_the_guide_lists_every_phase() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / "collect.md").read_text()
    found = re.search(r"^Phases are ([^.]*)\.", guide, re.MULTILINE)
    assert found is not None
    assert set(re.findall(r"`(\w+)`", found[1])) == set(PHASE_NUMBERS)
