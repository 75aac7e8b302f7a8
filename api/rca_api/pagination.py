"""Lists in pages: newest first, with a cursor that stays valid while rows are added.

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


#: A moment with a time zone, converted to UTC; the first and last day of the calendar may be out of range.
Moment = Annotated[datetime, AfterValidator(_utc)]


Row = TypeVar("Row")
Item = TypeVar("Item")

Limit = Annotated[int, Query(ge=1, le=200, description="Most items in one page.")]
Cursor = Annotated[
    str | None,
    Query(max_length=1024, description="`next` of the previous page. Repeat the other parameters unchanged."),
]
DEFAULT_LIMIT = 50
#: OpenAPI declaration of the header that `link_next` sets.
LINK_HEADER: dict[str, Any] = {
    "Link": {
        "description": 'The next page, as `<…>; rel="next"`; absent on the last page.',
        "schema": {"type": "string"},
    }
}


@dataclass(frozen=True)
class Page(Generic[Item]):
    """One page, and the cursor of the next page; None on the last page."""

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
        The order, all descending. Together they are unique, and none is null.
    limit : int
    cursor : str or None
        Of the previous page.
    read : callable
        Turns a row into an item; called while the session is open.

    Raises
    ------
    ProblemError
        ``invalid-parameters`` if the cursor is not valid.
    """
    if cursor is not None:
        # With the types of the columns, so that moments do not compare as text.
        after_values = zip(keys, _read_cursor(cursor, keys), strict=True)
        last = tuple_(*(literal(value, key.type) for key, value in after_values))
        statement = statement.where(tuple_(*keys) < last)
    # One more than `limit` shows whether there is another page.
    rows = session.scalars(statement.order_by(*(key.desc() for key in keys)).limit(limit + 1)).all()
    more = len(rows) > limit
    after = _cursor([getattr(rows[limit - 1], key.key) for key in keys]) if more else None
    return Page([read(row) for row in rows[:limit]], after)


def link_next(request: Request, response: Response, cursor: str | None) -> None:
    """Set the header with the address of the next page."""
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
        raise ProblemError("invalid-parameters", "cursor: is not a cursor of this list") from None


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
        raise ValueError("not a value for a database")
    return value
