"""Times of stages, and OpenTelemetry spans: one per request and queued diagnosis, with one span per stage.

Stage times go into the log line of a diagnosis. Spans are off unless `RCA_TRACING` is set: the SDK is an
extra and is imported by `start` only. There is one tracer per process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from rca_api.shell.observability import tracing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.trace import Span, Tracer

_log = structlog.stdlib.get_logger("rca_api")
_SERVICE_NAME = "straggler-rca"


class _TracedProcess:
    """The tracer of this process, if tracing is on."""

    provider: TracerProvider | None = None
    tracer: Tracer | None = None


def start(kind: str) -> None:
    """Start to trace; without the extra an error is logged and nothing is traced.

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

    named = Resource.create({SERVICE_NAME: _SERVICE_NAME}).merge(OTELResourceDetector().detect())
    # `stop` shuts it down, while the event loop still runs.
    _TracedProcess.provider = TracerProvider(resource=named, shutdown_on_exit=False)
    _TracedProcess.provider.add_span_processor(processor)
    _TracedProcess.tracer = _TracedProcess.provider.get_tracer(_SERVICE_NAME)


def stop() -> None:
    """Send the remaining spans and stop tracing; blocks as long as the collector takes."""
    provider, _TracedProcess.provider, _TracedProcess.tracer = _TracedProcess.provider, None, None
    if provider is not None:
        provider.shutdown()


@contextmanager
def request(method: str, headers: Mapping[str, str]) -> Iterator[Span | None]:
    """Span of one request, below the caller's own if it sent a ``traceparent``."""
    if _TracedProcess.tracer is None:
        yield None
        return
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    outer = TraceContextTextMapPropagator().extract(headers)
    with _TracedProcess.tracer.start_as_current_span(method, outer, SpanKind.SERVER) as span:
        yield span


def answered(span: Span | None, method: str, route: str, status: int) -> None:
    """Record the outcome of a request on its span, with OpenTelemetry's attribute names."""
    if span is None:
        return
    from opentelemetry.trace import StatusCode

    # Span names must be few: the route, not the path.
    span.update_name(f"{method} {route}")
    span.set_attributes(
        {"http.request.method": method, "http.route": route, "http.response.status_code": status}
    )
    if status >= 500:
        span.set_status(StatusCode.ERROR)


@contextmanager
def work(name: str, **attributes: str) -> Iterator[None]:
    """Span of background work."""
    if _TracedProcess.tracer is None:
        yield
        return
    with _TracedProcess.tracer.start_as_current_span(name, attributes=attributes):
        yield


def stage(name: str, began: float, seconds: float) -> None:
    """Record the span of a stage that has ended, perhaps in another process.

    Parameters
    ----------
    began : float
        Unix seconds.
    """
    if _TracedProcess.tracer is not None:
        start_ns = int(began * 1e9)
        _TracedProcess.tracer.start_span(name, start_time=start_ns).end(start_ns + int(seconds * 1e9))


def outgoing() -> dict[str, str]:
    """Headers that pass the current span on: ``traceparent``, or none without a span."""
    carrier: dict[str, str] = {}
    if _TracedProcess.tracer is not None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        TraceContextTextMapPropagator().inject(carrier)
    return carrier


def ids() -> dict[str, str]:
    """Trace and span id for a log line; empty without a span."""
    if _TracedProcess.tracer is None:
        return {}
    from opentelemetry.trace import format_span_id, format_trace_id, get_current_span

    context = get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": format_trace_id(context.trace_id), "span_id": format_span_id(context.span_id)}


def add_ids(_: Any, __: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
    """Structlog processor that adds the ids of the current span."""
    return {**ids(), **event}


_collected: ContextVar[dict[str, float] | None] = ContextVar("stages", default=None)


class Timed(NamedTuple):
    """Begin of a stage, Unix seconds, and its duration, seconds."""

    began: float
    seconds: float


class Watch:
    """Times one stage: its begin on the wall clock, its duration on a monotonic clock."""

    def __init__(self) -> None:
        self._began = time.time()
        self._steady = time.perf_counter()

    def read(self) -> Timed:
        """The stage so far."""
        return Timed(self._began, time.perf_counter() - self._steady)


@contextmanager
def collecting() -> Iterator[None]:
    """Collect the stages of this context, separate from those of an outer one."""
    token = _collected.set({})
    try:
        yield
    finally:
        _collected.reset(token)


def note(stage: str, timed: Timed) -> None:
    """Record a stage that has ended; repeated stages add up."""
    held = _collected.get()
    if held is not None:
        held[stage] = held.get(stage, 0.0) + timed.seconds
    tracing.stage(stage, timed.began, timed.seconds)


def milliseconds() -> dict[str, float]:
    """Stages collected so far, milliseconds."""
    return {stage: round(1e3 * seconds, 2) for stage, seconds in (_collected.get() or {}).items()}
