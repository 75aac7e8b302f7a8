"""The SQL database: a SQLite file, or PostgreSQL by its URL."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session, sessionmaker

from rca.errors import MissingExtra, SourceError
from rca_api.store.private import private_file, private_folder

#: Longest wait of a SQLite writer for the transaction of another writer.
_BUSY_SECONDS = 10.0
#: Seconds between two tries of a statement that SQLite refuses without waiting.
_BUSY_PAUSE_SECONDS = 0.01
#: Longest wait for a connection to PostgreSQL.
_CONNECT_SECONDS = 5
_MIGRATION_LOCK = 7_221_001
_MIGRATIONS = Path(__file__).parent / "migrations"
_log = structlog.stdlib.get_logger("rca_api")


class StoreError(SourceError):
    """The database cannot be used at the moment; nothing was stored."""

    code = "store-unavailable"


class Schema(NamedTuple):
    """Revision of a database (None if it is empty), and the newest that this version knows."""

    current: str | None
    newest: str | None

    @property
    def is_newer(self) -> bool:
        """Whether a newer version has migrated the database; this one still works, as migrations only add."""
        return self.current is not None and self.current not in _known()


class Database:
    """Sessions on one database; safe to use from many threads, never across a fork.

    Parameters
    ----------
    url : str
        SQLAlchemy URL; ``postgresql://`` means psycopg 3.
    on_failure : callable, optional
        Called for every transaction that fails because the database cannot be used.
    """

    def __init__(self, url: str, on_failure: Callable[[], None] | None = None) -> None:
        self._on_failure = on_failure
        self.url = make_url(url)
        if self.url.drivername in ("postgresql", "postgres"):
            self.url = self.url.set(drivername="postgresql+psycopg")
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.engine = _sqlite_engine(self.url) if self.is_sqlite else _server_engine(self.url)
        self._writers = sessionmaker(self.engine.execution_options(begin="IMMEDIATE"), expire_on_commit=False)
        self._readers = sessionmaker(self.engine, expire_on_commit=False)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Open a transaction that writes: committed when the context ends, rolled back on any error.

        In SQLite it takes the write lock at once, so rows that it reads do not change before it writes. In
        PostgreSQL that needs row locks (``with_for_update``) and unique constraints.

        Raises
        ------
        StoreError
            If the database is out of reach, full or locked for too long.
        """
        with self._translated(), self._writers.begin() as session:
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a transaction that only reads; in SQLite readers and writers do not wait for each other.

        Raises
        ------
        StoreError
            If the database cannot be reached.
        """
        with self._translated(), self._readers.begin() as session:
            yield session

    def check(self) -> None:
        """Raise `StoreError` unless the database answers and has the schema this version needs."""
        with self.reading() as session:
            session.execute(text("SELECT 1"))
        schema = self.schema()
        if schema.current != schema.newest and not schema.is_newer:
            raise StoreError(
                f"the database has schema {schema.current or 'none'}, this version needs {schema.newest}",
                hint="run `rca db upgrade`",
            )

    def schema(self) -> Schema:
        """The schema of the database."""
        try:
            with self.engine.connect() as connection:
                return _schema_of(connection)
        except DBAPIError as error:
            raise StoreError(f"the database cannot be used: {_reason(error)}") from error

    def upgrade(self) -> Schema:
        """Bring the schema to the newest revision, unless it is there already or newer.

        Returns
        -------
        Schema
            The schema before.

        Raises
        ------
        StoreError
            If the database cannot be used, or if this user may not change its tables.
        """
        try:
            with self.engine.execution_options(begin="IMMEDIATE").begin() as connection:
                if not self.is_sqlite:
                    # Replicas that start together must not migrate at the same time.
                    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
                before = _schema_of(connection)
                # This version may be older than the one that has migrated, and not know its revisions.
                if not before.is_newer:
                    config = _config()
                    config.attributes["connection"] = connection
                    command.upgrade(config, "head")
                return before
        except DBAPIError as error:
            raise StoreError(f"the database cannot be migrated: {_reason(error)}") from error

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (OperationalError, InterfaceError, PoolTimeoutError) as error:
            if self._on_failure is not None:
                self._on_failure()
            raise StoreError(f"the database cannot be used: {_reason(error)}") from error


def migrate(database: Database) -> None:
    """Bring the schema up to date where a process starts, and log what was done.

    Raises
    ------
    StoreError
        If the database cannot be used.
    """
    before = database.upgrade()
    if before.is_newer:
        _log.warning("the schema is of a newer version", schema=before.current, known=before.newest)
    elif before.current != before.newest:
        _log.info("the schema was migrated", before=before.current, schema=before.newest)


@cache
def _scripts() -> ScriptDirectory:
    """The migrations that this version knows; read once, because every readiness probe uses them."""
    return ScriptDirectory.from_config(_config())


@cache
def _known() -> frozenset[str]:
    return frozenset(script.revision for script in _scripts().walk_revisions())


def _schema_of(connection: Connection) -> Schema:
    current = MigrationContext.configure(connection).get_current_revision()
    return Schema(current, _scripts().get_current_head())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


def _sqlite_engine(url: Any) -> Engine:
    engine = create_engine(url, connect_args={"timeout": _BUSY_SECONDS})
    if url.database and url.database != ":memory:" and not url.database.startswith("file:"):
        path = Path(url.database)
        # Before the first connection, because closing the file would drop the locks of SQLite. SQLite would
        # create it readable for all users; its journals get the rights of the database file. Where this
        # fails, the driver reports the reason.
        with suppress(OSError):
            private_folder(path.parent)
            private_file(path)
    event.listen(engine, "connect", _on_sqlite_connect)
    event.listen(engine, "begin", _on_sqlite_begin)
    return engine


def _on_sqlite_connect(connection: Any, _: object) -> None:
    # The driver begins transactions late and not before every statement; `_on_sqlite_begin` does it instead.
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
    until = time.monotonic() + _BUSY_SECONDS
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


def _on_sqlite_begin(connection: Connection) -> None:
    connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get('begin', 'DEFERRED')}")


def _server_engine(url: Any) -> Engine:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise no_postgres_driver() from None
    # Each connection is checked before use: a restarted server has dropped it.
    return create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": _CONNECT_SECONDS})


def no_postgres_driver() -> MissingExtra:
    """The error of an installation without a driver of PostgreSQL."""
    return MissingExtra("PostgreSQL needs its driver", hint="pip install 'straggler-rca[postgres]'")


def _reason(error: Exception) -> str:
    """First line of the driver's message; the message of SQLAlchemy would show statements and values."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
