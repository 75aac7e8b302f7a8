"""Background tasks of the service survive failures."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from diagnosed import Clock
from fastapi.concurrency import run_in_threadpool
from structlog.testing import capture_logs

from rca.deadline import Deadline
from rca_api.diagnoses import dispatcher
from rca_api.diagnoses.dispatcher import Dispatcher
from rca_api.diagnoses.journal import Claimed
from rca_api.models.current import CurrentModels
from rca_api.shell import lifespan
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.processes.bundles import BundleRef
from rca_api.shell.processes.child_process import ChildEnded, Reply
from rca_api.shell.processes.pool import ComputePool, Load
from rca_api.shell.processes.process import ProcessReport, Setup
from rca_api.shell.processes.slot import Slot
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store.database import Schema, StoreError
from rca_api.shell.store.waits import Listening
from tests.for_each import for_each


def test_a_database_that_comes_back_is_migrated_then(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([StoreError("away"), StoreError("still away"), Schema("0002", "0002")])

    def upgrade() -> Schema:
        answer = next(answers)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    monkeypatch.setattr(lifespan, "_MIGRATION_SECONDS", 0.0)
    state: Any = SimpleNamespace(database=SimpleNamespace(upgrade=upgrade))
    asyncio.run(asyncio.wait_for(lifespan.upgrade_later(state), 5))
    assert list(answers) == []


def test_tidying_is_postponed_after_the_clock_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    hour, at, tidied = 3600.0, Clock(), []

    async def passes(seconds: float) -> None:
        at.go(seconds)
        if at.ticks == 2.5 * hour:
            at.set(400 * 24 * hour)
        if at.ticks > 5 * hour:
            raise asyncio.CancelledError

    monkeypatch.setattr(lifespan.asyncio, "sleep", passes)
    work = partial(lifespan.repeated, "rows", lambda: tidied.append(at.ticks / hour))
    at.go(0.5 * hour)
    with capture_logs() as lines, pytest.raises(asyncio.CancelledError):
        asyncio.run(work(hour, Listening(at, lambda: at.ticks)))
    assert tidied == [1.5, 3.5, 4.5]
    assert [line["what"] for line in lines if line["event"] == "tidying up is postponed"] == ["rows"]


def dispatcher_of(journal: Any, pool: ComputePool, answered: Any = print, **settings: Any) -> Dispatcher:
    models, memory = CurrentModels(BundleRef(None)), SimpleNamespace(current=None)
    return Dispatcher(journal, pool, models, memory, Settings(processes=1, **settings), answered)  # type: ignore[arg-type]


class SlowlyWarm(Slot):
    """A process that takes longer to start than work may take."""

    async def start(self, setup: Any) -> ProcessReport:
        await asyncio.sleep(0.5)
        self.report = ProcessReport(1, None, None)
        return self.report

    async def run(self, task: Any, arguments: tuple[Any, ...], deadline: Deadline) -> Reply:
        return Reply(SimpleNamespace(document="found"), seconds=0.01)


def test_the_dispatcher_survives_failures_of_the_database() -> None:
    asked: list[int] = []

    def claim(owner: str, lease_seconds: float, most: int) -> list[Any]:
        asked.append(most)
        if len(asked) <= 2:
            raise StoreError("away") if len(asked) == 1 else RuntimeError("no such table")
        return []

    async def run() -> None:
        setup = Setup(BundleRef(None), None, "")
        pool = ComputePool(lambda: setup, 1, 0, Metrics())
        pool._slots = [SlowlyWarm()]
        journal: Any = SimpleNamespace(claim=claim)
        dispatcher = dispatcher_of(journal, pool)
        pool.start()
        dispatcher.start()
        async with asyncio.timeout(20):
            while len(asked) < 3:
                dispatcher.wake()
                await run_in_threadpool(lambda: None)
        await dispatcher.stop()
        await pool.close()

    asyncio.run(run())


class GoneOnce(SlowlyWarm):
    """One that is found gone by the first task, and takes its time to come back."""

    gone = False

    async def run(self, task: Any, arguments: tuple[Any, ...], deadline: Deadline) -> Reply:
        if not self.gone:
            self.gone, self.report = True, None
            raise ChildEnded("exit code 1")
        return await super().run(task, arguments, deadline)


def test_a_queued_diagnosis_waits_for_a_process_that_starts_slowly() -> None:
    queue = [Claimed("promised", "digest", None)]
    answered: dict[str, str] = {}
    released: list[str] = []
    claims: list[tuple[int, int]] = []

    async def run() -> None:
        setup = Setup(BundleRef(None), None, "")
        pool = ComputePool(lambda: setup, 1, 0, Metrics())
        pool._slots = [GoneOnce()]

        def claim(owner: str, lease_seconds: float, most: int) -> list[Claimed]:
            claims.append((pool.load().warm, most))
            return [queue.pop()] if queue else []

        def give_back(owner: str, diagnoses: list[str]) -> None:
            queue.extend(Claimed(each, "digest", None) for each in diagnoses)
            released.extend(diagnoses)

        journal = SimpleNamespace(
            claim=claim,
            renew=lambda *_: None,
            give_back=give_back,
            complete=lambda *_: True,
            fail=lambda _, diagnosis, problem: answered.update({diagnosis: problem.code}),
        )
        dispatcher = dispatcher_of(
            journal, pool, lambda name, document, _: answered.update({name: document}), deadline_seconds=0.1
        )
        pool.start()
        dispatcher.start()
        async with asyncio.timeout(20):
            while not answered:
                await asyncio.sleep(0.01)
        await dispatcher.stop()
        await pool.close()

    asyncio.run(run())
    assert answered == {"promised": "found"}
    # Others may take it while none is warm here.
    assert released == ["promised"]
    assert set(claims) == {(1, 1)}


@for_each(
    ("warm", "others", "claimed"), [(1, 0, 1), (1, 3, 1), (1, 4, 2), (1, 32, 9), (1, 100, 26), (0, 100, 0)]
)
def test_queued_diagnoses_keep_their_share_of_a_pool_that_others_keep_busy(
    warm: int, others: int, claimed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "SHUTDOWN_SECONDS", 0.01)
    running: list[str] = []
    numbers = iter(range(1000))

    async def never(*_: Any, deadline: Deadline) -> None:
        running.append("diagnosis")
        await asyncio.Event().wait()

    async def run() -> None:
        # Those that are claimed wait as well, and are no reason to claim more.
        load = lambda: Load(size=1, warm=warm, busy=1, waiting=others + len(running))  # noqa: E731
        journal = SimpleNamespace(
            claim=lambda _, __, room: [Claimed(str(next(numbers)), "digest", None) for _ in range(room)],
            give_back=lambda *_: None,
        )
        held = dispatcher_of(journal, SimpleNamespace(load=load, run=never))  # type: ignore[arg-type]
        held.start()
        for _ in range(5):
            held.wake()
            await asyncio.sleep(0.05)
        await held.stop()

    asyncio.run(run())
    assert len(running) == claimed
