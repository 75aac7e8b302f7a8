"""Long lists in pages: newest first, by a cursor that stays right while rows are added.

::

    keys = (Row.created_at, Row.id)
    found = page(session, select(Row), keys=keys, limit=limit, cursor=cursor, read=Item.of)
    link_next(request, response, found.next)
    return Items(items=found.items, next=found.next)
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, TypeVar

import orjson
from fastapi import Query, Request, Response
from pydantic import AfterValidator
from sqlalchemy import Select, literal, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from rca_api.problems import ProblemError
from rca_api.store.base import UtcDateTime


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("needs a time zone, for example Z")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("is out of range") from None


#: A moment with its time zone, in UTC: near the ends of the calendar not every one has its like there.
Moment = Annotated[datetime, AfterValidator(_utc)]


Row = TypeVar("Row")
Item = TypeVar("Item")

Limit = Annotated[int, Query(ge=1, le=200, description="Most items of one page.")]
Cursor = Annotated[
    str | None,
    Query(max_length=1024, description="`next` of the page before; leave the other parameters as they were."),
]
DEFAULT_LIMIT = 50
#: Documents the header that `link_next` sets.
LINK_HEADER: dict[str, Any] = {
    "Link": {
        "description": 'The next page, as `<…>; rel="next"`; absent on the last.',
        "schema": {"type": "string"},
    }
}


@dataclass(frozen=True)
class Page(Generic[Item]):
    """One page, and the cursor of the next; None on the last."""

    items: list[Item]
    next: str | None


def page(
    session: Session,
    statement: Select[Row],
    *,
    keys: tuple[InstrumentedAttribute[Any], ...],
    limit: int,
    cursor: str | None,
    read: Callable[[Row], Item],
) -> Page[Item]:
    """Read one page.

    Parameters
    ----------
    session : Session
    statement : Select
        Rows of one mapped class, without an order.
    keys : tuple of mapped columns
        The order, all descending; together they tell any two rows apart, and none is ever null.
    limit : int
    cursor : str or None
        As the page before gave it.
    read : callable
        Turns a row into an item; called while the session is open.

    Raises
    ------
    ProblemError
        ``invalid-parameters`` if the cursor is none of ours.
    """
    if cursor is not None:
        # With the columns' types: a moment is written as the column has it, or it compares as text.
        after_values = zip(keys, _read_cursor(cursor, keys), strict=True)
        last = tuple_(*(literal(value, key.type) for key, value in after_values))
        statement = statement.where(tuple_(*keys) < last)
    # One more than asked for says whether there is another page.
    rows = session.scalars(statement.order_by(*(key.desc() for key in keys)).limit(limit + 1)).all()
    more = len(rows) > limit
    after = _cursor([getattr(rows[limit - 1], key.key) for key in keys]) if more else None
    return Page([read(row) for row in rows[:limit]], after)


def link_next(request: Request, response: Response, cursor: str | None) -> None:
    """Set the header that leads to the next page."""
    if cursor is not None:
        target = request.url.include_query_params(cursor=cursor)
        response.headers["Link"] = f'<{target.path}?{target.query}>; rel="next"'


def _cursor(values: list[Any]) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(values)).decode().rstrip("=")


def _read_cursor(cursor: str, keys: tuple[InstrumentedAttribute[Any], ...]) -> list[Any]:
    try:
        values = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if not isinstance(values, list) or len(values) != len(keys):
            raise ValueError("wrong number of keys")
        return [_key_value(key, value) for key, value in zip(keys, values, strict=True)]
    except (ValueError, TypeError, OverflowError):
        raise ProblemError("invalid-parameters", "cursor: is not one that this list gave") from None


def _key_value(key: InstrumentedAttribute[Any], value: Any) -> Any:
    if isinstance(key.type, UtcDateTime):
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            raise ValueError("no time zone")
        return moment.astimezone(UTC)
    wanted = key.type.python_type
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise TypeError(wanted.__name__)
    if (isinstance(value, str) and "\0" in value) or (isinstance(value, int) and abs(value) >> 63):
        raise ValueError("no database takes it")
    return value
