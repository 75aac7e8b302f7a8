"""Deletes windows that are too old or too many. Diagnoses stay, without the digest of the window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import cast

from sqlalchemy import ColumnElement, CursorResult, and_, delete, false, func, or_, select
from sqlalchemy.orm import Session

from rca_api.diagnoses.repository import QUEUED, RUNNING
from rca_api.diagnoses.tables import DiagnosisRow, WindowRow
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store.base import now
from rca_api.shell.store.database import Database
from rca_api.shell.store.deletion import insert_if_absent
from rca_api.shell.store.time_limits import TIDYING_SECONDS
from rca_api.shell.store.window_store import YOUNG_SECONDS, WindowStore

#: A condition on `WindowRow` under which a window is kept.
Keeper = ColumnElement[bool]
#: Windows looked up at once. Each is deleted in its own transaction, so that other writers wait briefly.
_WINDOWS_PER_READ = 500


@dataclass(frozen=True)
class Pruned:
    """Numbers of deleted windows.

    Attributes
    ----------
    windows, n_bytes : int
        Windows that were too old or too many, and their size.
    orphans : int
        Files without a row, of requests that failed before they stored it.
    """

    windows: int
    n_bytes: int
    orphans: int


class Retention:
    """Keeps the window store within its limits.

    Parameters
    ----------
    keepers : tuple of conditions
        Windows that meet one of them are never deleted.
    """

    def __init__(
        self, database: Database, windows: WindowStore, settings: Settings, keepers: tuple[Keeper, ...] = ()
    ) -> None:
        self._database = database
        self._windows = windows
        self.age = timedelta(days=settings.window_days)
        self._telemetry_age = timedelta(hours=settings.telemetry_hours)
        self._max_bytes = int(settings.max_window_store_bytes)
        self._keepers = keepers

    def prune(self, at: datetime | None = None, young_seconds: float = YOUNG_SECONDS) -> Pruned:
        """Delete windows over the limits, and files without a row that are older than `young_seconds`."""
        at = at or now()
        gone: list[WindowRow] = []
        while doomed := self._doomed(at):
            forgotten = [row for row in doomed if self._forget(row)]
            gone += forgotten
            if not forgotten:
                # All of them are in use again.
                break
        return Pruned(len(gone), sum(row.n_bytes for row in gone), self._sweep(young_seconds))

    def count(self, at: datetime | None = None) -> Pruned:
        """Numbers of the windows that `prune` would delete now; files without a row are not looked for."""
        at = at or now()
        old = select(func.count(), func.coalesce(func.sum(WindowRow.n_bytes), 0)).select_from(WindowRow)
        with self._database.reading(TIDYING_SECONDS) as session:
            windows, n_bytes = session.execute(old.where(self._is_old(at))).one()
            # Those that are too old go first, and make room.
            excess = self._excess(session) - n_bytes
            rest = select(WindowRow.n_bytes).where(self._deletable(), WindowRow.used_at >= at - self.age)
            for size in session.scalars(rest.order_by(WindowRow.used_at)):
                if excess <= 0:
                    break
                windows, n_bytes, excess = windows + 1, n_bytes + size, excess - size
        return Pruned(windows, int(n_bytes), 0)

    def forget_unused(self, session: Session, row: WindowRow) -> None:
        """Delete a window that the caller has locked, unless a diagnosis or the telemetry of a job uses it.

        The file is deleted before the transaction of the caller ends, as in `prune`.
        """
        used = select(DiagnosisRow.id).where(DiagnosisRow.window_digest == row.digest).limit(1)
        kept = select(WindowRow.digest).where(WindowRow.digest == row.digest, or_(false(), *self._keepers))
        if session.scalar(used) is None and session.scalar(kept) is None:
            session.execute(delete(WindowRow).where(WindowRow.digest == row.digest))
            self._windows.delete(row.digest)

    def _doomed(self, at: datetime) -> Sequence[WindowRow]:
        with self._database.reading(TIDYING_SECONDS) as session:
            return self._too_old(session, at) or self._too_many(session)

    def _forget(self, row: WindowRow) -> bool:
        """Delete a window with its row, unless it was used since `row` was read.

        The file is deleted while the row is locked. A request that stores the same window waits for this
        transaction and then finds that the file is gone.
        """
        mine = (WindowRow.digest == row.digest, WindowRow.used_at == row.used_at, self._deletable())
        with self._database.session(TIDYING_SECONDS) as session:
            done = session.execute(delete(WindowRow).where(*mine))
            if cast("CursorResult[None]", done).rowcount == 0:
                return False
            self._windows.delete(row.digest)
        return True

    def _deletable(self) -> ColumnElement[bool]:
        waiting = select(DiagnosisRow.id).where(
            DiagnosisRow.window_digest == WindowRow.digest, DiagnosisRow.state.in_([QUEUED, RUNNING])
        )
        return ~or_(waiting.exists(), *self._keepers)

    def _too_old(self, session: Session, at: datetime) -> Sequence[WindowRow]:
        return session.scalars(select(WindowRow).where(self._is_old(at)).limit(_WINDOWS_PER_READ)).all()

    def _is_old(self, at: datetime) -> ColumnElement[bool]:
        # Telemetry of jobs that is neither diagnosed nor a segment any more.
        unused = and_(
            WindowRow.used_at < at - self._telemetry_age,
            ~select(DiagnosisRow.id).where(DiagnosisRow.window_digest == WindowRow.digest).exists(),
        )
        return and_(or_(WindowRow.used_at < at - self.age, unused), self._deletable())

    def _excess(self, session: Session) -> int:
        return int(session.scalar(select(func.sum(WindowRow.n_bytes))) or 0) - self._max_bytes

    def _too_many(self, session: Session) -> Sequence[WindowRow]:
        excess = self._excess(session)
        if excess <= 0:
            return []
        oldest = (
            select(WindowRow).where(self._deletable()).order_by(WindowRow.used_at).limit(_WINDOWS_PER_READ)
        )
        return list(_until(session.scalars(oldest), excess))

    def _sweep(self, young_seconds: float) -> int:
        """Delete files without a row."""
        digests, count = self._windows.digests(), 0
        while some := list(islice(digests, _WINDOWS_PER_READ)):
            with self._database.reading(TIDYING_SECONDS) as session:
                known = set(session.scalars(select(WindowRow.digest).where(WindowRow.digest.in_(some))))
            count += sum(self._delete_orphan(each, young_seconds) for each in some if each not in known)
        return count

    def _delete_orphan(self, digest: str, young_seconds: float) -> bool:
        with self._database.session(TIDYING_SECONDS) as session:
            # This row is never committed; it makes requests that insert the same key wait.
            if not insert_if_absent(session, WindowRow, digest=digest, job_id="", n_bytes=0):
                return False
            gone = self._windows.delete(digest, older_than_seconds=young_seconds)
            session.execute(delete(WindowRow).where(WindowRow.digest == digest))
        return gone


def _until(rows: Iterable[WindowRow], n_bytes: int) -> Iterable[WindowRow]:
    for row in rows:
        if n_bytes <= 0:
            return
        n_bytes -= row.n_bytes
        yield row
