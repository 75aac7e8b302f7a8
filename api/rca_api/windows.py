"""Receiving a window, whatever is asked about it: media types, limits and a place in the queue."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from rca_api.compute.body import Received
from rca_api.decoding import JSON, MULTIPART, media_type
from rca_api.problems import ProblemError
from rca_api.settings import Settings
from rca_api.state import State
from rca_api.timing import Watch

WINDOW_TYPES = (JSON, MULTIPART)
#: How a window is sent, for the OpenAPI document.
WINDOW_BODY: dict[str, Any] = {
    "parameters": [
        {
            "name": "Content-Encoding",
            "in": "header",
            "required": False,
            "description": "Compression of the body; limits hold before and after it.",
            "schema": {"type": "string", "enum": ["identity", "gzip", "zstd"]},
        }
    ],
    "requestBody": {
        "required": True,
        "description": "A telemetry window. JSON suits jobs up to about a thousand ranks, Arrow larger ones.",
        "content": {
            JSON: {"schema": {"$ref": "#/components/schemas/TelemetryWindow"}},
            MULTIPART: {
                "schema": {"$ref": "#/components/schemas/ArrowWindow"},
                "encoding": {
                    "job": {"contentType": "application/json"},
                    **{
                        table: {"contentType": "application/vnd.apache.arrow.stream"}
                        for table in ("steps", "metrics", "events", "ops")
                    },
                },
            },
        },
    },
}


@dataclass(frozen=True)
class Limits:
    """Bytes a body of one media type may have, as sent and after decompression."""

    sent: int
    decoded: int

    @classmethod
    def of(cls, settings: Settings, content_type: str) -> Limits:
        """Look up the limits for `content_type`."""
        sent, decoded = int(settings.max_body_bytes), int(settings.max_decoded_bytes)
        if media_type(content_type) == JSON:
            return cls(min(sent, int(settings.max_json_bytes)), min(decoded, int(settings.max_json_bytes)))
        return cls(sent, decoded)


def content_type_of(request: Request, taken: Sequence[str]) -> str:
    """The request's Content-Type, if it is one of those taken.

    Raises
    ------
    ProblemError
        415, naming what is taken.
    """
    given = request.headers.get("content-type", "")
    if media_type(given) in taken:
        return given
    what = repr(given) if given else "a body without Content-Type"
    raise ProblemError(
        "unsupported-media-type",
        f"{what} is not supported",
        headers={"Accept-Post": ", ".join(taken), "Connection": "close"},
        expected=" or ".join(taken),
        hint="curl needs -H 'Content-Type: application/json'; what curl sends by default is a web form",
    )


@asynccontextmanager
async def received(request: Request, caller: str | None, max_bytes: int) -> AsyncIterator[Received]:
    """Receive a body and give it a place in the queue; both last as long as the context.

    The place is taken once the body is whole: a caller that sends slowly holds nobody's. Where there is none
    the request is refused, before its body is read if that is known by then.

    Raises
    ------
    ProblemError
        ``busy``, ``rate-limited``, or as `rca_api.limits.chunks_of` says.
    """
    state = State.of(request)
    admission, metrics = state.admission, state.metrics
    admission.refuse_if_full()
    watch = Watch()
    with metrics.in_progress.track_inprogress(), admission.body(caller) as ticket:
        timeout = state.settings.body_timeout_seconds
        async with state.spool.receive(request, ticket, max_bytes, timeout) as body:
            metrics.staged("receive", watch.read())
            with admission.work():
                yield body
