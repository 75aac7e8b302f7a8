"""Wakes the worker when there is something to do: a huey queue, on SQLite, Redis or PostgreSQL.

Nothing depends on it but how soon: who works on what is written in the row of the run, which a worker looks
at every few seconds anyway. Messages are bare run ids; huey's own tasks would be pickled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import structlog

from rca.errors import MissingExtra

_NAME = "rca-training"
#: How long a look into a queue that cannot wake us is apart from the next.
_LOOK_SECONDS = 0.25
_log = structlog.stdlib.get_logger("rca_api.training")


class Bell(Protocol):
    """Rung by whoever writes a row that concerns the worker."""

    def ring(self, run_id: str) -> None:
        """Wake one worker; never fails, because the row is there already."""

    def wait(self, seconds: float) -> bool:
        """Wait to be rung, so long at most; whether it was."""

    def close(self) -> None:
        """Let go of what it holds."""


class QueueBell:
    """A bell that is one of huey's storages."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._storage: Any = None

    def ring(self, run_id: str) -> None:
        """Put the id into the queue; a queue that is away costs a few seconds of waiting, not the run."""
        self._use(lambda storage: storage.enqueue(run_id.encode()))

    def wait(self, seconds: float) -> bool:
        """Wait for an id; all that are there are taken."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            rung, asked = False, time.monotonic()
            while self._use(lambda storage: storage.dequeue()):
                rung = True
            if rung:
                return True
            # Storages that block have waited already; one that is away is not asked all the time.
            pause = _LOOK_SECONDS - (time.monotonic() - asked) if self._storage is not None else left
            time.sleep(max(0.0, min(left, pause)))
        return False

    def close(self) -> None:
        """Close its connections; the next use opens them again."""
        storage, self._storage = self._storage, None
        if storage is not None:
            with suppress(Exception):
                storage.close()

    def _use(self, work: Callable[[Any], Any]) -> Any:
        try:
            if self._storage is None:
                self._storage = _storage(self._url)
            return work(self._storage)
        except Exception as error:
            # Of drivers that are not ours: whatever they raise, the row is what counts.
            reason = error.message if isinstance(error, MissingExtra) else type(error).__name__
            _log.warning("the queue cannot be used", reason=reason)
            self.close()
            return None


def _storage(url: str) -> Any:
    from huey import storage
    from huey.exceptions import ConfigurationError

    kind, _, rest = url.partition("://")
    try:
        if kind == "sqlite":
            place = Path(rest.removeprefix("/"))
            place.parent.mkdir(parents=True, exist_ok=True)
            return storage.SqliteStorage(_NAME, filename=str(place))
        if kind in ("redis", "rediss", "unix"):
            return storage.RedisStorage(_NAME, url=url, read_timeout=1)
        return storage.PostgresStorage(_NAME, dsn=f"postgresql://{rest}", read_timeout=1)
    except ConfigurationError as error:
        driver = "redis" if kind.startswith(("redis", "unix")) else "psycopg[binary]"
        raise MissingExtra(
            f"the queue at {kind}:// needs a driver", hint=f"pip install '{driver}'"
        ) from error
