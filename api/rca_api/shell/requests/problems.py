"""Errors as ``application/problem+json`` (RFC 9457), with codes a program can rely on.

Every code of the service is a line of `CATALOGUE`; codes of `rca.errors` keep their name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match

from rca.errors import InvalidWindow, RcaError

MEDIA_TYPE = "application/problem+json"
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
TYPE_PREFIX = "urn:straggler-rca:problem:"


@dataclass(frozen=True)
class ProblemKind:
    """One code: its HTTP status and its title, which never change for a code."""

    status: int
    title: str


CATALOGUE: dict[str, ProblemKind] = {
    "invalid-input": ProblemKind(400, "The request cannot be read"),
    "invalid-window": ProblemKind(422, "The telemetry window does not follow the format"),
    "invalid-trace": ProblemKind(422, "The operation trace cannot be replayed"),
    "too-large": ProblemKind(413, "The body exceeds a limit"),
    "head-too-large": ProblemKind(431, "The headers exceed a limit"),
    "head-timeout": ProblemKind(408, "The headers did not arrive in time"),
    "url-too-long": ProblemKind(414, "The URL exceeds a limit"),
    "body-timeout": ProblemKind(408, "The body did not arrive in time"),
    "not-acceptable": ProblemKind(406, "The service offers none of the accepted media types"),
    "unsupported-media-type": ProblemKind(415, "The body's media type is not supported"),
    "unsupported-encoding": ProblemKind(415, "The body's content coding is not supported"),
    "not-found": ProblemKind(404, "Nothing exists at this address"),
    "method-not-allowed": ProblemKind(405, "This address does not allow this method"),
    "invalid-parameters": ProblemKind(422, "A parameter of the request is not valid"),
    "busy": ProblemKind(503, "The service is at its limit; try again later"),
    "not-ready": ProblemKind(503, "The service is starting"),
    "process-ended": ProblemKind(503, "The processes that worked on this ended"),
    "bundle-error": ProblemKind(503, "The model bundle cannot be used"),
    "store-unavailable": ProblemKind(503, "The database is not available"),
    "unauthenticated": ProblemKind(401, "The request has no valid credential"),
    "forbidden": ProblemKind(403, "The scopes of the caller do not allow this"),
    "rate-limited": ProblemKind(429, "The caller sends too many requests"),
    "registry-unavailable": ProblemKind(503, "The model registry is not available"),
    "gate-refused": ProblemKind(409, "The promotion gate refuses this version"),
    "budget-spent": ProblemKind(409, "The budget of these actions is spent"),
    "conflict": ProblemKind(409, "The state of the resource does not allow this"),
    "idempotency-mismatch": ProblemKind(422, "The idempotency key was used for another request"),
    "diagnosis-failed": ProblemKind(410, "The diagnosis failed and will not be repeated"),
    "deadline-exceeded": ProblemKind(504, "The answer was not ready before the deadline"),
    "issuer-unavailable": ProblemKind(503, "The issuer of the token is not available"),
    "missing-extra": ProblemKind(501, "This installation lacks an optional part"),
    "source-error": ProblemKind(502, "A telemetry source cannot be read"),
    "http-error": ProblemKind(400, "The request was refused"),
    "internal-error": ProblemKind(500, "The service failed"),
}


class Problem(BaseModel):
    """An error, as RFC 9457 has it, with what the caller needs to correct the request."""

    model_config = ConfigDict(title="Problem", extra="allow")

    type: str = Field(examples=[f"{TYPE_PREFIX}invalid-window"], description="Identifies the kind of error.")
    title: str = Field(description="The kind of error in words; the same for every occurrence.")
    status: int = Field(ge=400, le=599)
    detail: str = Field(description="What is wrong with this request.")
    instance: str = Field(description="Path of the request.")
    code: str = Field(
        description="Last part of `type`; it never changes for a kind of error.", examples=sorted(CATALOGUE)
    )
    request_id: str | None = Field(None, description="Also in the X-Request-ID header and in the logs.")
    table: str | None = Field(None, description="Table of the window: job, steps, metrics, events or ops.")
    column: str | None = None
    rows: list[dict[str, Any]] | None = Field(None, description="The first invalid rows.")
    n_rows: int | None = Field(None, description="Number of invalid rows.")
    expected: str | None = Field(None, description="What the service accepts instead.")
    hint: str | None = None


class ProblemError(Exception):
    """Raised by endpoints; becomes a problem response."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})
        self.members = members


def problem_response(request: Request, error: ProblemError) -> Response:
    """Write `error` as a problem document."""
    request.state.problem_code = error.code
    request_id = getattr(request.state, "request_id", None)
    content = problem_document(error, request.url.path, request_id)
    return Response(content, CATALOGUE[error.code].status, error.headers, MEDIA_TYPE)


def problem_document(error: ProblemError, instance: str, request_id: str | None = None) -> bytes:
    """Encode `error`; `instance` is the path of what it happened to."""
    kind = CATALOGUE[error.code]
    body: dict[str, Any] = {
        "type": TYPE_PREFIX + error.code,
        "title": kind.title,
        "status": kind.status,
        "detail": error.detail,
        "instance": instance,
        "code": error.code,
        "request_id": request_id,
    }
    body |= {key: _plain(value) for key, value in error.members.items() if value is not None}
    return orjson.dumps(body, default=str, option=orjson.OPT_NON_STR_KEYS)


def from_rca_error(error: RcaError, retry_after_seconds: int) -> ProblemError:
    """Translate a library error; a code this catalogue does not know becomes an internal error."""
    if error.code not in CATALOGUE:
        return internal_error()
    headers = {"Retry-After": str(retry_after_seconds)} if CATALOGUE[error.code].status == 503 else {}
    if error.code == "too-large":
        # The rest of the body is not read, so the connection cannot carry another request.
        headers["Connection"] = "close"
    return ProblemError(error.code, _detail(error), headers=headers, **error.details())


def _detail(error: RcaError) -> str:
    """The error in one line that names the place; the rows are another member."""
    if not isinstance(error, InvalidWindow):
        return error.message
    place = error.table if error.column is None else f"{error.table}.{error.column}"
    return f"{place}: {error.message}"


def internal_error() -> ProblemError:
    """The problem of an unexpected failure, without its reason."""
    return ProblemError("internal-error", "The service failed; report this with the request id.")


def install(app: FastAPI, retry_after_seconds: int) -> None:
    """Make every error of `app` a problem document."""
    translated: dict[type[Exception], Callable[[Request, Any], ProblemError]] = {
        ProblemError: lambda _, error: error,
        RcaError: lambda _, error: from_rca_error(error, retry_after_seconds),
        HTTPException: lambda request, error: _from_http_error(error, request),
        RequestValidationError: lambda _, error: _from_validation(error),
    }

    def answered(
        translate: Callable[[Request, Any], ProblemError], request: Request, error: Exception
    ) -> Response:
        return problem_response(request, translate(request, error))

    for kind, translate in translated.items():
        app.add_exception_handler(kind, partial(answered, translate))


def _from_http_error(error: HTTPException, request: Request) -> ProblemError:
    codes = {404: "not-found", 405: "method-not-allowed"}
    code = codes.get(error.status_code, "http-error" if error.status_code < 500 else "internal-error")
    detail = {
        "not-found": f"{request.url.path} does not exist; /docs lists the addresses.",
        "method-not-allowed": f"{request.url.path} does not allow {request.method}.",
        "http-error": str(error.detail),
    }.get(code, HTTPStatus.INTERNAL_SERVER_ERROR.phrase)
    headers = {"Allow": ", ".join(_allowed(request))} if error.status_code == 405 else error.headers
    return ProblemError(code, detail, headers=headers)


def _allowed(request: Request) -> list[str]:
    """All methods of an address; each of its routes knows only its own."""
    app: FastAPI = request.app
    asked = {"type": "http", "path": request.scope["path"], "root_path": request.scope.get("root_path", "")}
    return [
        method
        for method in _METHODS
        if any(route.matches(asked | {"method": method})[0] is Match.FULL for route in app.routes)
    ]


def _from_validation(error: RequestValidationError) -> ProblemError:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return ProblemError("invalid-parameters", f"{where}: {first['msg']}")


def _plain(value: Any) -> Any:
    """Copy evidence into JSON types; a NaN or an infinity stays visible as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        # A lone surrogate cannot be written as UTF-8 and must not turn a refusal into a failure.
        return value.encode("utf-8", "replace").decode("utf-8")
    return value


#: Codes that most endpoints declare first.
COMMON = ("invalid-parameters", "unauthenticated", "forbidden", "rate-limited", "store-unavailable")
#: Codes of every endpoint that needs a credential.
_ACCESS_CODES = ("unauthenticated", "forbidden", "rate-limited", "store-unavailable", "issuer-unavailable")


def problem_responses(*codes: str, public: bool = False) -> dict[int | str, dict[str, Any]]:
    """Declare one OpenAPI response per status of `codes`, of access unless `public`, and of a failure."""
    possible = dict.fromkeys((*codes, *(() if public else _ACCESS_CODES), "internal-error"))
    declared: dict[int | str, dict[str, Any]] = {}
    for status in sorted({CATALOGUE[code].status for code in possible}):
        held = [code for code in possible if CATALOGUE[code].status == status]
        meaning = "; ".join(f"`{code}`: {CATALOGUE[code].title}" for code in held)
        declared[status] = {
            "description": meaning,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        if status in (429, 503):
            declared[status]["headers"] = {
                "Retry-After": {
                    "description": "Seconds to wait.",
                    "schema": {"type": "integer", "minimum": 1},
                }
            }
    return declared
