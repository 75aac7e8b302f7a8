"""Seconds by stage of what is worked on: a request, an item of a batch, a queued diagnosis.

They are collected for the one log line of a diagnosis, and each is a span where tracing is on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from rca_api import tracing

_collected: ContextVar[dict[str, float] | None] = ContextVar("stages", default=None)


class Timed(NamedTuple):
    """When a stage began, in Unix seconds, and how many seconds it took."""

    began: float
    seconds: float


class Watch:
    """Times one stage; the clock of the wall says when it began, a steady one how long it took."""

    def __init__(self) -> None:
        self._began = time.time()
        self._steady = time.perf_counter()

    def read(self) -> Timed:
        """Say what has passed so far."""
        return Timed(self._began, time.perf_counter() - self._steady)


@contextmanager
def collecting() -> Iterator[None]:
    """Collect the stages of what is done in this context, apart from those of whatever surrounds it."""
    token = _collected.set({})
    try:
        yield
    finally:
        _collected.reset(token)


def note(stage: str, timed: Timed) -> None:
    """Take down a stage that has ended; a repeated one adds up."""
    held = _collected.get()
    if held is not None:
        held[stage] = held.get(stage, 0.0) + timed.seconds
    tracing.stage(stage, timed.began, timed.seconds)


def milliseconds() -> dict[str, float]:
    """Give what was collected so far."""
    return {stage: round(1e3 * seconds, 2) for stage, seconds in (_collected.get() or {}).items()}
