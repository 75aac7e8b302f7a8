"""Time that no rank loses alone: all wait for input together, or one never begins the step of the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rca
from rca.features import extract
from tests.for_each import for_each

START = 1.75e9
STEP = 0.4


def rows(ranks: int, steps: int, loading: dict[int, float] | None = None) -> list[dict[str, Any]]:
    """Timed steps of a data-parallel job; in the steps of `loading` all ranks load that much longer."""
    noise = np.random.default_rng(0)
    begin, found = 0.0, []
    for step in range(steps):
        longer = (loading or {}).get(step, 0.0)
        for rank in range(ranks):
            times = {"data_loading": 0.02 + longer, "forward": 0.1, "backward": 0.2, "optimizer": 0.01}
            timed = {f"{name}_seconds": each * (1 + noise.normal(0, 0.01)) for name, each in times.items()}
            found.append({"rank": rank, "step": step, "start_time": START + begin, **timed})
            found[-1]["step_seconds"] = longer + STEP
            found[-1]["communication_transfer_seconds"] = 0.03
            found[-1]["communication_wait_seconds"] = max(longer + STEP - sum(timed.values()) - 0.03, 0.0)
        begin += longer + STEP
    return found


def job(ranks: int, steps: list[dict[str, Any]], silent: float = 0.0) -> rca.Window:
    end = max(row["start_time"] + row.get("step_seconds", 0.0) for row in steps) + silent
    placed = [{"rank": rank, "node": f"node-{rank // 4}"} for rank in range(ranks)]
    facts = {"job_id": "a", "world_size": ranks, "start": START, "end": end, "ranks": placed}
    return rca.Window.from_tables(facts, steps=steps)


def test_a_job_that_waits_for_input_most_of_the_time_is_slow() -> None:
    """Every 16 steps all ranks wait for 8 s: no rank is late, and half of the time is lost."""
    answer = rca.diagnose(job(8, rows(8, 160, dict.fromkeys(range(15, 160, 16), 8.0))))
    assert (answer.verdict, answer.causes[0].cause) == ("fail_slow", "data_loader_stall")
    assert len(answer.causes[0].ranks) == 8
    assert answer.slowdown.seconds_per_step == pytest.approx(0.5, rel=0.2)


def test_shorter_stalls_are_counted_and_leave_the_verdict_open() -> None:
    answer = rca.diagnose(job(8, rows(8, 160, dict.fromkeys((20, 50, 70, 120, 130), 2.0))))
    assert (answer.verdict, answer.failure_mode) != ("healthy", "healthy")
    assert (answer.slowdown.seconds_per_step or 0.0) > 0.04


def test_work_in_a_fixed_cycle_is_planned_and_has_a_cost() -> None:
    """Every 50 steps all ranks save for 1.2 s, which no timer shows."""
    steps = rows(8, 200, dict.fromkeys(range(49, 200, 50), 1.2))
    for row in steps:
        row["data_loading_seconds"] = min(row["data_loading_seconds"], 0.02)
    answer = rca.diagnose(job(8, steps))
    assert answer.verdict == "healthy"
    assert "planned work every 50 steps, outside the timed phases, costs 0.02" in answer.next_check


def test_planned_work_costs_all_that_its_steps_take_longer() -> None:
    """Every 10th step takes 1.8 times as long, and only whole steps are timed."""
    seconds = {step: 0.9 if step % 10 == 9 else 0.5 for step in range(200)}
    steps = [
        {"rank": rank, "step": step, "start_time": START + step, "step_seconds": took}
        for step, took in seconds.items()
        for rank in range(4)
    ]
    planned = extract(job(4, steps)).work.cycles["in whole steps"]
    assert (planned.every, planned.seconds) == (10, pytest.approx(0.04))


def test_one_rank_that_is_slow_in_a_fixed_cycle_is_not_planned() -> None:
    """Only the communication is timed, so the own time of each rank is known."""
    steps = rows(8, 200, dict.fromkeys(range(49, 200, 50), 1.2))
    for row in steps:
        if row["rank"] != 5 and row["step"] % 50 == 49:
            row["communication_wait_seconds"] += 1.2
        for name in ("data_loading", "forward", "backward", "optimizer"):
            del row[f"{name}_seconds"]
    assert "planned" not in rca.diagnose(job(8, steps)).next_check


def test_input_that_stalls_in_a_fixed_cycle_is_not_planned() -> None:
    answer = rca.diagnose(job(8, rows(8, 200, dict.fromkeys(range(49, 200, 50), 1.2))))
    assert "planned" not in answer.next_check
    assert answer.abstained


def test_even_input_is_no_stall() -> None:
    answer = rca.diagnose(job(8, rows(8, 160)))
    assert answer.verdict == "healthy"
    assert answer.slowdown.ratio == pytest.approx(1.0, abs=0.02)


def unfinished(row: dict[str, Any]) -> dict[str, Any]:
    """The row of a step that was begun and not finished."""
    return {name: row[name] for name in ("rank", "step", "start_time")}


@for_each(
    "kept",
    [
        lambda row: row if row["step"] < 60 or row["rank"] != 2 else unfinished(row),
        lambda row: row if row["step"] < 60 else None if row["rank"] == 2 else unfinished(row),
    ],
    ids=["never finished the last step", "never began the last step"],
)
def test_the_rank_that_was_left_behind_stopped_the_job(kept: Any) -> None:
    steps = [row for row in map(kept, rows(4, 61)) if row is not None]
    answer = rca.diagnose(job(4, steps, silent=120.0))
    assert answer.verdict == "fail_stop"
    assert [each.ranks for each in answer.stragglers] == [[2]]
