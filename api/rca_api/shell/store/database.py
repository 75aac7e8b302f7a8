"""The SQL database: a SQLite file, or PostgreSQL by its URL."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import NamedTuple, cast

import structlog
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, make_url, text
from sqlalchemy.exc import DatabaseError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session, sessionmaker

from rca.errors import MissingExtra, SourceError
from rca_api.shell.store import time_limits
from rca_api.shell.store.exclusion import Exclusion, exclude_others
from rca_api.shell.store.sqlite_engine import sqlite_engine

#: Transactions of a process at once: the connections of its pool.
_AT_ONCE = 15
#: Default of the setting `database_timeout_seconds`.
MAX_SECONDS = 10.0
#: Longest wait of a migration for a lock. While it waits, every later statement on the table waits as well.
_MIGRATION_LOCK_SECONDS = 10
#: Rows of each index that `Database.analyze` looks at.
_ANALYSED_ROWS = 400
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
    longest_seconds : float
        Longest time of a transaction, waits included. A transaction of a request also ends at the deadline
        of the request (`rca_api.shell.store.time_limits`).

    Notes
    -----
    While a server hangs, each transaction would wait for its whole time, and later ones for a connection. So
    after the first that got no answer, one at a time tries, and the others are refused at once.
    """

    def __init__(
        self,
        url: str,
        on_failure: Callable[[], None] | None = None,
        longest_seconds: float = MAX_SECONDS,
    ) -> None:
        self._on_failure = on_failure
        self._longest = longest_seconds
        self._slots = BoundedSemaphore(_AT_ONCE)
        self._hangs = False
        self._trying = Lock()
        self._unanswered: tuple[type[Exception], ...] = ()
        self.url = make_url(url)
        if self.url.drivername in ("postgresql", "postgres"):
            self.url = self.url.set(drivername="postgresql+psycopg")
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        if self.is_sqlite:
            self.engine = sqlite_engine(self.url)
        else:
            try:
                from rca_api.shell.store.postgresql_engine import UNANSWERED, postgresql_engine

                self.engine = postgresql_engine(self.url, _AT_ONCE, longest_seconds)
            except ImportError:
                raise no_postgres_driver() from None
            self._unanswered = UNANSWERED
        self._writers = sessionmaker(self.engine.execution_options(begin="IMMEDIATE"), expire_on_commit=False)
        self._readers = sessionmaker(self.engine, expire_on_commit=False)

    @contextmanager
    def session(self, longest_seconds: float | None = None) -> Iterator[Session]:
        """Open a transaction that writes: committed when the context ends, rolled back on any error.

        In SQLite it takes the write lock at once, so rows that it reads do not change before it writes. In
        PostgreSQL that needs row locks (``with_for_update``) and unique constraints.

        Parameters
        ----------
        longest_seconds : float, optional
            Instead of the limit of this database.

        Raises
        ------
        StoreError
            If the database is out of reach, full, or takes too long.
        """
        with self._used(longest_seconds), self._writers.begin() as session:
            yield session

    @contextmanager
    def reading(self, longest_seconds: float | None = None) -> Iterator[Session]:
        """Open a transaction that only reads; in SQLite readers and writers do not wait for each other.

        Parameters and errors are those of `session`.
        """
        with self._used(longest_seconds), self._readers.begin() as session:
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
            with self._used(), self.engine.connect() as connection:
                return _schema_of(connection)
        except DBAPIError as error:
            raise StoreError(f"the database cannot be used: {_reason(error)}") from error

    def upgrade(self, revision: str = "head") -> Schema:
        """Bring the schema to a revision, by default the newest, unless it is there already or newer.

        Returns
        -------
        Schema
            The schema before.

        Raises
        ------
        StoreError
            If the database cannot be used, or if this user may not change its tables.
        """
        # With a time limit: the migration itself has none, and would wait for a server that hangs.
        schema = self.schema()
        if schema.is_newer or schema.current == schema.newest:
            return schema
        try:
            with self.engine.execution_options(begin="IMMEDIATE").begin() as connection:
                # Replicas that start together must not migrate at the same time.
                exclude_others(connection, Exclusion.migration)
                if not self.is_sqlite:
                    connection.execute(text(f"SET LOCAL lock_timeout = '{_MIGRATION_LOCK_SECONDS}s'"))
                before = _schema_of(connection)
                # This version may be older than the one that has migrated, and not know its revisions.
                if not before.is_newer:
                    config = _config()
                    config.attributes["connection"] = connection
                    command.upgrade(config, revision)
        except DBAPIError as error:
            raise StoreError(f"the database cannot be migrated: {_reason(error)}") from error
        try:
            # New indexes have not been measured.
            self.analyze()
        except StoreError as error:
            # The schema is committed; the service measures them again every hour.
            _log.warning("the indexes are not measured", reason=error.message)
        return before

    def analyze(self) -> None:
        """Measure how selective the indexes are, so that queries choose the right one.

        PostgreSQL does it by itself. SQLite needs a few milliseconds.

        Raises
        ------
        StoreError
        """
        if not self.is_sqlite:
            return
        with self.session(time_limits.TIDYING_SECONDS) as session:
            session.execute(text(f"PRAGMA analysis_limit={_ANALYSED_ROWS}"))
            session.execute(text("ANALYZE"))
        # Connections read the result when they are opened.
        self.engine.dispose()

    def free_bytes(self) -> int | None:
        """Free space in a SQLite file, which new rows use; None for a server.

        Raises
        ------
        StoreError
        """
        if not self.is_sqlite:
            return None
        with self.reading() as session:
            pages, size = (
                int(session.scalar(text(f"PRAGMA {name}")) or 0) for name in ("freelist_count", "page_size")
            )
        return pages * size

    def vacuum(self) -> None:
        """Return free space of a SQLite file to the disk; writers wait meanwhile. A server does it itself.

        Raises
        ------
        StoreError
        """
        if not self.is_sqlite:
            return
        try:
            with self.engine.connect() as connection:
                driver = cast("sqlite3.Connection", connection.connection.driver_connection)
                # The time limit of an earlier transaction.
                driver.set_progress_handler(None, 0)
                driver.execute("VACUUM")
        except (DBAPIError, sqlite3.Error) as error:
            raise StoreError(f"the file cannot be shrunk: {_reason(error)}") from error

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    @contextmanager
    def _used(self, longest_seconds: float | None = None) -> Iterator[None]:
        """Limit the time of a transaction, and translate the errors of a database that cannot be used."""
        try:
            with time_limits.transaction(longest_seconds or self._longest), self._slot(), self._tried():
                yield
        except (DBAPIError, PoolTimeoutError, _Refused) as error:
            if not _is_unusable(error):
                raise
            if self._on_failure is not None:
                self._on_failure()
            raise StoreError(f"the database cannot be used: {_reason(error)}") from error

    @contextmanager
    def _slot(self) -> Iterator[None]:
        """Wait for a connection to be free."""
        if not self._slots.acquire(timeout=time_limits.left()):
            raise _Refused(f"all {_AT_ONCE} connections are in use")
        try:
            yield
        finally:
            self._slots.release()

    @contextmanager
    def _tried(self) -> Iterator[None]:
        """Refuse a transaction while the server hangs and another transaction tries already."""
        tries = self._hangs
        if tries and not self._trying.acquire(blocking=False):
            raise _Refused("the server gives no answer")
        try:
            yield
        except DBAPIError as error:
            self._hangs = isinstance(error.orig, self._unanswered)
            raise
        else:
            self._hangs = False
        finally:
            if tries:
                self._trying.release()


class _Refused(Exception):
    """A transaction was not begun."""


def _is_unusable(error: Exception) -> bool:
    """Whether the database is away, full, busy or damaged; other errors are mistakes of a statement."""
    if isinstance(error, OperationalError | InterfaceError | PoolTimeoutError | _Refused):
        return True
    # A file that is damaged, or no database; and a connection that the server has ended.
    return type(error) is DatabaseError or getattr(error, "connection_invalidated", False)


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
    newest = _scripts().get_current_head()
    if current is not None and current not in _known() and current < (newest or ""):
        raise StoreError(
            f"schema {current} is of no release",
            hint=f"upgrade it to {newest} with a commit of that time, or begin with a new database",
        )
    return Schema(current, newest)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


def no_postgres_driver() -> MissingExtra:
    """The error of an installation without a driver of PostgreSQL."""
    return MissingExtra("PostgreSQL needs its driver", hint="pip install 'straggler-rca[postgres]'")


def _reason(error: Exception) -> str:
    """First line of the driver's message; the message of SQLAlchemy would show statements and values."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    reason = lines[0] if lines else type(error).__name__
    # What SQLite says when the time of a transaction is up.
    return "it took too long" if reason == "interrupted" else reason
