"""Until when an answer is wanted, or how long the work on it may take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Deadline:
    """A moment on a monotonic clock.

    Attributes
    ----------
    at : float, seconds
        Infinite while it has not begun.
    seconds : float
        What was granted in all, to be told to the caller.
    clock : callable
    """

    at: float
    seconds: float
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> Deadline:
        """Make a deadline `seconds` from now."""
        return cls(clock() + seconds, seconds, clock)

    @classmethod
    def of_work(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> Deadline:
        """Make one that waiting does not count for: it begins with the work, which may take `seconds`."""
        return cls(math.inf, seconds, clock)

    def begun(self) -> Deadline:
        """Say that the work begins: by when it is to be done."""
        return self if math.isfinite(self.at) else replace(self, at=self.clock() + self.seconds)

    def left(self) -> float:
        """Seconds that are left; 0 once it has passed."""
        return max(0.0, self.at - self.clock())
