"""How often, and how soon again, a bundle is tried that could not be tried to its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

#: Trials in which a bundle took too long or ended its process; then it is to blame, not the machine.
MOST_UNFINISHED = 3
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 30.0, 600.0


@dataclass
class _Case:
    """A bundle that has been tried in vain, and the request that it was tried for."""

    asked: str
    trials: int = 0
    unfinished: int = 0
    not_before: float = 0.0
    closed: bool = False


class Patience:
    """Counts trials by bundle; a new request for the same bundle starts from the beginning.

    Parameters
    ----------
    clock : callable
        Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._cases: dict[str, _Case] = {}

    def begin(self, sha256: str, asked: str) -> bool:
        """Take up a request for a bundle; True if it is a new one, and what was before is forgotten."""
        if sha256 in self._cases and self._cases[sha256].asked == asked:
            return False
        self._cases[sha256] = _Case(asked)
        return True

    def allows(self, sha256: str) -> bool:
        """Whether it is time to try it."""
        case = self._cases[sha256]
        return not case.closed and self._clock() >= case.not_before

    def postpone(self, sha256: str) -> None:
        """Try it again after a pause, each longer than the one before."""
        case = self._cases[sha256]
        pause = min(_FIRST_PAUSE_SECONDS * 2**case.trials, _LONGEST_PAUSE_SECONDS)
        case.trials, case.not_before = case.trials + 1, self._clock() + pause

    def unfinished(self, sha256: str) -> bool:
        """Count a trial that the bundle did not end; True if there have been enough of them."""
        self._cases[sha256].unfinished += 1
        return self._cases[sha256].unfinished >= MOST_UNFINISHED

    def forget(self, sha256: str) -> None:
        """Whatever it was tried for, it has passed."""
        self._cases.pop(sha256, None)

    def close(self, sha256: str) -> None:
        """Try it no more, until somebody asks for it again."""
        self._cases[sha256].closed = True
