"""Parameters of addresses and query strings: each has one spelling per value, and each name is known.

A query string is text, so pydantic would take `1`, `on` and `yes` for a boolean and `0.5` for a time. A
mistake would change what is listed, without an error. A parameter that is not known is refused as well.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError
from starlette.convertors import Convertor, register_url_convertor

from rca.window import names
from rca.window.rows.row_errors import shown
from rca_api.shell.requests.problems import ProblemError

MAX_NAME_LENGTH = 256
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")
#: RFC 3339, 5.6.
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_FLAGS = {"true": True, "false": False}


def _wrong(expected: str) -> PydanticCustomError:
    return PydanticCustomError("spelling", "{expected}", {"expected": f"needs {expected}"})


def _flag(value: Any) -> Any:
    if isinstance(value, str) and value not in _FLAGS:
        raise _wrong("true or false")
    return _FLAGS.get(value, value) if isinstance(value, str) else value


def _whole(value: Any) -> Any:
    if isinstance(value, str) and not _WHOLE.fullmatch(value):
        raise _wrong("a whole number, such as 50")
    return value


def _moment(value: Any, parse: ValidatorFunctionWrapHandler) -> Any:
    """Refuse other spellings, and days and hours that no calendar has, in the same words."""
    expected = "a time with a time zone, such as 2026-11-01T00:00:00Z; a + is written %2B"
    if isinstance(value, str) and not _MOMENT.fullmatch(value):
        raise _wrong(expected)
    try:
        return parse(value)
    except ValidationError:
        raise _wrong(expected) from None


def _utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise _wrong("a time in the years 1 to 9999 of UTC") from None


#: `true` or `false`.
Flag = Annotated[bool, BeforeValidator(_flag)]
#: A whole number in decimal digits: `Annotated[int, Field(ge=1), WHOLE]`. Limits come before it.
WHOLE = BeforeValidator(_whole)
#: A moment with a time zone, converted to UTC.
Moment = Annotated[datetime, WrapValidator(_moment), AfterValidator(_utc)]
#: A name that a window may have and that fits a column of the database.
Name = Annotated[names.Name, StringConstraints(max_length=MAX_NAME_LENGTH)]
#: A text of one line, perhaps empty, that fits a column of the database.
Line = Annotated[names.Line, StringConstraints(max_length=MAX_NAME_LENGTH)]


class GivenBody(BaseModel):
    """A short body of a request: no value is converted, and no member is ignored."""

    model_config = ConfigDict(extra="forbid", strict=True)


class _Segments(Convertor[str]):
    """`{job_id:name}` in a route: it may have slashes, and line breaks, which `path` does not match."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


class _Segment(_Segments):
    """`{version:id}` in a route: no address of its own, so that its other methods are not allowed."""

    regex = "(?!(?:batch|rollback)$)[^/]+"


register_url_convertor("name", _Segments())
register_url_convertor("id", _Segment())


def refuse_unknown(request: Request) -> None:
    """Refuse query parameters that the operation does not have, or that are given twice.

    Raises
    ------
    ProblemError
        ``invalid-parameters``, with the known names and the closest one.
    """
    if not request.scope["query_string"]:
        return
    route = request.scope["route"]
    assert isinstance(route, APIRoute)  # noqa: S101  (only operations depend on this)
    # Those of the page that a list is asked for are parameters of a dependency.
    parts = (route.dependant, *route.dependant.dependencies)
    known = [field.alias for part in parts for field in part.query_params]
    given = Counter(name for name, _ in request.query_params.multi_items())
    expected = ", ".join(known) or "no parameters"
    for name, times in given.items():
        if name not in known:
            closest = difflib.get_close_matches(name[:MAX_NAME_LENGTH], known, n=1)
            raise ProblemError(
                "invalid-parameters",
                f"query: {shown(name)!r} is not a parameter of this address",
                expected=expected,
                hint=f"did you mean {closest[0]}?" if closest else None,
            )
        if times > 1:
            raise ProblemError(
                "invalid-parameters", f"query.{name}: is given {times} times", expected="each parameter once"
            )
