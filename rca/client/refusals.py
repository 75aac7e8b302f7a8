"""Answers that refuse, turned back into the errors of the library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from rca.errors import (
    BundleError,
    InvalidInput,
    InvalidTrace,
    InvalidWindow,
    RcaError,
    SourceError,
    TooLarge,
    cut,
)
from rca.timed_http import Answer

_KNOWN: dict[str, type[RcaError]] = {
    kind.code: kind for kind in (InvalidInput, InvalidTrace, TooLarge, BundleError)
}


class ServiceError(SourceError):
    """The service could not be reached, or refused for a reason that is not in the window.

    Attributes
    ----------
    code : str
        The problem's code, or ``service-unreachable``.
    status : int or None
        HTTP status, if there was an answer.
    """

    def __init__(
        self, message: str, *, code: str, status: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.status = status


def unreadable(answer: Answer) -> ServiceError:
    """Say that a body is not an answer of the service."""
    return ServiceError(
        f"HTTP {answer.status} with a body that is not an answer of the service",
        code="http-error",
        status=answer.status,
        hint="check the address, for example for a sign-in page; a service may also be newer than its client",
    )


def refusal(answer: Answer) -> RcaError:
    """Turn a problem document back into the error it was made from."""
    if answer.status < 400:
        target = answer.headers.get("location")
        return ServiceError(
            f"HTTP {answer.status} in place of an answer" + (f", to {cut(target)}" if target else ""),
            code="http-error",
            status=answer.status,
            hint="give the address of the service itself; redirects are not followed",
        )
    try:
        problem = orjson.loads(answer.body)
        code, detail = str(problem["code"]), str(problem["detail"])
    except (ValueError, TypeError, KeyError):
        return ServiceError(
            f"HTTP {answer.status} without a problem document; is this the right address?",
            code="http-error",
            status=answer.status,
        )
    hint = _member(problem, "hint", str, None)
    if code == InvalidWindow.code:
        return InvalidWindow(
            detail.removeprefix(_place(problem) + ": "),
            table=_member(problem, "table", str, "job"),
            column=_member(problem, "column", str, None),
            rows=[row for row in _member(problem, "rows", list, []) if isinstance(row, dict)],
            n_rows=_member(problem, "n_rows", int, 0),
            expected=_member(problem, "expected", str, ""),
            hint=hint,
        )
    known = _KNOWN.get(code)
    return (
        known(detail, hint=hint)
        if known
        else ServiceError(detail, code=code, status=answer.status, hint=hint)
    )


def _member(problem: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    """A member of a problem document, if it has the type that the service writes."""
    found = problem.get(name)
    return found if isinstance(found, kind) else default


def _place(problem: Mapping[str, Any]) -> str:
    """Where the service found the fault; it begins the problem's detail."""
    table, column = _member(problem, "table", str, ""), _member(problem, "column", str, None)
    return table if column is None else f"{table}.{column}"
