"""The SQL database: SQLite beside the service, or PostgreSQL by its URL."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session, sessionmaker

from rca.errors import SourceError
from rca_api.store.private import private_file, private_folder

#: Seconds a writer waits for another one's transaction in SQLite before it gives up.
_BUSY_SECONDS = 10.0
#: Seconds between two requests of what SQLite refuses at once.
_BUSY_PAUSE_SECONDS = 0.01
#: Seconds to wait for a PostgreSQL server that does not answer.
_CONNECT_SECONDS = 5
_MIGRATION_LOCK = 7_221_001
_MIGRATIONS = Path(__file__).parent / "migrations"


class StoreError(SourceError):
    """The database cannot be used at the moment; what was asked for was not done."""

    code = "store-unavailable"


class Schema(NamedTuple):
    """Revision of a database's schema (None for an empty one), and the newest that this version knows."""

    current: str | None
    newest: str | None

    @property
    def is_newer(self) -> bool:
        """Whether a newer version has migrated already: migrations only add, so this one works with it."""
        return self.current is not None and self.current not in _known()


class Database:
    """Sessions on one database; safe to use from many threads, never across a fork.

    Parameters
    ----------
    url : str
        SQLAlchemy URL; ``postgresql://`` means psycopg 3.
    on_failure : callable, optional
        Told of every transaction that fails because the database cannot be used.
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
        """Open a transaction that writes: durable when the context ends, rolled back on any error.

        In SQLite it takes the write lock at once, so what it reads cannot change before it writes;
        PostgreSQL leaves that to row locks (``with_for_update``) and unique constraints.

        Raises
        ------
        StoreError
            If the database cannot be reached, is full or stays locked.
        """
        with self._translated(), self._writers.begin() as session:
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a transaction that only reads; in SQLite it neither waits for a writer nor holds one up.

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
        """Say which schema the database has."""
        try:
            with self.engine.connect() as connection:
                return _schema_of(connection)
        except DBAPIError as error:
            raise StoreError(f"the database cannot be used: {_reason(error)}") from error

    def upgrade(self) -> Schema:
        """Bring the schema to the newest revision; does nothing if it is there already, or newer.

        Returns
        -------
        Schema
            As it was before.

        Raises
        ------
        StoreError
            If the database cannot be used, or lets this user not change its tables.
        """
        try:
            with self.engine.execution_options(begin="IMMEDIATE").begin() as connection:
                if not self.is_sqlite:
                    # Two replicas that start together must not migrate at once.
                    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
                before = _schema_of(connection)
                # An older version that is started again beside a newer one does not know its revisions.
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


@cache
def _scripts() -> ScriptDirectory:
    """The migrations this version knows; read once, because every probe asks."""
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
        private_folder(path.parent)
        # Before anything is connected: see there what closing a database's file does to its locks.
        _make_private(path)
    event.listen(engine, "connect", _on_sqlite_connect)
    event.listen(engine, "begin", _on_sqlite_begin)
    return engine


def _make_private(path: Path) -> None:
    """SQLite would make it readable for all; the journals beside it get the rights of the database."""
    # What keeps us from it, the driver says in its own words.
    with suppress(OSError):
        private_file(path)


def _on_sqlite_connect(connection: Any, _: object) -> None:
    # The driver's own BEGIN comes late and not before every statement: `_on_sqlite_begin` sends it instead.
    connection.isolation_level = None
    _keep_a_journal(connection)
    for pragma in (
        # An acknowledged diagnosis survives a power cut, not only a crash.
        "synchronous=FULL",
        "foreign_keys=ON",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _keep_a_journal(connection: Any) -> None:
    """Write ahead, so that readers go on while somebody writes.

    SQLite does not wait for another connection that changes the mode of a new file at that moment,
    whatever its timeout says: who is refused asks again.
    """
    until = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            # The low byte: which kind of busy is in the others.
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() >= until:
                raise
        time.sleep(_BUSY_PAUSE_SECONDS)


def _on_sqlite_begin(connection: Connection) -> None:
    connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get('begin', 'DEFERRED')}")


def _server_engine(url: Any) -> Engine:
    # Connections a restarted server has dropped are noticed before use, so nobody has to restart us.
    return create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": _CONNECT_SECONDS})


def _reason(error: Exception) -> str:
    """First line of what the driver says; SQLAlchemy's own text would show statements and values."""
    told = str(getattr(error, "orig", None) or error).strip().splitlines()
    return told[0] if told else type(error).__name__
