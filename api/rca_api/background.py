"""Work that goes on beside the requests for as long as the service runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog

#: Pause before work that failed is begun anew.
_PAUSE_SECONDS = 5.0
_log = structlog.stdlib.get_logger("rca_api.background")

Work = Callable[[], Awaitable[None]]


@asynccontextmanager
async def running(*works: Work, pause_seconds: float = _PAUSE_SECONDS) -> AsyncIterator[None]:
    """Run each work until the context ends, then cancel it and wait for what it has to finish."""
    tasks = [asyncio.create_task(_forever(work, pause_seconds)) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forever(work: Work, pause_seconds: float) -> None:
    """Begin anew what failed: one surprise must not end it until somebody restarts the service."""
    while True:
        try:
            await work()
        except Exception:
            _log.exception("background work failed")
        await asyncio.sleep(pause_seconds)
