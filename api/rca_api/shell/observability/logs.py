"""Structured logs without secrets: one JSON object per line on standard error, uvicorn's records included.

Processes of the pool log in the same way, with the ids of the request they work for.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

import structlog
from structlog.types import EventDict, WrappedLogger

from rca_api.shell.observability import tracing

#: Repetitions are bounded, because paths of callers are logged as well: an unbounded one would take time that
#: grows with the square of the length.
_SECRETS = re.compile(
    r"(?P<key>rca_[0-9a-f]{16}_)[A-Za-z0-9_-]{43}"
    r"|(?P<scheme>(?i:bearer|basic)\s{1,8})[A-Za-z0-9._~+/=-]{8,}"
    r"|(?P<token>eyJ[A-Za-z0-9_-]{1,999}\.)[A-Za-z0-9_-]{1,9999}\.[A-Za-z0-9_-]+"
    # Up to the last @, because passwords hold unescaped slashes and @; more than needed may be hidden.
    r"|(?P<url>(?i:[a-z][a-z0-9+.-]{0,20})://[^\s/:@]{0,256}:)\S{1,256}(?=@)"
    r"|(?P<query>[?&;](?i:[\w.-]{0,32}(?:pass|pwd|secret|token|key|credential|signature)[\w.-]{0,32})=)[^\s&;#]+"
)
_NAMES = frozenset({"authorization", "x-api-key", "api_key", "password", "secret", "token", "cookie"})
_HIDDEN = "***"


def redact(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Structlog processor that hides keys, tokens and passwords in all values, at any depth."""
    return {key: _clean(key, value) for key, value in event.items()}


def hidden(text: str) -> str:
    """Hide keys, tokens and passwords in a text."""
    return _SECRETS.sub(_shown, text)


class HidingFormatter(logging.Formatter):
    """Formats records as lines of text, without keys, tokens and passwords."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record, its traceback included."""
        return hidden(super().format(record))


def _clean(key: str, value: Any) -> Any:
    if key.lower() in _NAMES and value:
        return _HIDDEN
    if isinstance(value, str):
        return hidden(value)
    if isinstance(value, dict):
        return {name: _clean(str(name), item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean("", item) for item in value]
    return value


def _shown(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None) + _HIDDEN


def configure(level: str) -> None:
    """Send all logs through structlog as JSON; may be called again."""
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        tracing.add_ids,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                redact,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    for name in ("rca_api", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level.upper())
        # The root logger stays as it is, for apps that are embedded elsewhere.
        logger.propagate = False
