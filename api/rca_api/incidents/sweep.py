"""Resolves incidents of silent jobs, once a minute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog
from starlette.concurrency import run_in_threadpool

from rca.errors import RcaError
from rca_api.incidents import repository
from rca_api.incidents.service import IncidentTracker
from rca_api.store.base import now
from rca_api.store.database import Database

#: A larger difference of the two clocks between sweeps means that the wall clock was set.
_CLOCK_STEP_SECONDS = 60.0
_log = structlog.stdlib.get_logger("rca_api.incidents")


class Sweeper:
    """Looks for silent jobs.

    Silence counts from the start of the service, and again from each time the clock was set or the machine
    slept. A service that was away for a day does not know which windows it missed.

    Parameters
    ----------
    silence_seconds : float
    clock, ticks : callable
        Wall clock of the service; monotonic clock, seconds.
    """

    def __init__(
        self,
        database: Database,
        tracker: IncidentTracker,
        silence_seconds: float,
        *,
        every_seconds: float = 60.0,
        clock: Callable[[], datetime] = now,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._tracker = tracker
        self._silence = timedelta(seconds=silence_seconds)
        self._every_seconds = every_seconds
        self._clock = clock
        self._ticks = ticks
        self._counted_from = self._last_time = clock()
        self._last_ticks = ticks()

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(self._every_seconds)
            await run_in_threadpool(self.sweep)

    def sweep(self) -> int:
        """Resolve incidents of silent jobs; gives their number."""
        at, ticks = self._clock(), self._ticks()
        passed = (at - self._last_time).total_seconds()
        if abs(passed - (ticks - self._last_ticks)) > _CLOCK_STEP_SECONDS:
            self._counted_from = at
        self._last_time, self._last_ticks = at, ticks
        try:
            return self._resolve(at) if at - self._counted_from >= self._silence else 0
        except RcaError as error:
            _log.warning("the search for silent jobs is postponed", reason=error.message)
            return 0

    def _resolve(self, at: datetime) -> int:
        silent_since = at - self._silence
        with self._database.reading() as session:
            jobs = list(session.scalars(repository.silent_since(silent_since)))
        resolved = 0
        for job_id in jobs:
            # One transaction per job, so that a diagnosis that arrives meanwhile waits for one job only.
            with self._database.session() as session:
                resolved += self._tracker.resolve_silent(session, job_id, silent_since)
        return resolved
