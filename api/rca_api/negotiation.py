"""Choosing the media type of an answer (RFC 9110, section 12.5.1)."""

from __future__ import annotations

from collections.abc import Sequence

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
