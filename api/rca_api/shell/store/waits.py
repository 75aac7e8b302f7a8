"""Moments until which a row waits, by a clock that may be put back.

A row stores the end of its wait. After the clock was put back by hours, the row would wait for hours longer.
So a wait that ends further ahead than it can have been set counts as over.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import overload

from sqlalchemy import ColumnElement, and_
from sqlalchemy.orm import InstrumentedAttribute

#: Replicas may have clocks that differ by seconds, and other settings. A shorter step back of the clock is
#: waited for.
_MIN_FURTHEST_SECONDS = 600.0

_Column = InstrumentedAttribute[datetime] | InstrumentedAttribute[datetime | None]


def furthest_seconds(longest: float) -> float:
    """How far ahead the end of a wait of at most `longest` seconds may lie, in seconds."""
    return max(2.0 * longest, _MIN_FURTHEST_SECONDS)


@overload
def is_waiting(until: datetime, at: datetime, longest: timedelta) -> bool: ...
@overload
def is_waiting(until: _Column, at: datetime, longest: timedelta) -> ColumnElement[bool]: ...
def is_waiting(until: datetime | _Column, at: datetime, longest: timedelta) -> bool | ColumnElement[bool]:
    """Whether a wait has not ended yet; of a column, the condition for a query, which is null for null.

    Parameters
    ----------
    until : datetime or column
        End of the wait.
    longest : timedelta
        Longest wait that is set. An end further ahead than twice this, and than ten minutes, is over.
    """
    furthest = at + timedelta(seconds=furthest_seconds(longest.total_seconds()))
    if isinstance(until, datetime):
        return at < until <= furthest
    return and_(until > at, until <= furthest)
