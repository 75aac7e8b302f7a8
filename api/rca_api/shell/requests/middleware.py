"""Middleware of every request: its id, log line, metrics, unexpected errors, and security headers."""

from __future__ import annotations

import re
import time
import uuid

import structlog
from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rca_api.shell.observability import tracing
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.requests.problems import internal_error, problem_response
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
