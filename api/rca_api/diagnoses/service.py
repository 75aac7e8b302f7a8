"""From a received body to a rendered diagnosis, off the event loop."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import orjson
from fastapi import Request

from rca.diagnosis.result import Diagnosis
from rca_api.limits import content_encoding, decompress, read_body
from rca_api.negotiation import choose
from rca_api.state import State
from rca_api.windows import JSON, WINDOW_TYPES, Limits, content_type_of, decode_window

OFFERED = (JSON, "text/markdown", "text/html")


@dataclass(frozen=True)
class Posted:
    """What a caller sent and how it wants its answer."""

    body: bytes
    content_type: str
    encoding: str
    accept: str
    max_decoded_bytes: int


async def diagnose(request: Request) -> tuple[bytes, str]:
    """Answer one request: the encoded diagnosis and its media type."""
    state = State.of(request)
    # Everything that can be refused from the headers alone is, before the body is touched.
    accept = choose(request.headers.get("accept"), OFFERED)
    content_type = content_type_of(request, WINDOW_TYPES)
    encoding = content_encoding(request)
    limits = Limits.of(state.settings, content_type)
    with state.admission.enter() as ticket:
        state.metrics.in_progress.inc()
        try:
            with state.metrics.stage("receive"):
                body = await read_body(request, ticket, limits.sent, state.settings.body_timeout_seconds)
            posted = Posted(body, content_type, encoding, accept, limits.decoded)
            answer = await _in_thread(state, posted)
        finally:
            state.metrics.in_progress.dec()
    return answer, accept


async def _in_thread(state: State, posted: Posted) -> bytes:
    queued = time.perf_counter()

    def work() -> bytes:
        state.metrics.stage_seconds.labels("queue").observe(time.perf_counter() - queued)
        return _work(state, posted)

    return await asyncio.get_running_loop().run_in_executor(state.threads, work)


def _work(state: State, posted: Posted) -> bytes:
    metrics = state.metrics
    with metrics.stage("decompress"):
        body = decompress(posted.body, posted.encoding, posted.max_decoded_bytes)
    with metrics.stage("decode"):
        window = decode_window(body, posted.content_type, posted.max_decoded_bytes)
    with metrics.stage("diagnose"):
        diagnosis = state.engine.diagnose(window)
    metrics.diagnosed(diagnosis)
    with metrics.stage("render"):
        return _render(diagnosis, posted.accept)


def _render(diagnosis: Diagnosis, accept: str) -> bytes:
    if accept == "text/markdown":
        return diagnosis.to_markdown().encode()
    if accept == "text/html":
        return diagnosis.to_html().encode()
    # orjson writes NaN as null, which is what the format says.
    return orjson.dumps(diagnosis.to_dict())
