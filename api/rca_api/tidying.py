"""Tasks that run now and then beside the requests."""

from __future__ import annotations

import asyncio

import structlog
from fastapi.concurrency import run_in_threadpool

from rca.errors import RcaError
from rca_api.state import State

_log = structlog.stdlib.get_logger("rca_api")


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
