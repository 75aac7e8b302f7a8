"""Retries of trials that could not be completed: how many, and after which pause."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

#: Trials in which a bundle takes too long or ends its process, until it is rejected.
MAX_UNFINISHED = 3
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 30.0, 600.0


@dataclass
class _Case:
    """A bundle without a complete trial, and the request for its trial."""

    request: str
    trials: int = 0
    unfinished: int = 0
    not_before: float = 0.0
    closed: bool = False


class RetryPolicy:
    """Counts trials by bundle; a new request for the same bundle starts from the beginning.

    Parameters
    ----------
    clock : callable
        Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._cases: dict[str, _Case] = {}

    def begin(self, sha256: str, request: str) -> bool:
        """Start with a request for a bundle; True if it is a new one, which resets all counts."""
        if sha256 in self._cases and self._cases[sha256].request == request:
            return False
        self._cases[sha256] = _Case(request)
        return True

    def allows(self, sha256: str) -> bool:
        """Whether the bundle may be tried now."""
        case = self._cases[sha256]
        return not case.closed and self._clock() >= case.not_before

    def postpone(self, sha256: str) -> None:
        """Allow another trial after a pause; each pause is twice as long as the one before."""
        case = self._cases[sha256]
        pause = min(_FIRST_PAUSE_SECONDS * 2**case.trials, _MAX_PAUSE_SECONDS)
        case.trials, case.not_before = case.trials + 1, self._clock() + pause

    def unfinished(self, sha256: str) -> bool:
        """Count a trial that the bundle did not complete; True at the limit."""
        self._cases[sha256].unfinished += 1
        return self._cases[sha256].unfinished >= MAX_UNFINISHED

    def forget(self, sha256: str) -> None:
        """Delete the counts of a bundle that has passed."""
        self._cases.pop(sha256, None)

    def close(self, sha256: str) -> None:
        """Allow no trial until another one is requested."""
        self._cases[sha256].closed = True
