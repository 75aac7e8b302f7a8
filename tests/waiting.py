"""Waiting for what another process or thread does, and gives no event for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")
#: For a busy machine; a test that passes does not wait for it.
SECONDS = 120.0


def until(
    true: Callable[[], Found],
    seconds: float = SECONDS,
    pause: float = 0.02,
    not_yet: type[Exception] | tuple[type[Exception], ...] = (),
) -> Found:
    """Ask again and again until the answer is true, and give it; some errors mean that it is not yet."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if found := true():
                return found
        except not_yet:
            pass
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(pause)
