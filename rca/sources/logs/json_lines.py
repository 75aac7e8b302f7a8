"""JSON lines that carry a line of a log: of Docker, Loki, journald and loggers of applications."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

#: Members that hold the text, and those that hold its time; the first one that is there counts.
_TEXTS = ("log", "message", "msg", "line", "MESSAGE", "text", "event")
_TIMES = ("time", "timestamp", "ts", "@timestamp", "asctime", "__REALTIME_TIMESTAMP")
_HOSTS = ("_HOSTNAME", "hostname", "host", "node", "pod")
#: Lines of one message.
MAX_LINES = 10_000
#: A complete JSON object, then a line break.
_OBJECT = re.compile(r"\s*(\{[^\n]*\})\s*(?:\n|$)")
_BEGUN = re.compile(
    r'\s*\{\s*"(?:' + "|".join(map(re.escape, (*_TEXTS, *_TIMES, "stream", "labels"))) + r')"\s*:'
)


def are_json_lines(head: str) -> bool:
    """Whether a text that begins with ``{`` has a message in each line, and is no window."""
    if re.match(r'\s*\{\s*["}]', head) is None:
        return True  # No JSON: a Python dictionary, for example.
    first = _OBJECT.match(head)
    if first is None:
        return _BEGUN.match(head) is not None
    row = _parsed(first[1].encode())
    if row is None or "format" in row or "job" in row:
        return False
    more = head[first.end() :].lstrip()
    return _text_of(row) is not None or more.startswith("{")


def messages(raw: bytes) -> Iterator[str]:
    """The lines of the message in a JSON line, with its time and host; of another line, the line."""
    row = _parsed(raw) if raw.lstrip().startswith(b'{"') else None
    text = None if row is None else _text_of(row)
    if row is None or text is None:
        yield raw.decode("utf-8", "replace")
        return
    stamp = next((when for name in _TIMES if (when := _time_of(row.get(name))) is not None), "")
    host = next((row[name] for name in _HOSTS if isinstance(row.get(name), str)), None)
    before = f"{stamp} {host} kernel: " if host and _is_kernel(row) else f"{stamp} " if stamp else ""
    for each in text.splitlines()[:MAX_LINES]:
        # A label of a rank stands first.
        yield f"{each} {before}".rstrip() if each.startswith("[") else f"{before}{each}"


def _is_kernel(row: Mapping[str, Any]) -> bool:
    return row.get("SYSLOG_IDENTIFIER") == "kernel" or row.get("_TRANSPORT") == "kernel"


def _text_of(row: Mapping[str, Any]) -> str | None:
    return next((row[name] for name in _TEXTS if isinstance(row.get(name), str)), None)


def _time_of(value: object) -> str | None:
    """A time as text with its date, or None."""
    if isinstance(value, str) and not value.isdigit():
        return value
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    # Milliseconds, microseconds and nanoseconds since 1970 have more digits.
    while seconds > 1e11:
        seconds /= 1e3
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (OverflowError, OSError, ValueError):
        return None


def _parsed(raw: bytes) -> Mapping[str, Any] | None:
    try:
        row = orjson.loads(raw)
    except (orjson.JSONDecodeError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
