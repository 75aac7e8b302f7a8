"""Until when an answer is wanted, or how long the work on it may take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Deadline:
    """A moment on a monotonic clock.

    Attributes
    ----------
    at : float, seconds
    seconds : float
        What was granted in all, to be told to the caller.
    clock : callable
    of_work : bool
        Whether the work on it has as long again as there was to wait for it.
    """

    at: float
    seconds: float
    clock: Callable[[], float] = time.monotonic
    of_work: bool = False

    @classmethod
    def after(
        cls, seconds: float, clock: Callable[[], float] = time.monotonic, *, of_work: bool = False
    ) -> Deadline:
        """Make a deadline `seconds` from now."""
        return cls(clock() + seconds, seconds, clock, of_work)

    def begun(self) -> Deadline:
        """Say that the work begins: by when it is to be done."""
        return replace(self, at=self.clock() + self.seconds) if self.of_work else self

    def left(self) -> float:
        """Seconds that are left; 0 once it has passed."""
        return max(0.0, self.at - self.clock())
