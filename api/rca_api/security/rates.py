"""Rate limits per caller."""

from __future__ import annotations

import math
import time

import structlog
from limits import parse
from limits.storage import storage_from_string
from limits.strategies import MovingWindowRateLimiter

from rca_api.problems import ProblemError

_log = structlog.stdlib.get_logger("rca_api.security")


class Rates:
    """A moving window per caller.

    Parameters
    ----------
    rate : str
        Such as ``600/minute``; "" for no limit.
    storage : str
        ``memory://`` counts within this process; a Redis or Memcached URL is shared by replicas.
    of : str
        What is counted, for the error message.
    """

    def __init__(self, rate: str, storage: str = "memory://", of: str = "requests") -> None:
        self._rate = parse(rate) if rate else None
        self._of = of
        # Used while the shared storage is away: a limit must not take the service down.
        self._fallback = MovingWindowRateLimiter(storage_from_string("memory://"))
        self._limiter = MovingWindowRateLimiter(storage_from_string(storage))

    def hit(self, caller: str, n: int = 1) -> None:
        """Count `n` requests of `caller`, or refuse all of them.

        Raises
        ------
        ProblemError
            429 with `Retry-After`.
        """
        if self._rate is None:
            return
        limiter = self._limiter
        try:
            allowed = limiter.hit(self._rate, caller, cost=n)
        except Exception:
            _log.warning(
                "the shared rate counts are not available, this process counts itself", exc_info=True
            )
            limiter = self._fallback
            allowed = limiter.hit(self._rate, caller, cost=n)
        if not allowed:
            reset = limiter.get_window_stats(self._rate, caller).reset_time
            raise _rate_exceeded(f"{self._rate} ({self._of})", reset - time.time())


def _rate_exceeded(rate: str, wait_seconds: float) -> ProblemError:
    wait = max(1, math.ceil(wait_seconds))
    return ProblemError(
        "rate-limited",
        f"more than {rate}; retry after {wait} s",
        headers={"Retry-After": str(wait), "Connection": "close"},
    )
