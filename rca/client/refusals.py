"""Answers that refuse, turned back into the errors of the library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rca.errors import BundleError, InvalidInput, InvalidTrace, InvalidWindow, RcaError, SourceError, TooLarge

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


@dataclass(frozen=True)
class Answer:
    """What a service answered; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def refusal(answer: Answer) -> RcaError:
    """Turn a problem document back into the error it was made from."""
    try:
        problem = json.loads(answer.body)
        code, detail = str(problem["code"]), str(problem["detail"])
    except (ValueError, TypeError, KeyError):
        return ServiceError(
            f"HTTP {answer.status} without a problem document; is this the right address?",
            code="http-error",
            status=answer.status,
        )
    hint = problem.get("hint")
    if code == InvalidWindow.code:
        return InvalidWindow(
            detail.removeprefix(_place(problem) + ": "),
            table=problem.get("table", "job"),
            column=problem.get("column"),
            rows=problem.get("rows", ()),
            n_rows=problem.get("n_rows", 0),
            expected=problem.get("expected", ""),
            hint=hint,
        )
    known = _KNOWN.get(code)
    return (
        known(detail, hint=hint)
        if known
        else ServiceError(detail, code=code, status=answer.status, hint=hint)
    )


def _place(problem: Mapping[str, Any]) -> str:
    """Where the service found the fault; it begins the problem's detail."""
    table, column = problem.get("table", ""), problem.get("column")
    return table if column is None else f"{table}.{column}"
