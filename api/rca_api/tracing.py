"""OpenTelemetry spans: one per request and queued diagnosis, and one below it for each of their stages.

Off unless `RCA_TRACING` says otherwise, and everything here then does nothing: the SDK is an extra, and is
imported only by `start`. Like OpenTelemetry's own provider, the tracer is one per process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from rca_api import tracing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.trace import Span, Tracer

_log = structlog.stdlib.get_logger("rca_api")
_NAME = "straggler-rca"


class _Process:
    """The tracer of this process, if tracing is on."""

    provider: TracerProvider | None = None
    tracer: Tracer | None = None


def start(kind: str) -> None:
    """Begin to trace; without the extra the service says so and goes on without.

    Parameters
    ----------
    kind : {"off", "otlp"}
    """
    if kind == "off":
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        _log.error("tracing is not installed", hint="pip install 'straggler-rca[tracing]'")
        return
    install(BatchSpanProcessor(OTLPSpanExporter()))


def install(processor: SpanProcessor) -> None:
    """Send spans to `processor` from now on."""
    from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider

    named = Resource.create({SERVICE_NAME: _NAME}).merge(OTELResourceDetector().detect())
    # The service ends it itself, while its event loop can still say what is left to do.
    _Process.provider = TracerProvider(resource=named, shutdown_on_exit=False)
    _Process.provider.add_span_processor(processor)
    _Process.tracer = _Process.provider.get_tracer(_NAME)


def stop() -> None:
    """Send what is left, and trace no more; blocks as long as the collector takes."""
    provider, _Process.provider, _Process.tracer = _Process.provider, None, None
    if provider is not None:
        provider.shutdown()


@contextmanager
def request(method: str, headers: Mapping[str, str]) -> Iterator[Span | None]:
    """Span of one request, below the caller's own if it sent a ``traceparent``."""
    if _Process.tracer is None:
        yield None
        return
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    outer = TraceContextTextMapPropagator().extract(headers)
    with _Process.tracer.start_as_current_span(method, outer, SpanKind.SERVER) as span:
        yield span


def answered(span: Span | None, method: str, route: str, status: int) -> None:
    """Say on a request's span what became of it, in OpenTelemetry's own names."""
    if span is None:
        return
    from opentelemetry.trace import StatusCode

    # The name has to be one of few: the route, never the path.
    span.update_name(f"{method} {route}")
    span.set_attributes(
        {"http.request.method": method, "http.route": route, "http.response.status_code": status}
    )
    if status >= 500:
        span.set_status(StatusCode.ERROR)


@contextmanager
def work(name: str, **attributes: str) -> Iterator[None]:
    """Span of something that no request waits for."""
    if _Process.tracer is None:
        yield
        return
    with _Process.tracer.start_as_current_span(name, attributes=attributes):
        yield


def stage(name: str, began: float, seconds: float) -> None:
    """Span of a stage that has ended already, perhaps in another process.

    Parameters
    ----------
    name : str
    began : float
        Unix seconds.
    seconds : float
    """
    if _Process.tracer is not None:
        start_ns = int(began * 1e9)
        _Process.tracer.start_span(name, start_time=start_ns).end(start_ns + int(seconds * 1e9))


def outgoing() -> dict[str, str]:
    """Headers that hand the current span on: ``traceparent``, or nothing where there is none."""
    carrier: dict[str, str] = {}
    if _Process.tracer is not None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        TraceContextTextMapPropagator().inject(carrier)
    return carrier


def ids() -> dict[str, str]:
    """Trace and span id for a log line; nothing where there is no span."""
    if _Process.tracer is None:
        return {}
    from opentelemetry.trace import format_span_id, format_trace_id, get_current_span

    context = get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": format_trace_id(context.trace_id), "span_id": format_span_id(context.span_id)}


def add_ids(_: Any, __: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
    """Be a structlog processor: lines say which span they belong to."""
    return {**ids(), **event}


_collected: ContextVar[dict[str, float] | None] = ContextVar("stages", default=None)


class Timed(NamedTuple):
    """When a stage began, in Unix seconds, and how many seconds it took."""

    began: float
    seconds: float


class Watch:
    """Times one stage; the clock of the wall says when it began, a steady one how long it took."""

    def __init__(self) -> None:
        self._began = time.time()
        self._steady = time.perf_counter()

    def read(self) -> Timed:
        """Say what has passed so far."""
        return Timed(self._began, time.perf_counter() - self._steady)


@contextmanager
def collecting() -> Iterator[None]:
    """Collect the stages of what is done in this context, apart from those of whatever surrounds it."""
    token = _collected.set({})
    try:
        yield
    finally:
        _collected.reset(token)


def note(stage: str, timed: Timed) -> None:
    """Take down a stage that has ended; a repeated one adds up."""
    held = _collected.get()
    if held is not None:
        held[stage] = held.get(stage, 0.0) + timed.seconds
    tracing.stage(stage, timed.began, timed.seconds)


def milliseconds() -> dict[str, float]:
    """Give what was collected so far."""
    return {stage: round(1e3 * seconds, 2) for stage, seconds in (_collected.get() or {}).items()}
