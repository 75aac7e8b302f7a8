"""Until when an answer is wanted; waiting for a free process counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Deadline:
    """A moment on a monotonic clock.

    Attributes
    ----------
    at : float, seconds
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

    def left(self) -> float:
        """Seconds that are left; 0 once it has passed."""
        return max(0.0, self.at - self.clock())
