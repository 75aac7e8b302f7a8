"""Errors of the collector: counted, and logged once, so that training goes on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rca.collect.timers import StepTimer

LOG: Final = logging.getLogger("rca.collect")


class Faults:
    """Counts errors of the collector, and logs the first."""

    def __init__(self) -> None:
        self.count = 0
        self._warned: set[str] = set()

    def add(self, doing: str, error: BaseException) -> None:
        """Count an error; only the first is logged, so that a log does not fill up."""
        self.count += 1
        if self.count == 1:
            LOG.warning("%s failed, training goes on; more errors are counted only: %r", doing, error)

    def lost_step(self, timer: StepTimer, error: BaseException) -> None:
        """Count an error of a timer, and give up its step."""
        self.add("timing a step", error)
        timer.give_up()

    def warn(self, key: str, text: str) -> None:
        """Log a text once."""
        if key not in self._warned:
            self._warned.add(key)
            LOG.warning("%s", text)
