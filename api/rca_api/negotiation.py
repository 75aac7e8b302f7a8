"""Choosing the media type of an answer (RFC 9110, section 12.5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request

from rca_api.problems import ProblemError


def choose(accept: str | None, offered: Sequence[str]) -> str:
    """Pick the offered type the caller likes best; the first offered one wins a tie.

    Raises
    ------
    ProblemError
        406, naming what is on offer, if nothing matches.
    """
    if accept is None or not accept.strip():
        return offered[0]
    ranges = [_parse(item) for item in accept.split(",") if item.strip()]
    liked = [(_quality(media_type, ranges), -place) for place, media_type in enumerate(offered)]
    quality, place = max(liked)
    if quality <= 0:
        raise ProblemError(
            "not-acceptable", f"nothing on offer matches Accept: {accept}", expected=", ".join(offered)
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
    """Quality of the most specific range that matches; 0 if none does."""
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
