"""What starts and ends with the service: processes, background work, the schema, deletion of old windows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import structlog
from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool

from rca.errors import RcaError
from rca_api.shell.observability import tracing
from rca_api.shell.observability.gauges import COUNT_SECONDS, count
from rca_api.shell.state import State
from rca_api.shell.store.database import StoreError, migrate
from rca_api.shell.store.waits import Listening

_log = structlog.stdlib.get_logger("rca_api.background")
#: Pause before background work that failed starts again.
_RESTART_SECONDS = 5.0
#: Pause between two attempts to migrate a database that is away.
_MIGRATION_SECONDS = 2.0
_MINUTE = 60.0

Work = Callable[[], Awaitable[None]]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Start the parts of `app`, and end them in the opposite order."""
    state: State = app.state.parts
    # First, because warming up takes longest. Requests that come meanwhile wait for it.
    state.pool.start()
    migrating: asyncio.Task[None] | None = None
    try:
        if state.settings.migrate and not await run_in_threadpool(upgraded, state):
            migrating = asyncio.create_task(upgrade_later(state))
        await run_in_threadpool(state.authority.prepare)
        await run_in_threadpool(state.spool.clean)
        await run_in_threadpool(state.follower.resume)
        state.dispatcher.start()
        works: tuple[Work, ...] = (
            state.webhook_dispatcher.run,
            state.watcher.run,
            partial(every, _MINUTE, state.sweeper.sweep),
            partial(every, _MINUTE, state.memory.refresh),
            partial(every, COUNT_SECONDS, partial(count, state.database, state.metrics)),
            *tidying(state),
        )
        if state.settings.follow_seconds > 0:
            works = (*works, partial(every, state.settings.follow_seconds, state.follower.poll))
        async with running(*works):
            yield
            # Ends a poll that waits for the registry or for the trial of a bundle.
            state.trial.close()
            await run_in_threadpool(state.registry.close)
        if migrating is not None:
            migrating.cancel()
        await state.dispatcher.stop()
    finally:
        await state.shadow.close()
        state.authority.close()
        await state.pool.close()
        await run_in_threadpool(state.spool.close)
        state.database.close()
        await run_in_threadpool(tracing.stop)


@asynccontextmanager
async def running(*works: Work, pause_seconds: float = _RESTART_SECONDS) -> AsyncIterator[None]:
    """Run each work until the context ends, then cancel it and wait for what it has to finish."""
    tasks = [asyncio.create_task(_forever(work, pause_seconds)) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forever(work: Work, pause_seconds: float) -> None:
    """Restart work that failed, so that one unexpected error does not end it."""
    while True:
        try:
            await work()
        except Exception:
            _log.exception("background work failed")
        await asyncio.sleep(pause_seconds)


async def every(pause_seconds: float, work: Callable[[], object]) -> None:
    """Do some work in a thread again and again, until cancelled; no error ends it."""
    while True:
        try:
            await asyncio.to_thread(work)
        except RcaError as error:
            _log.warning("background work is postponed", reason=error.message)
        except Exception:
            _log.exception("background work failed")
        await asyncio.sleep(pause_seconds)


def upgraded(state: State) -> bool:
    """Migrate; False if the database is away, so that the service starts and `/readyz` reports it."""
    try:
        migrate(state.database)
    except StoreError as error:
        _log.error("the database cannot be migrated", reason=error.message)
        return False
    return True


async def upgrade_later(state: State) -> None:
    """Migrate as soon as the database is back; the service needs no restart."""
    while not await run_in_threadpool(upgraded, state):
        await asyncio.sleep(_MIGRATION_SECONDS)


def tidying(state: State) -> tuple[Work, ...]:
    """What deletes the old, each on its own: none waits for another one or fails with it."""
    works: dict[str, Callable[[], object]] = {
        "expired idempotency keys": state.keys.forget_expired,
        "old rows": state.old_rows.delete,
        "old windows": state.retention.prune,
        "bodies of ended processes": state.spool.clean,
        "statistics of indexes": state.database.analyze,
    }
    pause, listening = state.settings.retention_interval_seconds, state.listening
    return tuple(partial(repeated, what, work, pause, listening) for what, work in works.items())


async def repeated(what: str, work: Callable[[], object], pause_seconds: float, listening: Listening) -> None:
    """Do some work again and again, until cancelled.

    After the clock was set, or the machine slept, one time is left out. A clock that jumps ahead makes new
    rows look old.
    """
    while True:
        # The first time waits as well: it must not slow down the start.
        await asyncio.sleep(pause_seconds)
        if listening.seconds() < pause_seconds:
            _log.warning(
                "tidying up is postponed",
                what=what,
                reason="the clock was set, or the machine slept: check the clock",
                seconds=pause_seconds,
            )
            continue
        try:
            done = await run_in_threadpool(work)
        except RcaError as error:
            _log.warning("tidying up is postponed", what=what, reason=error.message)
        else:
            _log.info("tidied up", what=what, done=done if isinstance(done, dict | int) else str(done))
