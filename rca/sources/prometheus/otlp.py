"""Samples of metrics in OTLP: JSON and protobuf, as collectors of OpenTelemetry send and store them.

A file of the collector's ``file`` exporter has a request on each line, or in protobuf each after its length
in four bytes. A body of its ``otlphttp`` exporter is one request.

References
----------
OpenTelemetry, "OTLP Specification" and `opentelemetry/proto/metrics/v1/metrics.proto`.
Protocol Buffers, "Encoding".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

#: Labels, Unix seconds and value.
Sample = tuple[dict[str, str], float, float]
_JSON = re.compile(rb'\A\s*\{\s*"resourceMetrics"\s*:')
#: Labels of exporters that attributes of resources stand for.
_RESOURCE_LABELS: Mapping[str, str] = {
    "service.name": "job",
    "service.instance.id": "instance",
    "host.name": "hostname",
    "k8s.node.name": "node",
    "k8s.pod.name": "pod",
    "k8s.namespace.name": "namespace",
    "k8s.container.name": "container",
}
#: Aggregation of a sum whose values count from the one before.
_DELTA = (1, "AGGREGATION_TEMPORALITY_DELTA")
#: Messages of the format: number of a field -> its name in JSON and its kind. Other fields are skipped.
_MESSAGES: Mapping[str, Mapping[int, tuple[str, str]]] = {
    "request": {1: ("resourceMetrics", "resource_metrics*")},
    "resource_metrics": {1: ("resource", "resource"), 2: ("scopeMetrics", "scope_metrics*")},
    "resource": {1: ("attributes", "attribute*")},
    "scope_metrics": {2: ("metrics", "metric*")},
    "metric": {1: ("name", "text"), 5: ("gauge", "points"), 7: ("sum", "points")},
    "points": {1: ("dataPoints", "point*"), 2: ("aggregationTemporality", "integer")},
    "point": {
        3: ("timeUnixNano", "fixed"),
        4: ("asDouble", "double"),
        6: ("asInt", "signed"),
        7: ("attributes", "attribute*"),
    },
    "attribute": {1: ("key", "text"), 2: ("value", "value")},
    "value": {
        1: ("stringValue", "text"),
        2: ("boolValue", "integer"),
        3: ("intValue", "integer"),
        4: ("doubleValue", "double"),
    },
}
_FIXED = {"double": "<d", "signed": "<q", "fixed": "<Q"}
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


def is_otlp(head: bytes) -> bool:
    """Whether content is OTLP metrics, by its first bytes."""
    return _JSON.match(head) is not None or _request_at(head) is not None


def samples(body: bytes) -> Iterator[Sample]:
    """Gauges and sums, with attributes as labels; histograms and summaries are left out.

    Raises
    ------
    ValueError, KeyError, TypeError, struct.error
        If the content is damaged.
    """
    totals: dict[tuple[tuple[str, str], ...], float] = {}
    for request in _requests(body):
        for resource in request.get("resourceMetrics", ()):
            of_resource = _labels(resource.get("resource", {}).get("attributes", ()))
            of_resource = {_RESOURCE_LABELS.get(name, name): text for name, text in of_resource.items()}
            for scope in resource.get("scopeMetrics", ()):
                for metric in scope.get("metrics", ()):
                    yield from _of_metric(metric, of_resource, totals)


def _of_metric(
    metric: Mapping[str, Any],
    of_resource: Mapping[str, str],
    totals: dict[tuple[tuple[str, str], ...], float],
) -> Iterator[Sample]:
    held = metric.get("gauge") or metric.get("sum") or {}
    delta = held.get("aggregationTemporality") in _DELTA
    for point in held.get("dataPoints", ()):
        labels = {
            _label(name): text
            for name, text in {**of_resource, **_labels(point.get("attributes", ()))}.items()
        }
        labels["__name__"] = _label(metric["name"])
        # Numbers of 64 bits are texts in JSON.
        value = float(point["asDouble"] if "asDouble" in point else point.get("asInt", "nan"))
        if delta:
            key = tuple(sorted(labels.items()))
            value = totals[key] = totals.get(key, 0.0) + value
        yield labels, int(point["timeUnixNano"]) * 1e-9, value


def _labels(attributes: Any) -> dict[str, str]:
    return {each["key"]: str(next(iter(each.get("value", {}).values()), "")) for each in attributes}


def _label(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_:]", "_", name)


def _requests(body: bytes) -> Iterator[dict[str, Any]]:
    if _JSON.match(body) is not None:
        yield from (orjson.loads(line) for line in body.splitlines() if line.strip())
        return
    begin = _request_at(body)
    if begin == 0:
        yield _message("request", memoryview(body))
        return
    at = 0
    while at < len(body):
        (size,) = struct.unpack_from(">I", body, at)
        part = memoryview(body)[at + 4 : at + 4 + size]
        if len(part) < size:
            raise ValueError("the last message is cut")
        yield _message("request", part)
        at += 4 + size


def _request_at(head: bytes) -> int | None:
    """Where a request in protobuf begins: at once, or after four bytes with its length; None without one."""
    for at in (0, 4):
        # `resource_metrics`, with a resource or metrics in it.
        if head[at : at + 1] != b"\n" or b"\0" not in head:
            continue
        try:
            _, inner = _varint(memoryview(head), at + 1)
        except ValueError:
            continue
        if head[inner : inner + 1] in (b"\n", b"\x12"):
            return at
    return None


def _message(kind: str, data: memoryview) -> dict[str, Any]:
    """A message as JSON has it.

    Raises
    ------
    ValueError
        If it is cut, or has a group.
    """
    found: dict[str, Any] = {}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        name, of_field = _MESSAGES[kind].get(tag >> 3, ("", ""))
        value, at = _field(of_field.removesuffix("*"), tag & 7, data, at)
        if of_field.endswith("*"):
            found.setdefault(name, []).append(value)
        elif name:
            found[name] = value
    return found


def _field(kind: str, wire: int, data: memoryview, at: int) -> tuple[Any, int]:
    """The value of a field, and where the next one begins."""
    if wire == _VARINT:
        return _varint(data, at)
    if wire == _BYTES:
        size, at = _varint(data, at)
    else:
        size = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(wire, len(data))
    content = data[at : at + size]
    if len(content) < size:
        raise ValueError("a message is cut")
    if wire == _BYTES:
        text_or_message = str(content, "utf-8") if kind == "text" else None
        value: Any = _message(kind, content) if kind in _MESSAGES else text_or_message
    else:
        value = struct.unpack(_FIXED[kind], content)[0] if kind in _FIXED else None
    return value, at + size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(at, min(at + 10, len(data))):
        value |= (data[place] & 0x7F) << shift
        if data[place] < 0x80:
            return value, place + 1
        shift += 7
    raise ValueError("a number is cut")
