"""Diagnoses and their windows in the database; every function works in the caller's transaction."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import NamedTuple, cast

from sqlalchemy import ColumnElement, Select, Table, and_, func, select
from sqlalchemy.orm import Session, undefer

from rca_api.diagnoses.history import HealthyWindow, without_overlaps
from rca_api.diagnoses.tables import BlameRow, DiagnosisRow, WindowRow
from rca_api.diagnoses.work import DiagnosisAnswer, StoredWindow
from rca_api.shell.store.database import Database
from rca_api.shell.store.deletion import insert_of
from rca_api.shell.store.leases import Claim, Leases

#: Jobs with healthy windows in the history, which is sent with every task.
MAX_JOBS = 1000
#: Newest windows of a job that are compared; sliding windows overlap.
MAX_CANDIDATES = 128
QUEUED, RUNNING, DONE, FAILED = "queued", "running", "done", "failed"
LEASES = Leases(
    DiagnosisRow,
    key=DiagnosisRow.id,
    owner=DiagnosisRow.lease_owner,
    until=DiagnosisRow.lease_until,
    attempts=DiagnosisRow.attempts,
    unfinished=DiagnosisRow.state.in_((QUEUED, RUNNING)),
)


def keep_window(session: Session, window: StoredWindow, at: datetime) -> None:
    """Store that a window is in the window store and was used at `at`."""
    values = {
        "digest": window.digest,
        "job_id": window.job_id,
        "n_bytes": window.n_bytes,
        "created_at": at,
        "used_at": at,
    }
    # One statement, because two requests may store the same window at once.
    insert = insert_of(session, cast("Table", WindowRow.__table__)).values(values)
    again = {"used_at": at, "n_bytes": window.n_bytes}
    session.execute(insert.on_conflict_do_update(index_elements=["digest"], set_=again))


def add_done(
    session: Session,
    window: StoredWindow,
    answer: DiagnosisAnswer,
    *,
    asked_by: str | None,
    request_id: str | None = None,
    at: datetime,
) -> DiagnosisRow:
    """Store a diagnosis that was answered in its request."""
    row = _row(session, window, asked_by=asked_by, request_id=request_id, at=at)
    row.id = answer.diagnosis_id
    finish(row, answer, at)
    session.add(row)
    session.flush()
    return row


def add_queued(
    session: Session,
    window: StoredWindow,
    *,
    diagnosis_id: str,
    asked_by: str | None,
    request_id: str | None = None,
    turn: int,
    at: datetime,
) -> DiagnosisRow:
    """Queue a diagnosis of a window in the window store; `turn` is its place in the queue."""
    row = _row(session, window, asked_by=asked_by, request_id=request_id, at=at)
    row.id, row.state, row.turn = diagnosis_id, QUEUED, turn
    session.add(row)
    session.flush()
    return row


def claim(
    session: Session, owner: str, at: datetime, length: timedelta, most: int, *, most_attempts: int
) -> Claim[DiagnosisRow]:
    """Claim the free diagnoses whose turn it is; those without attempts left are listed as exhausted."""
    order = (DiagnosisRow.turn, DiagnosisRow.created_at, DiagnosisRow.id)
    in_turn = select(DiagnosisRow).order_by(*order).limit(most)
    found = LEASES.claim(session, in_turn, owner, at, length, most_attempts=most_attempts)
    for row in found.rows:
        row.state = RUNNING
    return found


def give_up(row: DiagnosisRow, problem: bytes, at: datetime) -> None:
    """End a diagnosis without an answer."""
    row.state, row.problem, row.finished_at = FAILED, problem, at
    LEASES.end(row)


def find(session: Session, diagnosis_id: str) -> DiagnosisRow | None:
    """Look a diagnosis up, with its document."""
    return session.get(DiagnosisRow, diagnosis_id, options=[undefer(DiagnosisRow.document)])


class Queue(NamedTuple):
    """The queue as a caller finds it.

    Attributes
    ----------
    n_queued, n_mine : int
        Number of queued diagnoses, of all callers and of this one.
    turn : int
        Place of the caller's next one. Each caller has one diagnosis in each turn, from the turn that is
        worked on now. So a caller waits for one diagnosis of each other caller, however many those have.
    """

    n_queued: int
    n_mine: int
    turn: int


def queue_for(session: Session, asked_by: str | None) -> Queue:
    """Count the queue, and give the next turn of a caller in it."""
    row = DiagnosisRow
    is_mine = row.asked_by.is_not_distinct_from(asked_by)
    n_queued, n_mine, mine, *places = session.execute(
        select(
            func.count().filter(row.state == QUEUED),
            func.count().filter(row.state == QUEUED, is_mine),
            func.max(row.turn).filter(is_mine),
            # A repeated diagnosis keeps its early turn, which is not the present one any more.
            func.max(row.turn).filter(row.state == RUNNING, row.attempts == 1),
            func.min(row.turn).filter(row.attempts == 0),
            func.max(row.turn),
        ).where(row.state.in_((QUEUED, RUNNING)))
    ).one()
    present = next((turn for turn in places if turn is not None), 0)
    return Queue(n_queued, n_mine, present if mine is None else max(present, mine + 1))


def matching(
    *,
    job: str | None = None,
    node: str | None = None,
    cause: str | None = None,
    failure_mode: str | None = None,
    abstained: bool | None = None,
    state: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Select[DiagnosisRow]:
    """Select diagnoses; a node and a cause must belong to the same blame."""
    wanted: list[ColumnElement[bool]] = [
        column == value
        for column, value in (
            (DiagnosisRow.job_id, job),
            (DiagnosisRow.failure_mode, failure_mode),
            (DiagnosisRow.abstained, abstained),
            (DiagnosisRow.state, state),
        )
        if value is not None
    ]
    blamed = [
        column == value
        for column, value in ((BlameRow.node, node), (BlameRow.cause, cause))
        if value is not None
    ]
    if blamed:
        # Not EXISTS: SQLite would look for a blame of every diagnosis.
        wanted.append(DiagnosisRow.id.in_(select(BlameRow.diagnosis_id).where(*blamed)))
    if since is not None:
        wanted.append(DiagnosisRow.created_at >= since)
    if until is not None:
        wanted.append(DiagnosisRow.created_at < until)
    return select(DiagnosisRow).where(*wanted)


def _row(
    session: Session, window: StoredWindow, *, asked_by: str | None, request_id: str | None, at: datetime
) -> DiagnosisRow:
    keep_window(session, window, at)
    return DiagnosisRow(
        created_at=at,
        window_digest=window.digest,
        window_id=window.window_id,
        job_id=window.job_id,
        window_start=window.start,
        window_end=window.end,
        world_size=window.world_size,
        nodes=window.nodes or None,
        asked_by=asked_by,
        request_id=request_id,
    )


def finish(row: DiagnosisRow, answer: DiagnosisAnswer, at: datetime) -> None:
    """Store an answer in its row."""
    row.state, row.finished_at, row.problem = DONE, at, None
    LEASES.end(row)
    row.failure_mode = answer.failure_mode
    row.abstained = answer.abstained
    row.cause = answer.causes[0] if answer.causes else None
    row.seconds_per_step = answer.seconds_per_step
    row.model_sha256 = answer.model_sha256
    row.document = answer.document
    row.blames = [BlameRow(**asdict(blame)) for blame in answer.blames]


def healthy_windows(session: Session, *, since: datetime) -> dict[str, tuple[HealthyWindow, ...]]:
    """The last healthy windows of each job that are still stored; abstentions do not count.

    Parameters
    ----------
    since : datetime
        Older diagnoses are ignored.

    Returns
    -------
    dict of job to tuple of HealthyWindow
        For the jobs that were diagnosed last; newest window first.
    """
    row = DiagnosisRow
    found_healthy = and_(
        row.state == DONE,
        row.failure_mode == "healthy",
        row.abstained.is_(False),
        row.window_digest.is_not(None),
        row.created_at >= since,
    )
    last_jobs = (
        select(row.job_id).where(found_healthy).group_by(row.job_id).order_by(func.max(row.created_at).desc())
    ).limit(MAX_JOBS)
    place = func.row_number().over(
        partition_by=row.job_id, order_by=(row.window_end.desc(), row.window_digest)
    )
    ranked = (
        select(row.job_id, row.window_digest, row.window_start, row.window_end, place.label("place"))
        .where(found_healthy, row.job_id.in_(last_jobs))
        .group_by(row.job_id, row.window_digest, row.window_start, row.window_end)
        .subquery()
    )
    newest = select(ranked).where(ranked.c.place <= MAX_CANDIDATES).order_by(ranked.c.job_id, ranked.c.place)
    windows: dict[str, list[HealthyWindow]] = {}
    for job_id, digest, start, end, _ in session.execute(newest):
        windows.setdefault(job_id, []).append(HealthyWindow(digest, start, end))
    return {job_id: without_overlaps(found) for job_id, found in windows.items()}


def newest_windows(database: Database, most: int = 6, among: int = 50) -> list[str]:
    """Digests of the smallest of the windows diagnosed last, to try a model on."""
    diagnosed = select(DiagnosisRow.id).where(
        DiagnosisRow.window_digest == WindowRow.digest, DiagnosisRow.state == DONE
    )
    with database.reading() as session:
        newest = select(WindowRow.digest, WindowRow.n_bytes).where(diagnosed.exists())
        found = session.execute(newest.order_by(WindowRow.used_at.desc()).limit(among)).all()
    return [digest for digest, _ in sorted(found, key=lambda each: each[1])][:most]
