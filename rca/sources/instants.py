"""Times and spans as people and schedulers write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from rca.errors import InvalidInput, cut

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
#: Begin of the years 2000 and 2100, Unix seconds: what lies outside is milliseconds, a date, or a mistake.
EARLIEST, LATEST = 946_684_800.0, 4_102_444_800.0
#: Longest span, seconds: ten years.
MAX_SPAN = 3660 * 86_400.0
_FORM = "write it like 2026-11-26T09:30:00Z, or in Unix seconds"
_SPAN = re.compile(r"(\d{1,9}(?:\.\d+)?)([smhd]?)")


def seconds_of(text: str) -> float:
    """Seconds of a span such as ``90s``, ``30m``, ``2h`` or ``1d``.

    Raises
    ------
    InvalidInput
        If it is no span, or longer than `MAX_SPAN`.
    """
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise InvalidInput(f"{cut(text)!r} is no span of time", hint="write it like 90s, 30m, 2h or 1d")
    seconds = float(found[1]) * _UNITS.get(found[2], 1.0)
    if seconds > MAX_SPAN:
        raise InvalidInput(f"{cut(text)!r} is longer than ten years", hint="write it like 90s, 30m, 2h or 1d")
    return seconds


def moment_of(text: str) -> float:
    """Unix seconds of a time in RFC 3339 or Unix seconds; without an offset it is UTC.

    Raises
    ------
    InvalidInput
        If it is no time.
    """
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidInput(f"{cut(text)!r} is no time", hint=_FORM) from None
        seconds = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    if not EARLIEST <= seconds <= LATEST:
        raise InvalidInput(f"{cut(text)!r} is no time from 2000 to 2100", hint=_FORM)
    return seconds


def text_of(moment: float) -> str:
    """RFC 3339 in UTC of Unix seconds, without a fraction if it is none."""
    return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")
