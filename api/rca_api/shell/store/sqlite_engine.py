"""The engine of a SQLite file: write-ahead log, durable commits, foreign keys, limited waits."""

from __future__ import annotations

import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event

from rca_api.shell.store import time_limits
from rca_api.shell.store.private import private_file, private_folder

#: Longest wait of a writer for the transaction of another writer, if its transaction has no limit.
_BUSY_SECONDS = 60.0
#: Seconds between two tries of a statement that SQLite refuses without waiting.
_BUSY_PAUSE_SECONDS = 0.01
#: Steps of SQLite's virtual machine between two looks at the clock, a millisecond or so.
_STEPS = 10_000


def sqlite_engine(url: URL) -> Engine:
    """Make the engine; a new file is readable for its owner only."""
    engine = create_engine(url)
    if url.database and url.database != ":memory:" and not url.database.startswith("file:"):
        path = Path(url.database)
        # Before the first connection, because closing the file would drop the locks of SQLite. SQLite would
        # create it readable for all users; its journals get the rights of the database file. Where this
        # fails, the driver reports the reason.
        with suppress(OSError):
            private_folder(path.parent)
            private_file(path)
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    return engine


def _on_connect(connection: Any, _: object) -> None:
    # The driver begins transactions late and not before every statement; `_on_begin` does it instead.
    connection.isolation_level = None
    _enable_write_ahead_log(connection)
    for pragma in (
        # An acknowledged diagnosis survives a power cut, not only a crash.
        "synchronous=FULL",
        "foreign_keys=ON",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _enable_write_ahead_log(connection: Any) -> None:
    """Use a write-ahead log, so that readers do not wait for writers.

    SQLite refuses this without waiting while another connection changes the mode of a new file, so it is
    retried.
    """
    until = time.monotonic() + _busy_seconds()
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            # The low byte is the primary code.
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() >= until:
                raise
        time.sleep(_BUSY_PAUSE_SECONDS)


def _on_begin(connection: Connection) -> None:
    until = time_limits.end()
    driver: Any = connection.connection.driver_connection
    driver.set_progress_handler(None if until is None else lambda: time.monotonic() > until, _STEPS)
    connection.exec_driver_sql(f"PRAGMA busy_timeout={round(1e3 * _busy_seconds())}")
    connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get('begin', 'DEFERRED')}")


def _busy_seconds() -> float:
    left = time_limits.left()
    return _BUSY_SECONDS if left is None else time_limits.LOCK_SHARE * left
