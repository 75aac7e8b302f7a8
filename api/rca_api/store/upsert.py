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
    key = next(iter(held.primary_key))
    if session.get_bind().dialect.name == "postgresql":
        result = session.execute(
            postgresql.insert(held).values(**values).on_conflict_do_nothing().returning(key)
        )
    else:
        result = session.execute(sqlite.insert(held).values(**values).on_conflict_do_nothing().returning(key))
    return result.first() is not None
