"""Structured logs: one JSON object a line on standard error, the server's own records included.

Processes of the pool log in the same way, with the ids of the request they work for.
"""

from __future__ import annotations

import logging
import sys

import structlog

from rca_api import tracing
from rca_api.security.redaction import redact


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
