"""Refusal of windows that find no place in the queue, before anything else is done for them.

Under overload most requests are refused, on the cores that diagnose the others. So a refusal comes before the
credential, the span and the log line of a request. The metrics count each one; the log has one line a second.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import structlog
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.requests.admission import Admission
from rca_api.shell.requests.middleware import HEADER, request_id_of
from rca_api.shell.requests.problems import CATALOGUE, MEDIA_TYPE, problem_document

TELEMETRY = "/v1/jobs/{job_id}/telemetry"
#: Routes whose requests take a place in the queue, as the OpenAPI document writes them.
QUEUED = frozenset({"/v1/diagnoses", "/v1/diagnoses/batch", "/v1/what-if", TELEMETRY})
_LOG_SECONDS = 1.0
_log = structlog.stdlib.get_logger("rca_api.requests")


class Shedding:
    """Plain ASGI middleware, outside of the one that gives a request its id and log line.

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
