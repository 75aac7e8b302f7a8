"""What runs beside the requests outlives whatever goes wrong."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.concurrency import run_in_threadpool

from rca_api import upkeep
from rca_api.compute.pool import ComputePool
from rca_api.compute.process import Setup
from rca_api.diagnoses.dispatcher import Dispatcher
from rca_api.metrics import Metrics
from rca_api.models.current import BundleRef, CurrentModels
from rca_api.settings import Settings
from rca_api.store.database import Schema, StoreError


def test_a_database_that_comes_back_is_migrated_then(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([StoreError("away"), StoreError("still away"), Schema("0002", "0002")])

    def upgrade() -> Schema:
        answer = next(answers)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    monkeypatch.setattr(upkeep, "_PAUSE_SECONDS", 0.0)
    state: Any = SimpleNamespace(database=SimpleNamespace(upgrade=upgrade))
    asyncio.run(asyncio.wait_for(upkeep.upgrade_later(state), 5))
    assert list(answers) == []


def test_the_dispatcher_outlives_a_database_that_fails() -> None:
    asked: list[int] = []

    def claim(owner: str, lease_seconds: float, most: int) -> list[Any]:
        asked.append(most)
        if len(asked) <= 2:
            raise StoreError("away") if len(asked) == 1 else RuntimeError("no such table")
        return []

    async def run() -> None:
        setup = Setup(BundleRef(None), None, "")
        pool = ComputePool(lambda: setup, 1, 0, Metrics())
        journal: Any = SimpleNamespace(claim=claim)
        memory: Any = SimpleNamespace()
        dispatcher = Dispatcher(
            journal,
            pool,
            CurrentModels(BundleRef(None)),
            memory,
            Settings(processes=1),
            print,
        )
        dispatcher.start()
        async with asyncio.timeout(20):
            while len(asked) < 3:
                dispatcher.wake()
                await run_in_threadpool(lambda: None)
        await dispatcher.stop()

    asyncio.run(run())
