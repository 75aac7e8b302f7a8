"""Deletion of some rows by their primary keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy import ColumnElement, Table, bindparam, delete, true
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from rca_api.shell.store.base import Base


def delete_rows(
    session: Session,
    table: type[Base],
    keys: Sequence[tuple[Any, ...]],
    condition: ColumnElement[bool] | None = None,
) -> int:
    """Delete rows, each by its primary key and only if it meets the condition; gives their number.

    One statement for each row, because SQLite reads the whole table for ``(a, b) IN (...)``.
    """
    if not keys:
        return 0
    from_ = cast("Table", table.__table__)
    names = [f"key_{number}" for number in range(len(from_.primary_key))]
    mine = [column == bindparam(name) for name, column in zip(names, from_.primary_key, strict=True)]
    statement = delete(from_).where(*mine, true() if condition is None else condition)
    session.flush()
    done = session.connection().execute(statement, [dict(zip(names, key, strict=True)) for key in keys])
    return done.rowcount


def insert_if_absent(session: Session, table: type[Base], **values: Any) -> bool:
    """Insert a row unless its key exists; returns whether it was inserted.

    Waits for a transaction that inserts the same key at the same time.
    """
    session.flush()
    inserted_into = cast("Table", table.__table__)
    # RETURNING, because the row counts of such statements are not reliable.
    statement = insert_of(session, inserted_into).values(**values).on_conflict_do_nothing()
    return session.execute(statement.returning(next(iter(inserted_into.primary_key)))).first() is not None


def insert_of(session: Session, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT with ON CONFLICT for the database of the session."""
    is_server = session.get_bind().dialect.name == "postgresql"
    return postgresql.insert(table) if is_server else sqlite.insert(table)
