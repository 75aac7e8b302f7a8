"""Resolves incidents of silent jobs, once a minute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog
from starlette.concurrency import run_in_threadpool

from rca.errors import RcaError
from rca_api.incidents import repository
from rca_api.incidents.service import IncidentTracker
from rca_api.shell.store.base import now
from rca_api.shell.store.database import Database
from rca_api.shell.store.waits import Listening

_log = structlog.stdlib.get_logger("rca_api.incidents")


class Sweeper:
    """Looks for jobs that have been silent as long as the service was listening.

    Parameters
    ----------
    clock : callable
        Wall clock of the service.
    """

    def __init__(
        self,
        database: Database,
        tracker: IncidentTracker,
        silence_seconds: float,
        listening: Listening,
        *,
        every_seconds: float = 60.0,
        clock: Callable[[], datetime] = now,
    ) -> None:
        self._database = database
        self._tracker = tracker
        self._silence = timedelta(seconds=silence_seconds)
        self._every_seconds = every_seconds
        self._listening = listening
        self._clock = clock

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(self._every_seconds)
            await run_in_threadpool(self.sweep)

    def sweep(self) -> int:
        """Resolve incidents of silent jobs; gives their number."""
        if self._listening.seconds() < self._silence.total_seconds():
            return 0
        try:
            return self._resolve(self._clock())
        except RcaError as error:
            _log.warning("the search for silent jobs is postponed", reason=error.message)
            return 0

    def _resolve(self, at: datetime) -> int:
        with self._database.reading() as session:
            jobs = list(session.scalars(repository.silent(at, self._silence)))
        resolved = 0
        for job_id in jobs:
            # One transaction per job, so that a diagnosis that arrives meanwhile waits for one job only.
            with self._database.session() as session:
                resolved += self._tracker.resolve_silent(session, job_id)
        return resolved
