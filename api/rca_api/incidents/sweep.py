"""What incidents need at a time and not at a window: the end of a silence, and that of a mute."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import structlog

from rca_api.incidents import repository
from rca_api.incidents.service import IncidentTracker
from rca_api.shell.store.base import now
from rca_api.shell.store.database import Database
from rca_api.shell.store.waits import Listening

_log = structlog.stdlib.get_logger("rca_api.incidents")


class Sweeper:
    """Looks for jobs that have been silent as long as the service was listening, and for mutes that are over.

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
        clock: Callable[[], datetime] = now,
    ) -> None:
        self._database = database
        self._tracker = tracker
        self._silence = timedelta(seconds=silence_seconds)
        self._listening = listening
        self._clock = clock

    def sweep(self) -> int:
        """End the mutes that are over, and resolve incidents of silent jobs; gives the number of those."""
        self._end_mutes()
        if self._listening.seconds() < self._silence.total_seconds():
            return 0
        at = self._clock()
        with self._database.reading() as session:
            jobs = list(session.scalars(repository.silent(at, self._silence)))
        resolved = 0
        for job_id in jobs:
            # One transaction per job, so that a diagnosis that arrives meanwhile waits for one job only.
            with self._database.session() as session:
                resolved += self._tracker.resolve_silent(session, job_id)
        return resolved

    def _end_mutes(self) -> None:
        with self._database.reading() as session:
            muted = list(session.scalars(repository.mute_over(self._clock())))
        for incident_id in muted:
            with self._database.session() as session:
                self._tracker.end_mute(session, incident_id)
