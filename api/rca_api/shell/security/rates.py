"""Rate limits per caller."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import structlog
from limits import RateLimitItem, parse
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import MovingWindowRateLimiter

from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.store.redis_pool import is_redis, redis_pool

MEMORY = "memory://"
#: Time limit of an answer of Redis; every request waits for it.
_REDIS_SECONDS = 0.5
#: How long this process counts itself after Redis has failed.
_AWAY_SECONDS = 5.0
_log = structlog.stdlib.get_logger("rca_api.shell.security")


class Rates:
    """A moving window per caller.

    Parameters
    ----------
    rate : str
        Such as ``600/minute``; "" for no limit.
    storage : str
        ``memory://`` counts within this process; the URL of a Redis is shared by replicas.
    of : str
        What is counted, for the error message.
    clock : callable
        Seconds, monotonic.

    Raises
    ------
    MissingExtra
        If the driver of Redis is not installed.
    InvalidInput
        If the driver does not understand the URL.
    """

    def __init__(
        self,
        rate: str,
        storage: str = MEMORY,
        of: str = "requests",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = parse(rate) if rate else None
        self._of = of
        self._clock = clock
        # Used while the shared storage is away: a limit must not take the service down.
        self._fallback = MovingWindowRateLimiter(MemoryStorage())
        self._pool = redis_pool(storage, _REDIS_SECONDS) if is_redis(storage) else None
        self._limiter = MovingWindowRateLimiter(_storage(self._pool))
        self._away_until = float("-inf")

    def hit(self, caller: str, n: int = 1) -> None:
        """Count `n` requests of `caller`, or refuse all of them.

        Raises
        ------
        ProblemError
            429 with `Retry-After`.
        """
        if self._rate is None:
            return
        if self._clock() < self._away_until:
            self._count(self._fallback, self._rate, caller, n)
            return
        try:
            self._count(self._limiter, self._rate, caller, n)
        except ProblemError:
            raise
        except Exception as error:
            # The next requests do not wait for a storage that does not answer.
            self._away_until = self._clock() + _AWAY_SECONDS
            _log.warning(
                "the shared rate counts are not available, this process counts itself",
                reason=type(error).__name__,
            )
            self._count(self._fallback, self._rate, caller, n)

    def close(self) -> None:
        """Close the connections to the shared storage."""
        if self._pool is not None:
            self._pool.disconnect()

    def _count(self, limiter: MovingWindowRateLimiter, rate: RateLimitItem, caller: str, n: int) -> None:
        if not limiter.hit(rate, caller, cost=n):
            reset = limiter.get_window_stats(rate, caller).reset_time
            raise _rate_exceeded(f"{rate} ({self._of})", reset - time.time())


def _storage(pool: Any) -> MemoryStorage | RedisStorage:
    # The pool has the address.
    return MemoryStorage() if pool is None else RedisStorage("redis://", connection_pool=pool)


def _rate_exceeded(rate: str, wait_seconds: float) -> ProblemError:
    wait = max(1, math.ceil(wait_seconds))
    return ProblemError(
        "rate-limited",
        f"more than {rate}; retry after {wait} s",
        headers={"Retry-After": str(wait), "Connection": "close"},
    )
