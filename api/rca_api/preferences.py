"""What a caller would like, by the ``Prefer`` header (RFC 7240): an early answer, or a timely one."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

PREFER_PARAMETER = {
    "name": "Prefer",
    "in": "header",
    "required": False,
    "description": "`respond-async`: answer 202 at once and diagnose later. `wait=5`: answer within 5 "
    "seconds or not at all (504); together: 200 if it takes no longer, else 202.",
    "schema": {"type": "string"},
    "examples": {
        "at once": {"value": "respond-async"},
        "within 5 s": {"value": "wait=5"},
        "either": {"value": "respond-async, wait=5"},
    },
}


@dataclass(frozen=True)
class Preferences:
    """Those we know; all others are ignored, as the RFC has it."""

    respond_async: bool = False
    wait_seconds: float | None = None

    @classmethod
    def of(cls, request: Request) -> Preferences:
        """Read all ``Prefer`` headers; the first mention of a preference counts."""
        held: dict[str, str] = {}
        for header in request.headers.getlist("prefer"):
            for item in header.split(","):
                name, _, value = item.partition(";")[0].partition("=")
                held.setdefault(name.strip().lower(), value.strip().strip('"'))
        wait = held.get("wait", "")
        # Nothing is answered within no time at all: a zero is for callers that want no waiting, only 202.
        seconds = float(wait) if wait.isascii() and wait.isdigit() and len(wait) < 7 else None
        asynchronous = "respond-async" in held
        return cls(asynchronous, None if seconds == 0 and not asynchronous else seconds)
