"""Metrics of the pool, with slots that simulate their processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from played_slots import DONE, SETUP, PlayedSlot

from rca.deadline import Deadline
from rca.errors import InvalidInput
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.processes.child_process import ChildEnded, Reply
from rca_api.shell.processes.pool import ComputePool, Load
from rca_api.shell.processes.process import ProcessReport
from rca_api.shell.processes.slot import Slot
from rca_api.shell.requests.problems import ProblemError

DIED, LOST = ChildEnded("exit code 9", at_work=True), ChildEnded("exit code 9")


def task() -> None:
    """Never run."""


def played(
    slot: Slot,
    *,
    times: int = 1,
    tasks_per_process: int = 0,
    deadline: Callable[[], Deadline] = lambda: Deadline.after(60.0),
) -> tuple[Metrics, list[object]]:
    """Give a pool of one place some tasks, one after the other."""
    metrics, results = Metrics(), []

    async def run() -> None:
        pool = ComputePool(lambda: SETUP, 1, tasks_per_process, metrics)
        pool._slots = [slot]
        pool.start()
        for _ in range(times):
            try:
                results.append(await pool.run(task, deadline=deadline()))
            except (ProblemError, InvalidInput) as error:
                results.append(error)
        await asyncio.sleep(0)
        await pool.close()

    asyncio.run(run())
    return metrics, results


def count(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"rca_{name}_total", labels)


@pytest.mark.parametrize(("how", "reason"), [(DIED, "died"), (LOST, "lost")])
def test_a_task_is_given_to_another_process_if_its_own_is_lost(how: Exception, reason: str) -> None:
    metrics, results = played(PlayedSlot(how))
    assert results == ["done"]
    assert count(metrics, "pool_retries") == 1
    assert count(metrics, "pool_renewals", reason=reason) == 1


@pytest.mark.parametrize(("how", "reason", "times"), [(DIED, "died", 2), (LOST, "lost", 5)])
def test_a_task_that_costs_process_after_process_is_refused(how: Exception, reason: str, times: int) -> None:
    metrics, [error] = played(PlayedSlot(*([how] * times)))
    assert isinstance(error, ProblemError)
    assert error.code == "process-ended"
    assert error.detail.startswith(f"{times} processes that got this ended")
    assert int(error.headers["Retry-After"]) >= 1
    assert count(metrics, "pool_given_up", reason=reason) == 1
    assert count(metrics, "pool_retries") == times - 1
    assert count(metrics, "pool_renewals", reason=reason) == times


def test_a_deadline_missed_at_work_costs_the_process() -> None:
    metrics, [error] = played(PlayedSlot(TimeoutError()))
    assert isinstance(error, ProblemError)
    assert error.code == "deadline-exceeded"
    assert metrics.registry.get_sample_value("rca_deadlines_exceeded_total", {"while": "working"}) == 1
    assert count(metrics, "pool_renewals", reason="deadline") == 1


def test_a_deadline_missed_in_the_queue_costs_none() -> None:
    class NeverWarm(PlayedSlot):
        async def start(self, setup: Any) -> ProcessReport:
            await asyncio.sleep(60)
            raise AssertionError

    metrics, [error] = played(NeverWarm(), deadline=lambda: Deadline.after(0.01))
    assert isinstance(error, ProblemError)
    assert metrics.registry.get_sample_value("rca_deadlines_exceeded_total", {"while": "waiting"}) == 1
    assert sum(sample.value for sample in renewals(metrics)) == 0


def test_work_has_all_its_time_however_long_it_waited() -> None:
    class LateWarm(PlayedSlot):
        async def start(self, setup: Any) -> ProcessReport:
            await asyncio.sleep(0.5)
            return await super().start(setup)

        async def run(self, task: Any, arguments: Any, deadline: Deadline) -> Reply:
            assert 2.6 < deadline.left() <= 3.0
            return await super().run(task, arguments, deadline)

    # It was gone once: the second process has all the time that the first one had.
    _, [done] = played(LateWarm(LOST), deadline=lambda: Deadline.after(3.0, of_work=True))
    assert done == "done"


def test_a_worn_process_is_replaced_and_one_that_refuses_is_kept() -> None:
    refused = Reply(error=InvalidInput("no window"))
    metrics, results = played(PlayedSlot(DONE, refused, DONE, DONE), times=4, tasks_per_process=2)
    assert [str(result) for result in results] == ["done", "no window", "done", "done"]
    assert count(metrics, "pool_renewals", reason="worn") == 2
    assert sum(sample.value for sample in renewals(metrics)) == 2


def test_stages_of_the_process_are_counted_here() -> None:
    metrics, _ = played(PlayedSlot(), times=3)
    total = metrics.registry.get_sample_value("rca_diagnosis_stage_seconds_sum", {"stage": "diagnose"})
    assert total == pytest.approx(0.75)


def test_the_load_counts_working_processes_and_waiting_tasks() -> None:
    loads: list[Load] = []

    class Looking(PlayedSlot):
        look: Callable[[], Load]

        async def run(self, task: Any, arguments: Any, deadline: Deadline) -> Reply:
            await asyncio.sleep(0)
            loads.append(self.look())
            return DONE

    async def run() -> None:
        slot = Looking()
        pool = ComputePool(lambda: SETUP, 1, 0, Metrics())
        pool._slots, slot.look = [slot], pool.load
        loads.append(pool.load())
        pool.start()
        await asyncio.gather(*(pool.run(task, deadline=Deadline.after(60)) for _ in range(3)))
        loads.append(pool.load())
        await pool.close()

    asyncio.run(run())
    assert loads == [Load(1, 0, 0, 0), Load(1, 1, 1, 2), Load(1, 1, 1, 1), Load(1, 1, 1, 0), Load(1, 1, 0, 0)]


def renewals(metrics: Metrics) -> list[Any]:
    return [
        sample
        for family in metrics.pool_renewals.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    ]
