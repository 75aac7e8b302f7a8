"""Wakes a worker when a run is ordered or cancelled: a huey queue on SQLite, Redis or PostgreSQL.

The queue only saves waiting. The row of the run holds its state, and a worker reads it every few seconds
anyway. Messages are bare run ids, because tasks of huey would be pickled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from rca_api.shell.store import time_limits
from rca_api.shell.store.redis_pool import is_redis, redis_pool

_NAME = "rca-training"
#: Longest use of a queue in PostgreSQL; a wait for an id is shorter.
_LONGEST_SECONDS = 5.0
#: Seconds between two reads of a storage that cannot block.
_READ_SECONDS = 0.25
#: Time limit of an answer of Redis, longer than it waits for an id.
_REDIS_SECONDS = 2.0
_log = structlog.stdlib.get_logger("rca_api.training")


class WakeupQueue:
    """A queue of ids of runs whose rows have changed.

    Parameters
    ----------
    url : str
        ``sqlite://``, ``redis://``, ``rediss://``, ``unix://`` or ``postgresql://``.

    Raises
    ------
    MissingExtra
        If its driver is not installed.
    InvalidInput
        If the driver does not understand the URL.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool = redis_pool(url, _REDIS_SECONDS) if is_redis(url) else None
        self._storage: Any = None

    def notify(self, run_id: str) -> None:
        """Wake one worker; never raises, because without the queue a worker finds the row seconds later."""
        self._use(lambda storage: storage.enqueue(run_id.encode()))

    def wait(self, seconds: float) -> bool:
        """Wait for ids and take all that there are; False if none came within `seconds`."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            found, began = False, time.monotonic()
            while self._use(lambda storage: storage.dequeue()):
                found = True
            if found:
                return True
            # Redis and PostgreSQL have waited already; a storage that is away is not tried all the time.
            pause = _READ_SECONDS - (time.monotonic() - began) if self._storage is not None else left
            time.sleep(max(0.0, min(left, pause)))
        return False

    def close(self) -> None:
        """Close its connections; the next use opens them again."""
        storage, self._storage = self._storage, None
        if storage is not None:
            with suppress(Exception):
                storage.close()
        if self._pool is not None:
            self._pool.disconnect()

    def _use(self, work: Callable[[Any], Any]) -> Any:
        try:
            if self._storage is None:
                self._storage = _storage(self._url, self._pool)
            # It saves waiting, so it must not make anybody wait.
            with time_limits.transaction(_LONGEST_SECONDS):
                return work(self._storage)
        except Exception as error:
            # Each driver raises its own errors, and none of them matters: the row has the state.
            _log.warning("the queue cannot be used", reason=type(error).__name__)
            self.close()
            return None


def _storage(url: str, pool: Any) -> Any:
    from huey import storage

    if pool is not None:
        return storage.RedisStorage(_NAME, connection_pool=pool, read_timeout=1)
    kind, _, rest = url.partition("://")
    if kind == "sqlite":
        place = Path(rest.removeprefix("/"))
        place.parent.mkdir(parents=True, exist_ok=True)
        return storage.SqliteStorage(_NAME, filename=str(place))
    from rca_api.shell.store.postgresql_engine import LimitedConnection

    connect = partial(LimitedConnection.connect, f"postgresql://{rest}")
    return storage.PostgresStorage(_NAME, connection=connect, read_timeout=1)
