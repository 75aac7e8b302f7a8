"""The engine of a PostgreSQL server: no wait for it lasts longer than its transaction may.

The server ends statements and waits for locks itself. That needs a server that runs. One that hangs, or a
connection that was cut without a word, is noticed here: `LimitedConnection` gives up and closes itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from typing import Any

import psycopg
from sqlalchemy import URL, Connection, Engine, create_engine, event

from rca_api.shell.store import time_limits

#: Connections of a process that stay open.
_KEPT_OPEN = 5
#: A client that does nothing for so long inside a transaction loses its locks: it hangs, or is cut off.
_IDLE_SECONDS = 60.0
#: A connection whose other end is gone without a word ends after 25 s without traffic.
_KEEPALIVE = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}


_SILENT = "the server gives no answer"


class NoAnswer(psycopg.OperationalError):
    """The server gave no answer in time."""


#: Errors of a server that hangs or is out of reach. A server that refuses is neither.
UNANSWERED = (NoAnswer, psycopg.errors.ConnectionTimeout)


class LimitedConnection(psycopg.Connection[Any]):
    """A connection that closes itself when its transaction has to end and the server has not answered."""

    @classmethod
    def _connect_gen(cls, *arguments: Any, **options: Any) -> Generator[Any, Any, Any]:
        """Connect, at most until the end of the transaction; libpq knows no limit below two seconds."""
        connecting = super()._connect_gen(*arguments, **options)
        until = time_limits.end()
        return (yield from connecting if until is None else _limited(connecting, until))

    def wait(self, gen: Generator[Any, Any, Any], *arguments: Any, **options: Any) -> Any:
        """Wait for the server, at most until the end of the transaction."""
        until = time_limits.end()
        if until is None:
            return super().wait(gen, *arguments, **options)
        try:
            return super().wait(_limited(gen, until), *arguments, **options)
        except NoAnswer:
            # An answer that comes later would be taken for that of the next statement.
            self.close()
            raise


def _limited(gen: Generator[Any, Any, Any], until: float) -> Generator[Any, Any, Any]:
    """Pass everything through; psycopg resumes it ten times a second with 0 while nothing arrives."""
    ready: Any = None
    while True:
        try:
            wanted = gen.send(ready)
        except StopIteration as done:
            return done.value
        ready = yield wanted
        if not ready and time.monotonic() >= until:
            raise NoAnswer(_SILENT)


def postgresql_engine(url: URL, most: int, longest_seconds: float) -> Engine:
    """Make the engine.

    Parameters
    ----------
    most : int
        Connections at once.
    longest_seconds : float
        Of a wait for a connection, if a transaction has no limit of its own.
    """
    # Each connection is checked before use: a restarted server has dropped it.
    engine = create_engine(
        url,
        pool_pre_ping=True,
        pool_size=_KEPT_OPEN,
        max_overflow=most - _KEPT_OPEN,
        pool_timeout=longest_seconds,
    )

    def connect(_: Any, __: Any, arguments: Any, options: dict[str, Any]) -> LimitedConnection:
        network = {
            **_KEEPALIVE,
            "tcp_user_timeout": round(1e3 * longest_seconds),
            # Where a transaction has no limit.
            "connect_timeout": math.ceil(longest_seconds),
        }
        # What the URL says about the network counts.
        return LimitedConnection.connect(*arguments, **{**network, **options})

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "begin", _on_begin)
    return engine


def _on_begin(connection: Connection) -> None:
    left = time_limits.left()
    if left is None:
        return
    limits = {
        "lock_timeout": time_limits.LOCK_SHARE * left,
        "statement_timeout": time_limits.STATEMENT_SHARE * left,
        "idle_in_transaction_session_timeout": _IDLE_SECONDS,
    }
    # For this transaction only, which also works behind a pooler. 0 would be no limit.
    connection.exec_driver_sql(
        "; ".join(f"SET LOCAL {name} = {max(1, round(1e3 * seconds))}" for name, seconds in limits.items())
    )
