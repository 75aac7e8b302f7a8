"""Windows that an incident is made of, and what is kept of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from diagnosed import SECONDS, SETTINGS, START, Clock, diagnosed
from sqlalchemy import select

from rca_api.incidents.announce import Announcer
from rca_api.incidents.service import IncidentTracker
from rca_api.incidents.tables import IncidentEventRow, IncidentRow
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.store.database import Database

WORDS = {"h": "healthy", "u": "unsure", "s": "suspect", "n": "nic_degradation", "c": "cpu_contention"}


@pytest.fixture
def follower(clock: Clock) -> IncidentTracker:
    return IncidentTracker(SETTINGS, Announcer(Metrics()), clock)


def post(
    database: Database,
    follower: IncidentTracker,
    letters: str,
    numbers: Sequence[float] = (),
    job: str = "job",
) -> None:
    for number, letter in zip(numbers or range(len(letters)), letters, strict=True):
        with database.session() as session:
            diagnosed(session, follower, job=job, number=number, said=WORDS[letter])


def events(database: Database, job: str = "job") -> list[str]:
    statement = select(IncidentEventRow).join(IncidentRow).where(IncidentRow.job_id == job)
    with database.reading() as session:
        rows = session.scalars(statement.order_by(IncidentEventRow.id))
        return [f"{(row.window_end - START) / SECONDS - 1:g} {row.kind}" for row in rows]


def incidents(database: Database) -> list[IncidentRow]:
    with database.reading() as session:
        return list(session.scalars(select(IncidentRow).order_by(IncidentRow.began)))
