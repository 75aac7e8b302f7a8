"""Jobs in a database and a watcher with a clock of its own, whose looks take no process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import insert

from rca_api.diagnoses.journal import Journal
from rca_api.diagnoses.tables import WindowRow
from rca_api.jobs.tables import SegmentRow, StreamedJobRow
from rca_api.jobs.watcher import Watcher
from rca_api.jobs.work import Look
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.processes.pool import Load
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store.database import Database
from rca_api.shell.store.waits import Listening

START = datetime(2026, 1, 1, tzinfo=UTC)


class LookingPool:
    """Notes whose telemetry is looked at; nothing is found, except what `finds` names."""

    def __init__(self, warm: int = 1) -> None:
        self.looks: list[str] = []
        self.warm = warm
        self.finds: dict[str, Any] = {}
        self.during: Callable[[], None] = lambda: None
        self.at_work = self.most_at_work = 0

    def load(self) -> Load:
        return Load(self.warm, self.warm, 0, 0)

    async def run(self, task: Any, digests: list[str], *_: Any, deadline: Any) -> Look:
        [job_id] = {digest.rstrip("-") for digest in digests}
        self.looks.append(job_id)
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        await asyncio.sleep(0)
        self.during()
        self.at_work -= 1
        return Look(None, 0, None, self.finds.get(job_id))


class Dispatching:
    def wake(self) -> None:
        """Ignore it."""


class Streams:
    """Jobs in a database, and a watcher whose clock stands still unless it is moved."""

    def __init__(self, database: Database, warm: int = 1, listening: Listening | None = None) -> None:
        self.database = database
        self.now = START
        self.pool = LookingPool(warm)
        self.journal = Journal(database, Metrics(), (), lambda _: True, lambda: self.now)
        self.watcher = Watcher(
            database,
            self.pool,  # type: ignore[arg-type]
            self.journal,
            Dispatching(),  # type: ignore[arg-type]
            Settings(processes=1, watch_seconds=5.0),
            listening or Listening(),
            clock=lambda: self.now,
        )

    def begin(self, caller: str | None, *job_ids: str) -> None:
        """Each job sends one row, one millisecond after the other."""
        jobs: list[dict[str, Any]] = []
        for job_id in job_ids:
            self.now += timedelta(milliseconds=1)
            jobs.append({"job_id": job_id, "created_at": self.now, "digest": job_id.ljust(64, "-")})
        windows = [{**job, "n_bytes": 1, "used_at": self.now} for job in jobs]
        rows = [
            {
                "job_id": job["job_id"],
                "created_at": job["created_at"],
                "updated_at": job["created_at"],
                "world_size": 1,
                "begun_by": caller,
                "last_step": 0,
            }
            for job in jobs
        ]
        segments = [
            {
                "job_id": job["job_id"],
                "digest": job["digest"],
                "n_bytes": 1,
                "begin": 0.0,
                "end": 1.0,
                "last_step": 0,
                "received_at": self.now,
            }
            for job in jobs
        ]
        with self.database.session() as session:
            session.execute(insert(WindowRow), windows)
            session.execute(insert(StreamedJobRow), rows)
            session.execute(insert(SegmentRow), segments)

    def round(self) -> list[str]:
        """The jobs that one round of looks sees, in order."""
        before = len(self.pool.looks)
        assert asyncio.run(self.watcher.round()) == len(self.pool.looks) - before
        return self.pool.looks[before:]
