"""Headers with which a caller chooses its answer: ``Accept`` (RFC 9110, 12.5.1) and ``Prefer`` (RFC 7240)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from rca_api.shell.requests.problems import ProblemError


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


def _prefer(description: str, **examples: str) -> dict[str, Any]:
    """OpenAPI declaration of the header."""
    return {
        "name": "Prefer",
        "in": "header",
        "required": False,
        "description": f"{description} Other preferences, and other values of these, are ignored (RFC 7240).",
        "schema": {"type": "string"},
        "examples": {name.replace("_", " "): {"value": value} for name, value in examples.items()},
    }


WAIT_PARAMETER = _prefer("`wait=5`: answer within 5 seconds or fail with 504.", within_5_s="wait=5")
PREFER_PARAMETER = _prefer(
    "`respond-async`: answer 202 at once and diagnose later. `wait=5`: answer within 5 seconds or fail with "
    "504. Both: 200 within that time, else 202.",
    at_once="respond-async",
    within_5_s="wait=5",
    either="respond-async, wait=5",
)
_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
# All repetitions are possessive: a header of any form is read in one pass.
_QUOTED = r'"(?:[^"\\]|\\.)*+"'
#: A quoted text, also one that does not end; a comma; anything else.
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?$)|,|[^",]++', re.DOTALL)
_PREFERENCE = re.compile(
    rf"\s*+(?P<name>{_WORD})\s*+(?:=\s*+(?P<value>{_WORD}|{_QUOTED})?\s*+)?(?:;.*+)?", re.DOTALL
)
_MAX_DIGITS = 6


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
            for element in _elements(header):
                found = _PREFERENCE.fullmatch(element)
                if found is not None:
                    held.setdefault(found["name"].lower(), _unquoted(found["value"] or ""))
        wait = held.get("wait", "")
        # A wait of 0 is useful with `respond-async` only: no answer takes no time.
        seconds = float(wait) if wait.isascii() and wait.isdigit() and len(wait) <= _MAX_DIGITS else None
        # It is defined without a value, and an empty value means none: `respond-async=false` is another wish.
        asynchronous = held.get("respond-async") == ""
        return cls(asynchronous, None if seconds == 0 and not asynchronous else seconds)


def _elements(header: str) -> Iterator[str]:
    """The members of a list; commas in quotes separate nothing."""
    element = ""
    for piece in _PIECE.findall(header):
        if piece == ",":
            yield element
            element = ""
        else:
            element += piece
    yield element


def _unquoted(word: str) -> str:
    return re.sub(r"\\(.)", r"\1", word[1:-1], flags=re.DOTALL) if word.startswith('"') else word
