"""Idempotency keys: a repeated request gets the answer of the first one.

As in the IETF draft "The Idempotency-Key HTTP Header Field", the caller chooses the key. A key is bound to
the content of its request, and it expires.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

from sqlalchemy import ColumnElement, CursorResult, delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from rca_api.diagnoses.tables import IdempotencyRow
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.store.base import new_id, now
from rca_api.shell.store.database import Database, StoreError
from rca_api.shell.store.deletion import delete_rows
from rca_api.shell.store.time_limits import TIDYING_SECONDS
from rca_api.shell.store.waits import is_waiting

#: Expired keys that one transaction deletes.
_KEYS_AT_ONCE = 200


@dataclass(frozen=True)
class Key:
    """A key as one caller uses it for one request.

    Attributes
    ----------
    caller : str
        "" where authentication is off.
    request_digest : str
        SHA-256 of everything the answer depends on.
    """

    caller: str
    key: str
    request_digest: str


@dataclass(frozen=True)
class Hold:
    """The right to answer the request of a key; the first request has it."""

    key: Key
    holder: str


class Keys:
    """Keys in the database.

    Parameters
    ----------
    kept : timedelta
        A key expires after this time.
    held : timedelta
        A request that takes longer is presumed dead.
    """

    def __init__(self, database: Database, *, kept: timedelta, held: timedelta) -> None:
        self._database = database
        self._kept = kept
        self._held = held
        #: Holders that could not be released because the database was away, and the ends of their holds.
        self._unreleased: dict[str, datetime] = {}

    def take(self, key: Key) -> Hold | str:
        """Get the right to answer, or the id of the diagnosis that answers.

        Raises
        ------
        ProblemError
            ``idempotency-mismatch`` if the key was used for another request, ``conflict`` with Retry-After
            while the first request is in progress.
        """
        hold = Hold(key, new_id())
        at = now()
        try:
            with self._database.session() as session:
                known = session.get(IdempotencyRow, (key.caller, key.key), with_for_update=True)
                if known is not None and known.expires_at <= at:
                    session.delete(known)
                    session.flush()
                    known = None
                if known is None:
                    session.add(self._row(hold, at))
                    return hold
                return self._of_known(known, hold, at)
        except IntegrityError:
            # Another request inserted it after this one had looked.
            raise _in_progress() from None

    def release(self, hold: Hold) -> None:
        """Delete the key of a request that failed, so that it can be repeated.

        Raises
        ------
        StoreError
            If the database is away. This process accepts the key again nevertheless.
        """
        mine = delete(IdempotencyRow).where(_mine(hold), IdempotencyRow.diagnosis_id.is_(None))
        try:
            with self._database.session() as session:
                session.execute(mine)
        except StoreError:
            self._remember_unreleased(hold.holder, now())
            raise

    def forget_expired(self) -> int:
        """Delete expired keys, some at once so that requests wait briefly; returns their number."""
        row, n_deleted = IdempotencyRow, 0
        while True:
            old = select(row.caller, row.key).where(row.expires_at <= now()).limit(_KEYS_AT_ONCE)
            with self._database.session(TIDYING_SECONDS) as session:
                keys = [tuple(each) for each in session.execute(old)]
                n_deleted += delete_rows(session, row, keys, row.expires_at <= now())
            if len(keys) < _KEYS_AT_ONCE:
                return n_deleted

    def _of_known(self, known: IdempotencyRow, hold: Hold, at: datetime) -> Hold | str:
        if known.request_digest != hold.key.request_digest:
            raise ProblemError(
                "idempotency-mismatch",
                f"the key {hold.key.key!r} was used for another request",
                hint="use a new key for each new request, and send the same bytes when you repeat a request",
            )
        if known.diagnosis_id is not None:
            return known.diagnosis_id
        if is_waiting(known.held_until, at, self._held) and known.holder not in self._unreleased:
            raise _in_progress()
        known.holder, known.held_until = hold.holder, at + self._held
        return hold

    def _remember_unreleased(self, holder: str, at: datetime) -> None:
        for each, until in tuple(self._unreleased.items()):
            if not is_waiting(until, at, self._held):
                self._unreleased.pop(each, None)
        self._unreleased[holder] = at + self._held

    def _row(self, hold: Hold, at: datetime) -> IdempotencyRow:
        return IdempotencyRow(
            caller=hold.key.caller,
            key=hold.key.key,
            request_digest=hold.key.request_digest,
            holder=hold.holder,
            held_until=at + self._held,
            created_at=at,
            expires_at=at + self._kept,
        )


def bind(session: Session, hold: Hold, diagnosis_id: str) -> None:
    """Bind the key to its diagnosis, in the transaction that stores it.

    Raises
    ------
    ProblemError
        ``conflict`` if another request has taken the key over; the transaction must not be committed.
    """
    mine = update(IdempotencyRow).where(_mine(hold), IdempotencyRow.diagnosis_id.is_(None))
    done = session.execute(mine.values(diagnosis_id=diagnosis_id))
    if cast("CursorResult[None]", done).rowcount != 1:
        raise _in_progress()


def _mine(hold: Hold) -> ColumnElement[bool]:
    return (
        (IdempotencyRow.caller == hold.key.caller)
        & (IdempotencyRow.key == hold.key.key)
        & (IdempotencyRow.holder == hold.holder)
    )


def _in_progress() -> ProblemError:
    return ProblemError("conflict", "a request with this key is in progress", headers={"Retry-After": "1"})
