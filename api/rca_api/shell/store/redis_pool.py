"""Connections to a Redis by its URL, with time limits, for shared counts of requests."""

from __future__ import annotations

import re
from typing import Any

from rca.errors import InvalidInput, MissingExtra

#: `rediss://` is TLS, the last two are a Unix socket.
_REDIS = re.compile(r"(?:rediss?|(?:redis\+)?unix)://.")


def is_redis(url: str) -> bool:
    """Whether a URL names a Redis."""
    return _REDIS.match(url) is not None


def redis_pool(url: str, timeout_seconds: float) -> Any:
    """Build a pool of connections; none is opened yet.

    Parameters
    ----------
    url : str
        ``redis://``, ``rediss://`` or ``unix://``. User, password, number of the database and options of TLS
        (``?ssl_ca_certs=FILE``) are part of it.
    timeout_seconds : float
        For a connection, and for each answer.

    Raises
    ------
    MissingExtra
        If the driver is not installed.
    InvalidInput
        If the driver does not understand the URL; the error does not hold it.
    """
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        raise MissingExtra("a Redis needs its driver", hint="pip install 'straggler-rca[redis]'") from None
    # By default the driver pauses for seconds between its attempts. The second one is for a restarted server.
    given = {
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": timeout_seconds,
        "retry": Retry(NoBackoff(), 1),
    }
    try:
        pool = redis.ConnectionPool.from_url(url.removeprefix("redis+"), **given)
        # Finds unknown options, which the driver would report at the first use only.
        pool.connection_class(**pool.connection_kwargs)
    except (ValueError, TypeError, redis.RedisError):
        raise InvalidInput("needs a URL such as redis://:PASSWORD@HOST:6379/0") from None
    return pool
