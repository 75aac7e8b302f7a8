"""Training runs in the database: who may work on one, and the only ways their state changes.

States go forward only: queued -> running -> succeeded, failed or cancelled. A running one belongs to the
worker whose lease has not run out; every write of a worker names it, so one that lost its lease changes
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from rca_api.training_runs.tables import TrainingRunRow

FINAL = ("succeeded", "failed", "cancelled")
Order = Literal["go on", "cancel", "lost"]


class ActiveRun(Exception):
    """Another run is queued or running; there is one at a time."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id


@dataclass(frozen=True)
class Progress:
    """How far a run is; `total` 0 where its phase has no amount."""

    phase: str
    completed: int = 0
    total: int = 0


@dataclass(frozen=True)
class Terms:
    """How long a worker keeps a run without a sign of life, and how many of them may try."""

    lease: timedelta = timedelta(seconds=30)
    attempts: int = 3


def create(
    session: Session,
    kind: str,
    order: dict[str, Any],
    *,
    now: datetime,
    asked_by: str | None = None,
    asked_by_name: str = "",
) -> TrainingRunRow:
    """Store a new run.

    Raises
    ------
    ActiveRun
        If there is one already; of any number that are created at once, one wins.
    """
    _end_if_nobody_will(session, now)
    row = TrainingRunRow(
        kind=kind, order=order, created_at=now, asked_by=asked_by, asked_by_name=asked_by_name
    )
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        active = session.scalars(select(TrainingRunRow.id).where(TrainingRunRow.active == 1)).one_or_none()
        raise ActiveRun(active or "") from None
    return row


def get(session: Session, run_id: str, now: datetime) -> TrainingRunRow | None:
    """Look a run up, as it is at `now`."""
    _end_if_nobody_will(session, now)
    return session.get(TrainingRunRow, run_id)


def last_heartbeat(session: Session) -> datetime | None:
    """When the worker of the running run last gave a sign of life; None where none runs."""
    running = select(TrainingRunRow.heartbeat_at).where(TrainingRunRow.state == "running")
    return session.scalars(running).one_or_none()


def claim(session: Session, worker: str, now: datetime, terms: Terms) -> TrainingRunRow | None:
    """Take the run that nobody works on, if there is one, for the length of a lease.

    A run that was to be cancelled, or that too many workers died of, is ended instead.
    """
    row = _free(session, now, terms)
    if row is None:
        return None
    if row.cancel_requested_at is not None:
        _end(row, "cancelled", now)
        return None
    if row.attempts >= terms.attempts:
        told = f"{row.attempts} workers took it up and died of it, or were killed"
        _end(row, "failed", now, problem={"code": "worker-lost", "detail": told})
        return None
    row.state = "running"
    row.started_at = row.started_at or now
    row.attempts += 1
    row.worker = worker
    row.heartbeat_at, row.lease_until = now, now + terms.lease
    _tell(row, Progress("starting"))
    return row


def heartbeat(
    session: Session, run_id: str, worker: str, now: datetime, terms: Terms, progress: Progress
) -> Order:
    """Note that the worker is alive and how far it is; say what it has to do."""
    row = _own(session, run_id, worker)
    if row is None:
        return "lost"
    row.heartbeat_at, row.lease_until = now, now + terms.lease
    _tell(row, progress)
    return "cancel" if row.cancel_requested_at is not None else "go on"


def finish(
    session: Session,
    run_id: str,
    worker: str,
    state: str,
    now: datetime,
    *,
    result: dict[str, Any] | None = None,
    problem: dict[str, Any] | None = None,
) -> bool:
    """End a run; False if it belongs to another worker by now, or has ended."""
    row = _own(session, run_id, worker)
    if row is None:
        return False
    _end(row, state, now, result=result, problem=problem)
    return True


def release(session: Session, run_id: str, worker: str, now: datetime, *, counted: bool) -> bool:
    """Give a run back for another worker to take up; `counted` if this attempt was one of those allowed."""
    row = _own(session, run_id, worker)
    if row is None:
        return False
    row.lease_until = now
    row.worker = None
    if not counted:
        row.attempts -= 1
    _tell(row, Progress("waiting for a worker"))
    return True


def cancel(session: Session, run_id: str, now: datetime) -> TrainingRunRow | None:
    """Ask for a run to end; at once where nobody works on it, else its worker does within seconds.

    Returns
    -------
    TrainingRunRow or None
        None if there is no such run; unchanged if it has ended before.
    """
    row = session.scalars(
        select(TrainingRunRow).where(TrainingRunRow.id == run_id).with_for_update()
    ).one_or_none()
    if row is not None and row.state not in FINAL:
        row.cancel_requested_at = row.cancel_requested_at or now
        session.flush()
        _end_if_nobody_will(session, now)
    return row


def _end_if_nobody_will(session: Session, now: datetime) -> None:
    """Cancel what was to be cancelled and has no living worker that could do it."""
    wanted = TrainingRunRow.active == 1, TrainingRunRow.cancel_requested_at.is_not(None)
    if session.scalars(select(TrainingRunRow.id).where(*wanted)).one_or_none() is None:
        return
    row = session.scalars(select(TrainingRunRow).where(*wanted).with_for_update()).one_or_none()
    if row is not None and (row.state == "queued" or row.lease_until is None or row.lease_until <= now):
        _end(row, "cancelled", now)
        session.flush()


def _free(session: Session, now: datetime, terms: Terms) -> TrainingRunRow | None:
    nobody = or_(
        TrainingRunRow.state == "queued",
        TrainingRunRow.lease_until <= now,
        # No worker sets one so far ahead: the clock has been put back since.
        TrainingRunRow.lease_until > now + 2 * terms.lease,
    )
    return session.scalars(
        select(TrainingRunRow).where(TrainingRunRow.active == 1, nobody).with_for_update(skip_locked=True)
    ).one_or_none()


def _own(session: Session, run_id: str, worker: str) -> TrainingRunRow | None:
    return session.scalars(
        select(TrainingRunRow)
        .where(
            TrainingRunRow.id == run_id, TrainingRunRow.state == "running", TrainingRunRow.worker == worker
        )
        .with_for_update()
    ).one_or_none()


def _tell(row: TrainingRunRow, progress: Progress) -> None:
    row.phase, row.completed, row.total = progress.phase[:128], progress.completed, progress.total


def _end(
    row: TrainingRunRow,
    state: str,
    now: datetime,
    *,
    result: dict[str, Any] | None = None,
    problem: dict[str, Any] | None = None,
) -> None:
    row.state, row.active = state, None
    row.finished_at = now
    row.lease_until = row.worker = None
    row.result, row.problem = result, problem
