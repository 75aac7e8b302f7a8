"""Deadlines of answers and of work."""

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
        Time limit in all, for the error message.
    of_work : bool
        Whether the work has the whole time limit again after the wait.
    """

    at: float
    seconds: float
    clock: Callable[[], float] = time.monotonic
    of_work: bool = False

    @classmethod
    def after(
        cls, seconds: float, clock: Callable[[], float] = time.monotonic, *, of_work: bool = False
    ) -> Deadline:
        """A deadline `seconds` from now."""
        return cls(clock() + seconds, seconds, clock, of_work)

    def begun(self) -> Deadline:
        """The deadline of work that begins now."""
        return replace(self, at=self.clock() + self.seconds) if self.of_work else self

    def left(self) -> float:
        """Remaining time, seconds; 0 after the deadline."""
        return max(0.0, self.at - self.clock())
