"""Receiving request bodies: windows, which get a place in the queue, and short JSON documents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from starlette.types import Message

from rca.errors import cut
from rca.window.encodings.json_text import json_memory, repeated_key
from rca.window.rows.row_errors import shown
from rca_api.shell.observability.tracing import Watch
from rca_api.shell.processes.body import Received
from rca_api.shell.requests.admission import Ticket, content_encoding, short_body
from rca_api.shell.requests.decoding import JSON, MULTIPART, TABLE, Limits, media_type
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.settings.settings import Settings
from rca_api.shell.state import State
from rca_api.shell.store import time_limits

WINDOW_TYPES = (JSON, MULTIPART)
#: Problem codes of operations that receive a window, and of those that answer with a stored one.
WINDOW_PROBLEMS = (
    *("invalid-input", "invalid-window", "invalid-parameters", "too-large", "body-timeout"),
    *("unsupported-media-type", "unsupported-encoding", "busy", "store-unavailable", "process-ended"),
    "deadline-exceeded",
)
STORED_WINDOW_PROBLEMS = (
    *("not-found", "invalid-parameters", "not-acceptable", "busy", "store-unavailable", "source-error"),
    *("process-ended", "deadline-exceeded"),
)
#: OpenAPI declaration of a window in a request body.
WINDOW_BODY: dict[str, Any] = {
    "parameters": [
        {
            "name": "Content-Encoding",
            "in": "header",
            "required": False,
            "description": "Compression of the body. Limits hold before and after decompression.",
            "schema": {"type": "string", "enum": ["identity", "gzip", "zstd"]},
        }
    ],
    "requestBody": {
        "required": True,
        "description": "A telemetry window. Use JSON for up to about 1,000 ranks, and Arrow for more.",
        "content": {
            JSON: {"schema": {"$ref": "#/components/schemas/TelemetryWindow"}},
            MULTIPART: {
                "schema": {"$ref": "#/components/schemas/ArrowWindow"},
                "encoding": {
                    "job": {"contentType": "application/json"},
                    **{
                        table: {"contentType": "application/vnd.apache.arrow.stream"}
                        for table in ("steps", "metrics", "events", "ops", "collectives")
                    },
                },
            },
        },
    },
}


def limits_of(settings: Settings, content_type: str) -> Limits:
    """Look up the limits for a body of `content_type`."""
    limits = Limits(
        int(settings.max_body_bytes), int(settings.max_decoded_bytes), int(settings.max_json_bytes)
    )
    if media_type(content_type) in (JSON, TABLE):
        return Limits(min(limits.sent, limits.json), min(limits.decoded, limits.json), limits.json)
    return limits


def content_type_of(request: Request, taken: Sequence[str]) -> str:
    """The Content-Type of the request, if the endpoint accepts it.

    Raises
    ------
    ProblemError
        415, with the accepted types.
    """
    given = request.headers.get("content-type", "")
    if media_type(given) in taken:
        return given
    what = repr(cut(given)) if given else "a body without Content-Type"
    raise ProblemError(
        "unsupported-media-type",
        f"{what} is not supported",
        headers={"Accept-Post": ", ".join(taken), "Connection": "close"},
        expected=" or ".join(taken),
        hint="with curl: -H 'Content-Type: application/json'; its default is a web form",
    )


@asynccontextmanager
async def received(request: Request, caller: str | None, max_bytes: int) -> AsyncIterator[Received]:
    """Receive a body and give it a place in the queue; both last as long as the context.

    The body gets its place when it is complete, so a slow sender holds none. If the queue is full, the
    request is refused: before its body is read, or after it.

    Raises
    ------
    ProblemError
        ``busy``, ``rate-limited``, or as `rca_api.shell.requests.admission.chunks_of`.
    """
    state = State.of(request)
    admission, metrics = state.admission, state.metrics
    if admission.is_full():
        raise admission.full()
    watch = Watch()
    with metrics.in_progress.track_inprogress(), admission.body(caller) as ticket:
        timeout = state.settings.body_timeout_seconds
        async with state.spool.receive(request, ticket, max_bytes, timeout) as body:
            metrics.staged("receive", watch.read())
            time_limits.answer_within(state.settings.deadline_seconds)
            # For each line of the log about this request, and for those of the process that gets the body.
            known = structlog.contextvars.bound_contextvars(body_sha256=body.sha256)
            with known, admission.work():
                yield body


SMALL_BODY_BYTES = 1 << 20
#: Memory that a short document may take when it is read. A megabyte of members would hold the event loop.
_SMALL_BODY_MEMORY = 16 << 20
_SMALL_BODY_SECONDS = 30.0
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
#: Problem codes of endpoints whose body is read here but has no meaning, besides their own.
READ_PROBLEMS = ("too-large", "body-timeout", "busy")
#: Problem codes of endpoints with small JSON bodies, besides their own.
BODY_PROBLEMS = (*READ_PROBLEMS, "http-error", "unsupported-media-type", "unsupported-encoding")


class SmallBodies(APIRoute):
    """Route that identifies the caller and reads its small body before the endpoint runs."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's handler, which reads bodies of any size from anyone."""
        handle = super().get_route_handler()

        async def limited(request: Request) -> Response:
            if request.method not in _WITH_BODY:
                return await handle(request)
            state = State.of(request)
            caller = await run_in_threadpool(state.authority.identify, request)
            with state.admission.body(caller.id) as ticket:
                body = await _read(request, ticket)
                if body and self.body_field is not None:
                    _check_headers(request)
                    _refuse_repeated_keys(body)
                time_limits.answer_within(state.settings.deadline_seconds)

                async def replay() -> Message:
                    return {"type": "http.request", "body": body, "more_body": False}

                return await handle(Request(request.scope, replay))

        return limited


def _check_headers(request: Request) -> None:
    """Refuse a body that is not plain JSON; else the framework would name its first byte as the error."""
    content_type_of(request, (JSON,))
    if content_encoding(request) != "identity":
        raise ProblemError(
            "unsupported-encoding",
            "short bodies are not compressed",
            headers={"Accept-Encoding": "identity"},
            expected="identity",
        )


def _refuse_repeated_keys(body: bytes) -> None:
    """Refuse an object that repeats a key: the framework would use the last value and say nothing."""
    key = repeated_key(body)
    if key is not None:
        raise ProblemError(
            "invalid-parameters",
            f"body: has an object that repeats the key {shown(key)!r}",
            expected="each key once in an object",
        )


async def _read(request: Request, ticket: Ticket) -> bytes:
    body = await short_body(request, ticket, SMALL_BODY_BYTES, _SMALL_BODY_SECONDS)
    if json_memory(body) > _SMALL_BODY_MEMORY:
        raise ProblemError("too-large", "the body has too many members, objects or values")
    return body
