"""How often one caller may ask."""

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
    """

    def __init__(self, rate: str, storage: str = "memory://") -> None:
        self._rate = parse(rate) if rate else None
        # Where the shared storage is away, callers are counted here: a limit must not take the service down.
        self._fallback = MovingWindowRateLimiter(storage_from_string("memory://"))
        self._limiter = MovingWindowRateLimiter(storage_from_string(storage))

    def hit(self, caller: str) -> None:
        """Count one request of `caller`, or refuse it.

        Raises
        ------
        ProblemError
            429 with `Retry-After`.
        """
        if self._rate is None:
            return
        limiter = self._limiter
        try:
            allowed = limiter.hit(self._rate, caller)
        except Exception:
            _log.warning("the shared counts cannot be used, counting here", exc_info=True)
            limiter = self._fallback
            allowed = limiter.hit(self._rate, caller)
        if not allowed:
            reset = limiter.get_window_stats(self._rate, caller).reset_time
            raise _too_often(str(self._rate), reset - time.time())


class Failures:
    """Failed attempts of an address; beyond the rate it is not even looked at."""

    def __init__(self, rate: str) -> None:
        self._rate = parse(rate)
        self._limiter = MovingWindowRateLimiter(storage_from_string("memory://"))

    def count(self, address: str) -> None:
        """Count one failure."""
        self._limiter.hit(self._rate, address)

    def check(self, address: str) -> None:
        """Refuse an address with too many failures.

        Raises
        ------
        ProblemError
            429 with `Retry-After`.
        """
        if not self._limiter.test(self._rate, address):
            reset = self._limiter.get_window_stats(self._rate, address).reset_time
            raise _too_often(f"{self._rate} failed attempts", reset - time.time())


def _too_often(rate: str, wait_seconds: float) -> ProblemError:
    wait = max(1, math.ceil(wait_seconds))
    return ProblemError(
        "rate-limited",
        f"more than {rate}; retry after {wait} s",
        headers={"Retry-After": str(wait), "Connection": "close"},
    )
