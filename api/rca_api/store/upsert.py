"""Inserting what may be there already, in one statement: nobody can come between."""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from rca_api.store.base import Base


def insert_if_absent(session: Session, table: type[Base], **values: Any) -> bool:
    """Insert a row unless one with the same key is there; tells whether it was inserted.

    A transaction that inserts the same key at the same time is waited for.
    """
    session.flush()
    held = cast("Table", table.__table__)
    # What is returned is what was inserted; row counts of such statements are not reliable.
    statement = insert_of(session, held).values(**values).on_conflict_do_nothing()
    return session.execute(statement.returning(next(iter(held.primary_key)))).first() is not None


def insert_of(session: Session, table: Table) -> postgresql.Insert | sqlite.Insert:
    """Begin an INSERT that knows ON CONFLICT, for the database of the session."""
    is_server = session.get_bind().dialect.name == "postgresql"
    return postgresql.insert(table) if is_server else sqlite.insert(table)
