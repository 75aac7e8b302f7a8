"""Structured logs: one JSON object a line on standard error, the server's own records included.

Processes of the pool log in the same way, with the ids of the request they work for.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

import structlog
from structlog.types import EventDict, WrappedLogger

from rca_api import tracing

#: Every repetition that something has to follow is bounded: a caller's path is logged as well, and must not
#: take a time that grows with the square of its length.
_SECRETS = re.compile(
    r"(?P<key>rca_[0-9a-f]{16}_)[A-Za-z0-9_-]{43}"
    r"|(?P<scheme>(?i:bearer|basic)\s{1,8})[A-Za-z0-9._~+/=-]{8,}"
    r"|(?P<token>eyJ[A-Za-z0-9_-]{1,999}\.)[A-Za-z0-9_-]{1,9999}\.[A-Za-z0-9_-]+"
    # Up to the last @: passwords hold slashes and @ that nobody has escaped. What only looks like one is
    # hidden, too.
    r"|(?P<url>(?i:[a-z][a-z0-9+.-]{0,20})://[^\s/:@]{0,256}:)\S{1,256}(?=@)"
    r"|(?P<query>[?&;](?i:[\w.-]{0,32}(?:pass|pwd|secret|token|key|credential|signature)[\w.-]{0,32})=)[^\s&;#]+"
)
_NAMES = frozenset({"authorization", "x-api-key", "api_key", "password", "secret", "token", "cookie"})
_HIDDEN = "***"


def redact(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Be a structlog processor: hides keys, tokens and passwords in all values, however deep."""
    return {key: _clean(key, value) for key, value in event.items()}


def hidden(text: str) -> str:
    """Hide keys, tokens and passwords in a text."""
    return _SECRETS.sub(_shown, text)


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
    """Send all logging through structlog as JSON; safe to call again."""
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
        # Only our own loggers are taken over: an app embedded elsewhere leaves the root logger alone.
        logger.propagate = False
