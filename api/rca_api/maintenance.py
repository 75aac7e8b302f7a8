"""What keeps the stored things in order: the schema at start, what is too old now and then."""

from __future__ import annotations

import asyncio

import structlog
from fastapi.concurrency import run_in_threadpool

from rca.errors import RcaError
from rca_api.state import State
from rca_api.store.database import StoreError
from rca_api.store.migrating import migrate

_log = structlog.stdlib.get_logger("rca_api")


_PAUSE_SECONDS = 2.0


def upgraded(state: State) -> bool:
    """Migrate; a database that is away does not keep the service from starting and saying so."""
    try:
        migrate(state.database)
    except StoreError as error:
        _log.error("the database cannot be migrated", reason=error.message)
        return False
    return True


async def upgrade_later(state: State) -> None:
    """Migrate as soon as the database is there, so that nobody has to restart the service."""
    while not await run_in_threadpool(upgraded, state):
        await asyncio.sleep(_PAUSE_SECONDS)


async def tidy_up(state: State) -> None:
    """Delete windows over the limits and expired idempotency keys, until cancelled."""
    while True:
        # Not at once: a service that starts has better things to do.
        await asyncio.sleep(state.settings.retention_interval_seconds)
        try:
            pruned = await run_in_threadpool(state.retention.prune)
            keys = await run_in_threadpool(state.keys.forget_expired)
        except RcaError as error:
            _log.warning("tidying up has to wait", reason=error.message)
        else:
            _log.info("tidied up", windows=pruned.windows, n_bytes=pruned.n_bytes, keys=keys)
