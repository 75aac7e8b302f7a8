"""Inserts of rows that may exist, in one statement, so that no other transaction can interfere."""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from rca_api.shell.store.base import Base


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
