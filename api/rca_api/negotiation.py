"""Headers with which a caller chooses its answer: ``Accept`` (RFC 9110, 12.5.1) and ``Prefer`` (RFC 7240)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request

from rca_api.problems import ProblemError


def choose(accept: str | None, offered: Sequence[str]) -> str:
    """Choose the offered type with the highest quality for the caller; the first one wins a tie.

    Raises
    ------
    ProblemError
        406, with the offered types, if none matches.
    """
    if accept is None or not accept.strip():
        return offered[0]
    ranges = [_parse(item) for item in accept.split(",") if item.strip()]
    qualities = [(_quality(media_type, ranges), -place) for place, media_type in enumerate(offered)]
    quality, place = max(qualities)
    if quality <= 0:
        raise ProblemError(
            "not-acceptable", f"no offered type matches Accept: {accept}", expected=", ".join(offered)
        )
    return offered[-place]


def _parse(item: str) -> tuple[str, float]:
    media_range, *parameters = (part.strip().lower() for part in item.split(";"))
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            try:
                return media_range, min(1.0, max(0.0, float(value)))
            except ValueError:
                return media_range, 0.0
    return media_range, 1.0


def _quality(media_type: str, ranges: Sequence[tuple[str, float]]) -> float:
    """Quality of the most specific range that matches; 0 if none matches."""
    wildcard = media_type.partition("/")[0] + "/*"
    for pattern in (media_type, wildcard, "*/*"):
        found = [quality for media_range, quality in ranges if media_range == pattern]
        if found:
            return max(found)
    return 0.0


PREFER_PARAMETER = {
    "name": "Prefer",
    "in": "header",
    "required": False,
    "description": "`respond-async`: answer 202 at once and diagnose later. `wait=5`: answer within 5 "
    "seconds or fail with 504. Both: 200 within that time, else 202.",
    "schema": {"type": "string"},
    "examples": {
        "at once": {"value": "respond-async"},
        "within 5 s": {"value": "wait=5"},
        "either": {"value": "respond-async, wait=5"},
    },
}


@dataclass(frozen=True)
class Preferences:
    """The preferences the service knows; others are ignored, as the RFC requires."""

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
        # A wait of 0 is useful with `respond-async` only: no answer takes no time.
        seconds = float(wait) if wait.isascii() and wait.isdigit() and len(wait) < 7 else None
        asynchronous = "respond-async" in held
        return cls(asynchronous, None if seconds == 0 and not asynchronous else seconds)
