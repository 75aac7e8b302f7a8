"""Resolves incidents of jobs that fell silent, and forgets old deliveries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog
from sqlalchemy import delete
from starlette.concurrency import run_in_threadpool

from rca.errors import RcaError
from rca_api.incidents import repository
from rca_api.incidents.service import Follower
from rca_api.store.base import now
from rca_api.store.database import Database
from rca_api.webhooks.tables import DeliveryRow

#: The two clocks may drift apart by that much between sweeps; more is a clock that was set.
_DRIFT_SECONDS = 60.0
_log = structlog.stdlib.get_logger("rca_api.incidents")


class Sweeper:
    """Looks for silence now and then.

    Silence counts while somebody listened: after a start, and after the clock was set or the machine slept,
    it is counted from there. A service that was away for a day has not heard that jobs ended.

    Parameters
    ----------
    silence_seconds : float
    keep_days : float
        How long delivered webhooks are kept.
    clock, ticks : callable
        The service's time; seconds that only go forward.
    """

    def __init__(
        self,
        database: Database,
        follower: Follower,
        silence_seconds: float,
        keep_days: float,
        *,
        every_seconds: float = 60.0,
        clock: Callable[[], datetime] = now,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._follower = follower
        self._silence = timedelta(seconds=silence_seconds)
        self._keep = timedelta(days=keep_days)
        self._every_seconds = every_seconds
        self._clock = clock
        self._ticks = ticks
        self._listening_since = self._last_time = clock()
        self._last_ticks = ticks()

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(self._every_seconds)
            await run_in_threadpool(self.sweep)

    def sweep(self) -> int:
        """Resolve what fell silent; tells how many incidents that were."""
        at, ticks = self._clock(), self._ticks()
        passed = (at - self._last_time).total_seconds()
        if abs(passed - (ticks - self._last_ticks)) > _DRIFT_SECONDS:
            self._listening_since = at
        self._last_time, self._last_ticks = at, ticks
        try:
            with self._database.session() as session:
                old = DeliveryRow.finished_at < at - self._keep
                session.execute(delete(DeliveryRow).where(DeliveryRow.state == "delivered", old))
            return self._resolve(at) if at - self._listening_since >= self._silence else 0
        except RcaError as error:
            _log.warning("silence is looked for later", reason=error.message)
            return 0

    def _resolve(self, at: datetime) -> int:
        heard_before = at - self._silence
        with self._database.reading() as session:
            jobs = list(session.scalars(repository.silent_since(heard_before)))
        resolved = 0
        for job_id in jobs:
            # One transaction a job: a diagnosis that arrives meanwhile waits for one, not for all.
            with self._database.session() as session:
                resolved += self._follower.silenced(session, job_id, heard_before)
        return resolved
