"""The SQLite file of an MLflow store: made complete or not at all.

MLflow makes its tables by some sixty migrations, and commits each of them. A process that is killed meanwhile
leaves a file that no later process can open, and a second process that opens it meanwhile fails. So the file
is made under another name, by one process at a time, and renamed when it is complete.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path

from rca.errors import SourceError

#: Begins the URI of a store in one file.
SQLITE = "sqlite:///"
#: Longest wait for the transaction of another process.
_BUSY_SECONDS = 20.0
#: Files that SQLite keeps beside a database, by the ends of their names.
_BESIDE = ("-journal", "-wal", "-shm")
#: Tables with rows in a store that nothing was logged to. It also has an experiment named `Default`.
_NEVER_EMPTY = ("alembic_version", "workspaces")
#: Files that were complete when this process looked.
_complete: set[Path] = set()


def store_file(uri: str) -> Path | None:
    """The file of a store; None if it is a server or another database."""
    name = uri.removeprefix(SQLITE).partition("?")[0]
    if not uri.startswith(SQLITE) or not name or name.startswith((":memory:", "file:")):
        return None
    return Path(name)


def complete_file(path: Path) -> None:
    """Make the file with all tables, unless it has them; a file without data that has them in part is remade.

    Raises
    ------
    SourceError
        If the file cannot be read or written, or if it holds data and has another schema.
    """
    path = path.absolute()
    if path in _complete and path.exists():
        return
    try:
        if not _is_complete(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with _only_process(path):
                # Another process may have made it meanwhile.
                if not _is_complete(path):
                    _make(path)
    except sqlite3.DatabaseError as error:
        raise SourceError(f"the file of the MLflow store cannot be read: {error}") from error
    except OSError as error:
        raise SourceError(f"the file of the MLflow store cannot be written: {error.strerror}") from error
    _complete.add(path)


def _is_complete(path: Path) -> bool:
    """Whether all migrations have run; the last one writes the newest revision."""
    if not path.exists():
        return False
    with _opened(path) as database:
        if "alembic_version" not in _tables(database):
            return False
        revisions = database.execute("SELECT version_num FROM alembic_version").fetchall()
    newest = import_module("mlflow.store.db.utils")._get_latest_schema_revision()
    return bool(revisions == [(newest,)])


def _make(path: Path) -> None:
    if path.exists() and _holds_data(path):
        raise SourceError(
            "the MLflow store has an unfinished schema, or the schema of another version of MLflow",
            hint="stop all that use the store, copy its file, then run `mlflow db upgrade` with its URL",
        )
    fresh = path.with_name(f".{path.name}.new")
    # Of a process that was killed here.
    _delete(fresh, *_files_beside(fresh))
    _make_tables(fresh, path.parent / "mlartifacts")
    # SQLite would apply a journal of the old file to the new one.
    _delete(*_files_beside(path))
    fresh.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_tables(path: Path, artifacts: Path) -> None:
    stores = import_module("mlflow.store.tracking.sqlalchemy_store")
    store = stores.SqlAlchemyStore(f"{SQLITE}{path}", artifacts.as_uri())
    # Closes its connections, before the file is renamed.
    store.engine.dispose()


def _holds_data(path: Path) -> bool:
    with _opened(path) as database:
        for table in _tables(database) - set(_NEVER_EMPTY):
            condition = "WHERE name <> 'Default'" if table == "experiments" else ""
            statement = f'SELECT 1 FROM "{table}" {condition} LIMIT 1'  # noqa: S608  (names of its own tables)
            if database.execute(statement).fetchone() is not None:
                return True
    return False


def _tables(database: sqlite3.Connection) -> set[str]:
    found = database.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    )
    return {name for (name,) in found}


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, timeout=_BUSY_SECONDS)) as database:
        yield database


@contextmanager
def _only_process(path: Path) -> Iterator[None]:
    """Wait until no other process makes the file; the end of a process ends its turn."""
    with path.with_name(f".{path.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _files_beside(path: Path) -> tuple[Path, ...]:
    return tuple(path.with_name(path.name + end) for end in _BESIDE)


def _delete(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
