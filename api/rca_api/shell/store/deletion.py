"""Deletion of some rows by their primary keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy import ColumnElement, Table, bindparam, delete, true
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
