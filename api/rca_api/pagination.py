"""Cursor pagination, newest first: `?limit=`, an opaque `?cursor=`, and a ``Link`` to the next page."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

import orjson
from fastapi import Query, Request, Response
from sqlalchemy import Select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from rca_api.problems import ProblemError

Item = TypeVar("Item")
MAX_LIMIT = 200
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Most items of one page.")]
Cursor = Annotated[
    str | None, Query(max_length=1024, description="`next` of the page before; opaque, do not build it.")
]


@dataclass(frozen=True)
class Page(Generic[Item]):
    """One page, and the cursor of the one after it; None on the last."""

    items: list[Item]
    next: str | None


def page(
    session: Session,
    statement: Select[Any],
    *,
    keys: tuple[InstrumentedAttribute[Any], ...],
    limit: int,
    cursor: str | None,
    read: Callable[[Any], Item],
) -> Page[Item]:
    """Read one page in descending order of `keys`.

    Parameters
    ----------
    statement : Select
        Of one entity, with its filters and without an order.
    keys : tuple of columns
        Unique together; what comes later never moves what a cursor stands for.
    read : callable
        From a row to an item.

    Raises
    ------
    ProblemError
        422 if the cursor is not one of ours.
    """
    if cursor is not None:
        statement = statement.where(tuple_(*keys) < tuple_(*decoded(cursor, keys)))
    statement = statement.order_by(*(key.desc() for key in keys)).limit(limit + 1)
    rows = list(session.scalars(statement))
    more = len(rows) > limit
    last = [getattr(rows[limit - 1], key.key) for key in keys] if more else None
    return Page([read(row) for row in rows[:limit]], encoded(last) if last is not None else None)


def link_next(request: Request, response: Response, cursor: str | None) -> None:
    """Say where the next page is, as RFC 8288 has it."""
    if cursor is not None:
        response.headers["Link"] = f'<{request.url.include_query_params(cursor=cursor)}>; rel="next"'


def encoded(values: Sequence[Any]) -> str:
    """Write the keys of a page's last item as a cursor."""
    return base64.urlsafe_b64encode(orjson.dumps(list(values))).decode().rstrip("=")


def decoded(cursor: str, keys: Sequence[InstrumentedAttribute[Any]]) -> list[Any]:
    """Read a cursor back into values of the types of `keys`."""
    return [
        typed(value, key.type.python_type) for value, key in zip(values(cursor, len(keys)), keys, strict=True)
    ]


def values(cursor: str, n: int) -> list[Any]:
    """Read the `n` plain values of a cursor."""
    try:
        found = orjson.loads(base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4)))
    except (ValueError, binascii.Error):
        raise _refused() from None
    if not isinstance(found, list) or len(found) != n:
        raise _refused()
    return found


def typed(value: Any, wanted: type) -> Any:
    """Check that a cursor's value has the type of its key."""
    try:
        value = datetime.fromisoformat(value) if wanted is datetime else value
    except (TypeError, ValueError):
        raise _refused() from None
    fits = isinstance(value, (int, float) if wanted is float else wanted) and not isinstance(value, bool)
    naive = isinstance(value, datetime) and value.tzinfo is None
    huge = isinstance(value, int) and abs(value) >= 2**63
    if not fits or naive or huge or (isinstance(value, str) and "\0" in value):
        raise _refused()
    return value


def _refused() -> ProblemError:
    return ProblemError(
        "invalid-parameters", "query.cursor: is not a cursor of this service", hint="start without a cursor"
    )
