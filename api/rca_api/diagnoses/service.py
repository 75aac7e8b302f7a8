"""From a received body to a rendered diagnosis, off the event loop."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import orjson
from fastapi import Request

from rca.diagnosis.result import Diagnosis
from rca.errors import InvalidInput
from rca.telemetry.encodings import arrow, json
from rca.telemetry.window import Window
from rca_api.limits import content_encoding, decompress, read_body
from rca_api.negotiation import choose
from rca_api.problems import ProblemError
from rca_api.settings import Settings
from rca_api.state import State

JSON = "application/json"
MULTIPART = "multipart/form-data"
OFFERED = (JSON, "text/markdown", "text/html")
TAKEN = (JSON, MULTIPART)


@dataclass(frozen=True)
class Posted:
    """What a caller sent and how it wants its answer."""

    body: bytes
    content_type: str
    encoding: str
    accept: str
    max_decoded_bytes: int


@dataclass(frozen=True)
class Limits:
    """Bytes a body of one media type may have, as sent and after decompression."""

    sent: int
    decoded: int

    @classmethod
    def of(cls, settings: Settings, content_type: str) -> Limits:
        """Look up the limits for `content_type`."""
        sent, decoded = int(settings.max_body_bytes), int(settings.max_decoded_bytes)
        if _media_type(content_type) == JSON:
            return cls(min(sent, int(settings.max_json_bytes)), min(decoded, int(settings.max_json_bytes)))
        return cls(sent, decoded)


async def diagnose(request: Request) -> tuple[bytes, str]:
    """Answer one request: the encoded diagnosis and its media type."""
    state = State.of(request)
    # Everything that can be refused from the headers alone is, before the body is touched.
    accept = choose(request.headers.get("accept"), OFFERED)
    content_type = _content_type(request)
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
        window = _decode(body, posted)
    with metrics.stage("diagnose"):
        diagnosis = state.engine.diagnose(window)
    metrics.diagnosed(diagnosis)
    with metrics.stage("render"):
        return _render(diagnosis, posted.accept)


def _decode(body: bytes, posted: Posted) -> Window:
    if not body:
        raise InvalidInput(
            "the body is empty", hint="send a telemetry window: job, steps and, if there are any, metrics"
        )
    if _media_type(posted.content_type) == MULTIPART:
        # Arrow buffers may be compressed in themselves, so the limit goes on into the decoder.
        return arrow.decode(body, posted.content_type, max_bytes=posted.max_decoded_bytes)
    return json.decode(body)


def _render(diagnosis: Diagnosis, accept: str) -> bytes:
    if accept == "text/markdown":
        return diagnosis.to_markdown().encode()
    if accept == "text/html":
        return diagnosis.to_html().encode()
    # orjson writes NaN as null, which is what the format says.
    return orjson.dumps(diagnosis.to_dict())


def _content_type(request: Request) -> str:
    given = request.headers.get("content-type", "")
    if _media_type(given) in TAKEN:
        return given
    what = repr(given) if given else "a body without Content-Type"
    raise ProblemError(
        "unsupported-media-type",
        f"{what} is not supported",
        headers={"Accept-Post": ", ".join(TAKEN), "Connection": "close"},
        expected=" or ".join(TAKEN),
        hint="curl needs -H 'Content-Type: application/json'; what curl sends by default is a web form",
    )


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()
