"""A slot that is stopped while its process is being started leaves no process."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from played_slots import SETUP

from rca_api.shell.processes import slot as slots
from rca_api.shell.processes.slot import Slot


class _LateChild:
    """A child whose process begins when the test says so."""

    begins = threading.Event()
    ended = threading.Event()

    def __init__(self, *_: Any) -> None:
        self.begins.wait(10)

    def await_ready(self, _seconds: float) -> Any:
        raise AssertionError("a stopped slot waits for no process")

    def end(self) -> None:
        self.ended.set()


def test_a_process_that_begins_after_the_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "ChildProcess", _LateChild)

    async def stopped() -> Slot:
        slot = Slot()
        start = asyncio.create_task(slot.start(SETUP))
        await asyncio.sleep(0.01)
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        await slot.stop()
        _LateChild.begins.set()
        await asyncio.to_thread(_LateChild.ended.wait, 10)
        return slot

    slot = asyncio.run(stopped())
    assert _LateChild.ended.is_set()
    assert slot.report is None
