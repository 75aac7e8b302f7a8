"""Lists in pages: newest first, with a cursor that stays valid while rows are added.

::

    def list_items(request: Request, paging: Paging) -> Items:
        with State.of(request).database.reading() as session:
            found = paging.read(session, select(Row), (Row.created_at, Row.id), Item.of)
        return Items(items=found.items, next=found.next)
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, TypeVar

import orjson
from fastapi import Depends, Query, Request, Response
from pydantic import Field
from sqlalchemy import Select, literal, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from rca_api.shell.requests.parameters import WHOLE
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.store.base import UtcDateTime

Row = TypeVar("Row")
Item = TypeVar("Item")

Limit = Annotated[int, Field(ge=1, le=200), WHOLE, Query(description="Most items in one page.")]
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
    statement : Select
        Rows of one mapped class, without an order.
    keys : tuple of mapped columns
        The order, all descending. Together they are unique, and none is null.
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
    after = written([getattr(rows[limit - 1], key.key) for key in keys]) if more else None
    return Page([read(row) for row in rows[:limit]], after)


class AskedPage:
    """The page that a caller asks for."""

    def __init__(
        self, request: Request, response: Response, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
    ) -> None:
        self.limit, self.cursor = limit, cursor
        self._request, self._response = request, response

    def read(
        self,
        session: Session,
        statement: Select[Row],
        keys: tuple[InstrumentedAttribute[Any], ...],
        read: Callable[[Row], Item],
    ) -> Page[Item]:
        """Read it, see `page`, and set the header with the address of the next one."""
        found = page(session, statement, keys=keys, limit=self.limit, cursor=self.cursor, read=read)
        self.link(found.next)
        return found

    def link(self, cursor: str | None) -> None:
        """Set the header with the address of the next page."""
        if cursor is not None:
            target = self._request.url.include_query_params(cursor=cursor)
            self._response.headers["Link"] = f'<{target.path}?{target.query}>; rel="next"'


#: Parameter of an operation that lists something.
Paging = Annotated[AskedPage, Depends()]


def written(values: Sequence[Any]) -> str:
    """Write the place of an item in a list as a cursor."""
    return base64.urlsafe_b64encode(orjson.dumps(values)).decode().rstrip("=")


def content_of(cursor: str) -> Any:
    """Read what was written into a cursor, or raise ValueError."""
    return orjson.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))


def no_cursor() -> ProblemError:
    """Build the refusal of a text that is no cursor of a list."""
    return ProblemError("invalid-parameters", "query.cursor: is not a cursor of this list")


def _read_cursor(cursor: str, keys: tuple[InstrumentedAttribute[Any], ...]) -> list[Any]:
    try:
        values = content_of(cursor)
        if not isinstance(values, list) or len(values) != len(keys):
            raise ValueError("wrong number of keys")
        return [_key_value(key, value) for key, value in zip(keys, values, strict=True)]
    except (ValueError, TypeError, OverflowError):
        raise no_cursor() from None


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
