"""Leases on the rows of a queue: replicas share the work, and none of it is lost or done twice.

A worker claims rows for a limited time and renews its lease while it works. When a lease has run out, any
worker may claim the row. A worker finds only rows that it owns, so one that lost its lease changes nothing.

In SQLite a transaction that writes excludes all others. In PostgreSQL a claim locks the rows it returns and
skips those that another transaction has locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Select, and_, not_, or_, select
from sqlalchemy.orm import DeclarativeBase, InstrumentedAttribute, Session

from rca_api.shell.store.waits import is_waiting

Row = TypeVar("Row", bound=DeclarativeBase)


class Claim(NamedTuple, Generic[Row]):
    """Outcome of a claim; all rows are locked until the transaction ends.

    Attributes
    ----------
    rows : list of rows
        Owned by the worker now.
    exhausted : list of rows
        Not claimed, because their attempts are used up; the caller ends them.
    """

    rows: list[Row]
    exhausted: list[Row]


@dataclass(eq=False)
class Leases(Generic[Row]):
    """The leases of one table; every method works in the caller's transaction.

    Attributes
    ----------
    key, owner, until, attempts : mapped columns
        Primary key; owner and end of the lease, null without one; number of claims.
    unfinished : condition
        Holds for rows that have to be worked on.
    """

    table: type[Row]
    _: KW_ONLY
    key: InstrumentedAttribute[Any]
    owner: InstrumentedAttribute[str | None]
    until: InstrumentedAttribute[datetime | None]
    attempts: InstrumentedAttribute[int]
    unfinished: ColumnElement[bool]

    def is_free(self, at: datetime, length: timedelta) -> ColumnElement[bool]:
        """The condition that a row is unfinished and without a valid lease.

        Parameters
        ----------
        length : timedelta
            Of the leases that workers take.
        """
        leased = is_waiting(self.until, at, length)
        return and_(self.unfinished, or_(self.until.is_(None), not_(leased)))

    def is_leased(self, at: datetime, length: timedelta) -> ColumnElement[bool]:
        """The condition that a row is unfinished and has a valid lease."""
        return and_(self.unfinished, is_waiting(self.until, at, length))

    def claim(
        self,
        session: Session,
        wanted: Select[Row],
        owner: str,
        at: datetime,
        length: timedelta,
        *,
        most_attempts: int | None = None,
    ) -> Claim[Row]:
        """Take those of the wanted rows that are free, and count an attempt of each.

        Parameters
        ----------
        wanted : Select
            Rows of the table, ordered and limited as the caller likes.
        owner : str
            Name of the worker, or of this claim.
        length : timedelta
            The lease ends at ``at + length`` unless it is renewed.
        most_attempts : int, optional
            Rows that were claimed so often are exhausted.
        """
        free = wanted.where(self.is_free(at, length))
        claim: Claim[Row] = Claim([], [])
        for row in session.scalars(free.with_for_update(skip_locked=True, of=self.table)):
            attempts: int = getattr(row, self.attempts.key)
            if most_attempts is not None and attempts >= most_attempts:
                claim.exhausted.append(row)
                continue
            self._set(row, owner, at + length)
            setattr(row, self.attempts.key, attempts + 1)
            claim.rows.append(row)
        return claim

    def held(self, session: Session, owner: str, keys: Sequence[Any]) -> Sequence[Row]:
        """Those of the rows that `owner` owns, locked."""
        mine = and_(self.unfinished, self.owner == owner, self.key.in_(keys))
        # One order for all: two transactions that lock several rows cannot wait for each other.
        return session.scalars(select(self.table).where(mine).order_by(self.key).with_for_update()).all()

    def held_one(self, session: Session, owner: str, key: Any) -> Row | None:
        """The row, locked; None if `owner` does not own it, or if it is finished."""
        return next(iter(self.held(session, owner, [key])), None)

    def renew(
        self, session: Session, owner: str, keys: Sequence[Any], at: datetime, length: timedelta
    ) -> Sequence[Row]:
        """Extend the leases of `owner` to ``at + length``; rows that it no longer owns are not returned."""
        rows = self.held(session, owner, keys)
        for row in rows:
            self._set(row, owner, at + length)
        return rows

    def give_back(
        self, session: Session, owner: str, keys: Sequence[Any], *, counted: bool = False
    ) -> Sequence[Row]:
        """Make rows of `owner` free at once; unless `counted`, this attempt does not count."""
        rows = self.held(session, owner, keys)
        for row in rows:
            self.end(row)
            if not counted:
                setattr(row, self.attempts.key, getattr(row, self.attempts.key) - 1)
        return rows

    def postpone(self, session: Session, owner: str, keys: Sequence[Any], until: datetime) -> Sequence[Row]:
        """Make rows of `owner` free at `until`; the attempt counts."""
        rows = self.held(session, owner, keys)
        for row in rows:
            self._set(row, None, until)
        return rows

    def end(self, row: Row) -> None:
        """Remove the lease of a row that is finished."""
        self._set(row, None, None)

    def _set(self, row: Row, owner: str | None, until: datetime | None) -> None:
        setattr(row, self.owner.key, owner)
        setattr(row, self.until.key, until)
