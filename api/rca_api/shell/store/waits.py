"""Moments in rows, by a clock that may be put back.

A row stores the end of its wait, or when something happened. After the clock was put back by hours, such a
moment lies ahead. A wait that ends further ahead than it can have been set counts as over. What happened
further ahead than clocks differ happened before the clock was put back, so it counts as long ago.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import overload

from sqlalchemy import ColumnElement, and_
from sqlalchemy.orm import InstrumentedAttribute

from rca_api.shell.store.base import now

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


@overload
def is_recent(moment: datetime, at: datetime, length: timedelta) -> bool: ...
@overload
def is_recent(moment: _Column, at: datetime, length: timedelta) -> ColumnElement[bool]: ...
def is_recent(moment: datetime | _Column, at: datetime, length: timedelta) -> bool | ColumnElement[bool]:
    """Whether something happened at most `length` ago; of a column, the condition for a query.

    Parameters
    ----------
    moment : datetime or column
        When it happened. A moment more than ten minutes ahead is not recent.
    """
    earliest, furthest = at - length, at + timedelta(seconds=_MIN_FURTHEST_SECONDS)
    if isinstance(moment, datetime):
        return earliest <= moment <= furthest
    return and_(moment >= earliest, moment <= furthest)


#: A larger difference of the two clocks between two calls means that the wall clock was set.
_CLOCK_STEP_SECONDS = 60.0


class Listening:
    """Counts from the start of the service, and again after its clock was set or its machine slept.

    A service that was away for a day does not know what it missed.

    Parameters
    ----------
    clock, ticks : callable
        Wall clock of the service; monotonic clock, seconds.
    """

    def __init__(
        self, clock: Callable[[], datetime] = now, ticks: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock, self._ticks = clock, ticks
        self._last_time = clock()
        self._since = self._last_ticks = ticks()

    def seconds(self) -> float:
        """Seconds since then; to be asked at least every hour."""
        at, ticks = self._clock(), self._ticks()
        passed = (at - self._last_time).total_seconds()
        if abs(passed - (ticks - self._last_ticks)) > _CLOCK_STEP_SECONDS:
            self._since = ticks
        self._last_time, self._last_ticks = at, ticks
        return ticks - self._since
