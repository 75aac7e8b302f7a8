"""Training runs in the database: orders, claims by workers, and every change of state.

States only go forward: queued -> running -> succeeded, failed or cancelled. A running run belongs to the
worker that has its lease; a worker without it changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from rca_api.shell.store.leases import Leases
from rca_api.training_runs.tables import TrainingRunRow

FINAL = ("succeeded", "failed", "cancelled")
#: How long a worker keeps a run without a heartbeat.
LEASE = timedelta(seconds=30)
LEASES = Leases(
    TrainingRunRow,
    key=TrainingRunRow.id,
    owner=TrainingRunRow.worker,
    until=TrainingRunRow.lease_until,
    attempts=TrainingRunRow.attempts,
    unfinished=TrainingRunRow.active == 1,
)
Instruction = Literal["go on", "cancel", "lost"]


class ActiveRun(Exception):
    """Another run is queued or running; one may be active at a time."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id


@dataclass(frozen=True)
class RunProgress:
    """How far a run is; `total` is 0 if its phase has no amount."""

    phase: str
    completed: int = 0
    total: int = 0


@dataclass(frozen=True)
class Terms:
    """How long a worker keeps a run without a heartbeat, and how many workers may try."""

    lease: timedelta = LEASE
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
        If a run is active already. Of several that are created at once, one is stored.
    """
    _end_cancelled(session, now)
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
    _end_cancelled(session, now)
    return session.get(TrainingRunRow, run_id)


def last_heartbeat(session: Session) -> datetime | None:
    """Last heartbeat of the worker of the running run; None if none runs."""
    running = select(TrainingRunRow.heartbeat_at).where(TrainingRunRow.state == "running")
    return session.scalars(running).one_or_none()


def has_active(session: Session) -> bool:
    """Whether a run is queued or running; cheap enough to call every second."""
    return session.scalar(select(TrainingRunRow.id).where(TrainingRunRow.active == 1)) is not None


def claim(session: Session, worker: str, now: datetime, terms: Terms) -> TrainingRunRow | None:
    """Claim the active run, if no worker has it; None if there is nothing to work on.

    A run that is to be cancelled is ended instead, and so is one whose attempts are used up.
    """
    _end_cancelled(session, now, terms.lease)
    active = select(TrainingRunRow).where(TrainingRunRow.active == 1)
    found = LEASES.claim(session, active, worker, now, terms.lease, most_attempts=terms.attempts)
    for row in found.exhausted:
        detail = f"{row.attempts} workers took the run up, and each ended before the run did"
        _end(row, "failed", now, problem={"code": "worker-lost", "detail": detail})
    # At most one run is active.
    for row in found.rows:
        row.state = "running"
        row.started_at = row.started_at or now
        row.heartbeat_at = now
        _set_progress(row, RunProgress("starting"))
    return next(iter(found.rows), None)


def heartbeat(
    session: Session, run_id: str, worker: str, now: datetime, terms: Terms, progress: RunProgress
) -> Instruction:
    """Renew the lease of a worker and store how far its run is; returns what the worker has to do."""
    renewed = LEASES.renew(session, worker, [run_id], now, terms.lease)
    if not renewed:
        return "lost"
    [row] = renewed
    row.heartbeat_at = now
    _set_progress(row, progress)
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
    """End a run; False if the worker no longer has its lease."""
    row = LEASES.held_one(session, worker, run_id)
    if row is None:
        return False
    _end(row, state, now, result=result, problem=problem)
    return True


def give_back(session: Session, run_id: str, worker: str, *, counted: bool) -> bool:
    """Free a run for another worker; unless `counted`, this attempt does not count."""
    given_back = LEASES.give_back(session, worker, [run_id], counted=counted)
    for row in given_back:
        _set_progress(row, RunProgress("waiting for a worker"))
    return bool(given_back)


def cancel(session: Session, run_id: str, now: datetime) -> TrainingRunRow | None:
    """Cancel a run: at once if no worker has it, else its worker ends it within seconds.

    Returns
    -------
    TrainingRunRow or None
        None if there is no such run; unchanged if it had ended.
    """
    row = session.scalars(
        select(TrainingRunRow).where(TrainingRunRow.id == run_id).with_for_update()
    ).one_or_none()
    if row is not None and row.state not in FINAL:
        row.cancel_requested_at = row.cancel_requested_at or now
        session.flush()
        _end_cancelled(session, now)
    return row


def _end_cancelled(session: Session, now: datetime, lease: timedelta = LEASE) -> None:
    """End a run that is to be cancelled and that no living worker has."""
    wanted = (TrainingRunRow.cancel_requested_at.is_not(None), LEASES.is_free(now, lease))
    # A look without a lock first, because every request for a run comes here.
    if session.scalars(select(TrainingRunRow.id).where(*wanted)).one_or_none() is None:
        return
    row = session.scalars(select(TrainingRunRow).where(*wanted).with_for_update()).one_or_none()
    if row is not None:
        _end(row, "cancelled", now)
        session.flush()


def _set_progress(row: TrainingRunRow, progress: RunProgress) -> None:
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
    LEASES.end(row)
    row.result, row.problem = result, problem
