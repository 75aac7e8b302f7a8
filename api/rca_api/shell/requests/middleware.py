"""Middleware of every request: its id and log line, security headers, refusals, and the rest of its body."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections import Counter
from contextlib import suppress

import structlog
from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rca_api.shell.observability import tracing
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.requests.admission import Admission
from rca_api.shell.requests.problems import (
    CATALOGUE,
    MEDIA_TYPE,
    internal_error,
    problem_document,
    problem_response,
)
from rca_api.shell.store import time_limits

HEADER = "X-Request-ID"
CALLER_DISCONNECTED = 499
_SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_QUIET_ROUTES = frozenset({"/healthz", "/readyz", "/metrics"})
_log = structlog.stdlib.get_logger("rca_api.requests")


class RequestContext:
    """Plain ASGI middleware, because wrapping the response would cost time and prevent streaming."""

    def __init__(self, app: ASGIApp, metrics: Metrics, deadline_seconds: float) -> None:
        self.app = app
        self.metrics = metrics
        self.deadline_seconds = deadline_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection; only HTTP requests get an id and a log line."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = request_id_of(Headers(scope=scope))
        scope.setdefault("state", {})["request_id"] = request_id
        # Set again where a body has arrived.
        time_limits.answer_within(self.deadline_seconds)
        began = time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[HEADER] = request_id
                headers.update(tracing.outgoing())
            await send(message)

        ids = structlog.contextvars.bound_contextvars(request_id=request_id)
        with ids, tracing.request(scope["method"], Headers(scope=scope)) as span, tracing.collecting():
            try:
                await self.app(scope, receive, send_with_id)
            except ClientDisconnect:
                # The caller has disconnected. Reverse proxies log the same status for it.
                status = CALLER_DISCONNECTED
            except Exception:
                _log.exception("request failed", path=scope["path"])
                if not status:
                    response = problem_response(Request(scope, receive), internal_error())
                    await response(scope, receive, send_with_id)
            self._record(scope, status, time.perf_counter() - began)
            tracing.answered(span, scope["method"], _route(scope), status)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = _route(scope)
        self.metrics.request_done(scope["method"], route, status, seconds)
        code = scope["state"].get("problem_code")
        if code is not None:
            self.metrics.problems.labels(code).inc()
        write = _log.debug if route in _QUIET_ROUTES and status < 400 else _log.info
        write(
            "request",
            method=scope["method"],
            path=scope["path"],
            status=status,
            milliseconds=round(seconds * 1e3, 2),
            caller=scope["state"].get("caller"),
            code=code,
            diagnosis_id=scope["state"].get("diagnosis_id"),
        )


def _route(scope: Scope) -> str:
    """Template of the path, or "unmatched"."""
    # Without the names of converters, as in the OpenAPI document.
    path: str = getattr(scope.get("route"), "path_format", "unmatched")
    return path


def request_id_of(headers: Headers) -> str:
    """The id of the caller if it is short and safe in logs and headers, else a new one."""
    given = headers.get(HEADER)
    return given if given is not None and _SAFE_ID.fullmatch(given) else uuid.uuid4().hex


_ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
#: Policy of a diagnosis as a page: its own style only, so a job name cannot become a script.
_PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
#: Policy of the viewer of the OpenAPI document: its own files, and requests to this service only.
_DOCS_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'"
)

#: Policy of the page for people: as above without styles in the page, and without text that becomes markup.
_UI_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)


def _policy(path: str) -> str:
    if path == "/docs":
        return _DOCS_POLICY
    return _UI_POLICY if path == "/ui" else _PAGE_POLICY


class SecurityHeaders:
    """Plain ASGI middleware that adds headers against misuse of an answer in a browser."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the headers to every HTTP answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _ALWAYS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Content-Security-Policy", _policy(scope["path"]))
                # Answers name nodes and jobs, so shared caches must not keep them.
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self.app(scope, receive, send_with_headers)


TELEMETRY = "/v1/jobs/{job_id}/telemetry"
#: Routes whose requests take a place in the queue, as the OpenAPI document writes them.
QUEUED = frozenset({"/v1/diagnoses", "/v1/diagnoses/batch", "/v1/what-if", TELEMETRY})
_LOG_SECONDS = 1.0


class Shedding:
    """Plain ASGI middleware that refuses windows that find no place in the queue, before anything else.

    Under overload most requests are refused, on the cores that diagnose the others. So a refusal comes before
    the credential, the span and the log line of a request. The log has one line a second.

    Parameters
    ----------
    at_most : int
        Largest body that is discarded on a connection that stays open, bytes.
    """

    def __init__(self, app: ASGIApp, admission: Admission, metrics: Metrics, at_most: int) -> None:
        self.app = app
        self._admission = admission
        self._metrics = metrics
        self._at_most = at_most
        #: Refusals by route since the last log line.
        self._unlogged: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a window while the queue is full; let all other requests pass."""
        if (
            scope["type"] == "http"
            and scope["method"] == "POST"
            and (route := _queued_route(scope["path"])) is not None
            and self._admission.is_full()
        ):
            await self._refuse(route, scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _refuse(self, route: str, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        path, headers = scope["path"], Headers(scope=scope)
        request_id = request_id_of(headers)
        error = self._admission.full()
        status = CATALOGUE[error.code].status
        content = problem_document(error, path, request_id)
        answer = Response(content, status, {HEADER: request_id, **error.headers}, MEDIA_TYPE)
        # The server discards a body that comes after the answer. That is cheaper than another connection.
        if _will_arrive(headers, self._at_most):
            del answer.headers["Connection"]
        await answer(scope, receive, send)
        self._metrics.problems.labels(error.code).inc()
        self._metrics.request_done("POST", route, status, time.perf_counter() - began)
        self._log(route)

    def _log(self, route: str) -> None:
        """Count a refusal for the next log line, which is due in a second at most."""
        if not self._unlogged:
            asyncio.get_running_loop().call_later(_LOG_SECONDS, self._write)
        self._unlogged[route] += 1

    def _write(self) -> None:
        refused, self._unlogged = self._unlogged, Counter()
        _log.info("requests refused", code="busy", n=refused.total(), routes=dict(refused))


def _queued_route(path: str) -> str | None:
    """The route of a path whose requests take a place in the queue."""
    if path.startswith("/v1/jobs/") and path.endswith("/telemetry"):
        return TELEMETRY
    return path if path in QUEUED else None


def _will_arrive(headers: Headers, at_most: int) -> bool:
    """Whether the caller sends a whole body of bounded length without being invited to."""
    declared = headers.get("content-length", "")
    return "expect" not in headers and declared.isdecimal() and int(declared) <= at_most


DRAIN_SECONDS = 5.0
#: Enough for a fleet of agents that retry together, and few compared with the sockets of a process.
MAX_DRAINING = 200


class DrainBody:
    """Plain ASGI middleware, the outermost, that reads the rest of a body before it closes the connection.

    A socket closed with unread bytes makes the system reset the connection, and the caller loses an answer
    that it has received already (RFC 9112, 9.6). The connection is reset all the same after `DRAIN_SECONDS`,
    or while `MAX_DRAINING` others are being drained. It holds a socket then, but no place in a queue.

    Parameters
    ----------
    at_most : int
        Most bytes that are read: the size of the largest body.
    """

    def __init__(self, app: ASGIApp, at_most: int) -> None:
        self.app = app
        self.at_most = at_most
        self._draining = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and end the answer when the body is read or given up."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        incoming = _Incoming(receive, invited="expect" not in headers)
        closes = _says_close(headers) or scope.get("http_version") == "1.0"
        ended = False

        async def send_open(message: Message) -> None:
            nonlocal closes, ended
            if message["type"] == "http.response.start":
                closes = closes or _says_close(Headers(scope=message))
            elif not ended and closes and not message.get("more_body", False) and incoming.coming:
                # Counted before the answer is sent, which lets other requests run.
                ended = self._draining < MAX_DRAINING
                self._draining += ended
            if ended:
                message = {**message, "more_body": True}
            await send(message)

        try:
            await self.app(scope, incoming.receive, send_open)
            if ended:
                with suppress(TimeoutError):
                    async with asyncio.timeout(DRAIN_SECONDS):
                        await incoming.discard(self.at_most)
                await send({"type": "http.response.body"})
        finally:
            self._draining -= ended


def _says_close(headers: Headers) -> bool:
    return "close" in [token.strip().lower() for token in headers.get("connection", "").split(",")]


class _Incoming:
    """The rest of a request's body; a caller that sent `Expect` sends none before it is invited."""

    def __init__(self, receive: Receive, *, invited: bool) -> None:
        self._receive = receive
        #: Whether more of the body may come.
        self.coming = invited

    async def receive(self) -> Message:
        """Pass the next message on."""
        message = await self._receive()
        # The message of a caller that disconnected says that no more comes, too.
        self.coming = message.get("more_body", False)
        return message

    async def discard(self, at_most: int) -> None:
        """Read what is left, at most `at_most` bytes."""
        while self.coming and at_most > 0:
            at_most -= len((await self.receive()).get("body", b""))
