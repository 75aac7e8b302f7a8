"""Segments of telemetry that stay decoded in a process, while looks at their job use them.

No look uses a segment whose telemetry was deleted, so it leaves the process after `MAX_UNUSED_SECONDS`.
No other task is needed for that: a process may wait for days.
"""

from __future__ import annotations

import threading
import time

from rca.window.encodings.document import Decoded

#: Segments of a process.
MAX_SEGMENTS = 512
#: Looks at a job that runs follow each other faster.
MAX_UNUSED_SECONDS = 60.0


class HeldSegments:
    """Decoded segments by their digest; the oldest leave first.

    Parameters
    ----------
    most : int
        Segments.
    unused_seconds : float
        A segment that was not used for so long is forgotten, at the latest after twice this time.
    """

    def __init__(self, most: int = MAX_SEGMENTS, unused_seconds: float = MAX_UNUSED_SECONDS) -> None:
        self._most, self._unused_seconds = most, unused_seconds
        self._held: dict[str, Decoded] = {}
        self._used: dict[str, float] = {}
        self._changing = threading.Lock()
        self._is_watched = False

    def __len__(self) -> int:
        return len(self._held)

    def get(self, digest: str) -> Decoded | None:
        """A segment, which counts as used now; None if it is not held."""
        with self._changing:
            if digest in self._held:
                self._used[digest] = time.monotonic()
            return self._held.get(digest)

    def hold(self, digest: str, decoded: Decoded) -> None:
        """Hold a segment."""
        with self._changing:
            self._held[digest], self._used[digest] = decoded, time.monotonic()
            if len(self._held) > self._most:
                self._forget(next(iter(self._held)))
            self._watch()

    def _watch(self) -> None:
        if self._held and not self._is_watched:
            self._is_watched = True
            timer = threading.Timer(self._unused_seconds, self._forget_unused)
            timer.daemon = True
            timer.start()

    def _forget_unused(self) -> None:
        with self._changing:
            self._is_watched = False
            until = time.monotonic() - self._unused_seconds
            for digest in [digest for digest, used in self._used.items() if used <= until]:
                self._forget(digest)
            self._watch()

    def _forget(self, digest: str) -> None:
        del self._held[digest], self._used[digest]
