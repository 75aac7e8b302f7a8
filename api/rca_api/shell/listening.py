"""Since when this process has been able to hear: silence before that says nothing about a job.

Until its clock has been right for some time, the service does not delete what is old by that clock either.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from rca_api.shell.store.base import now

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
