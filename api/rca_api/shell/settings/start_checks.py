"""Checks of what settings name, before a command starts: folders, files, drivers.

A server that is away is not an error here: it may come back. All errors name the variable and what is
expected, and never hold the value.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rca.classify.operator_inputs import read_priors
from rca.errors import InvalidInput, MissingExtra, RcaError, SourceError
from rca.files import read_file
from rca.recovery.site import Site
from rca.runbook.procedures import Library
from rca_api.hooks.sources import Sources
from rca_api.shell.settings.environment import variable_of
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store.database import Database, StoreError, no_postgres_driver
from rca_api.shell.store.private import private_folder
from rca_api.shell.store.redis_pool import is_redis, redis_pool
from rca_api.shell.store.window_store import WindowStore

#: Settings that each command uses.
SERVE = (
    "data_dir",
    "database_url",
    "window_store_url",
    "rate_limit_storage_url",
    "bundle",
    "priors",
    "site",
    "runbooks",
    "sources",
    "collections_dir",
)
WORKER = ("data_dir", "database_url", "window_store_url", "collections_dir", "cache_dir")
DATABASE = ("database_url",)
FEEDBACK = ("database_url", "window_store_url")
_WRITABLE = "needs a folder that can be written"


def check(settings: Settings, names: tuple[str, ...]) -> None:
    """Check the settings that a command uses.

    Raises
    ------
    InvalidInput
        Names each variable that cannot be used.
    """
    wrong: dict[str, str] = {}
    for name in names:
        variable, value = variable_of(_origin(settings, name)), getattr(settings, name)
        if variable in wrong or value in (None, ""):
            continue
        try:
            _CHECKS[name](value)
        except MissingExtra as error:
            wrong[variable] = f"{error.message}: {error.hint}"
        except RcaError as error:
            wrong[variable] = error.message
    if wrong:
        # Not chained: errors of libraries hold parts of the values.
        raise InvalidInput("; ".join(f"{name}: {reason}" for name, reason in wrong.items())) from None


def _origin(settings: Settings, name: str) -> str:
    """The setting that a value comes from: places that are not given are in the data folder."""
    return name if name in settings.model_fields_set else "data_dir"


def _database(url: str) -> None:
    database = Database(url)
    try:
        if database.is_sqlite:
            database.schema()
        else:
            _check_parameters("postgresql://" + url.partition("://")[2])
    except StoreError as error:
        raise InvalidInput(f"needs a file of SQLite that can be written: {error.message}") from None
    finally:
        database.close()


def _window_store(url: str) -> None:
    if "://" not in url:
        with _expecting(_WRITABLE):
            _check_writable(Path(url).expanduser())
        return
    try:
        WindowStore(url)
    except ImportError:
        raise InvalidInput("needs the driver of this protocol, such as s3fs for s3://") from None
    except Exception as error:
        # Each driver raises its own errors.
        raise InvalidInput(f"cannot be used: {type(error).__name__}") from None


def _rates(url: str) -> None:
    if is_redis(url):
        redis_pool(url, 1.0)


def _bundle(folder: Path) -> None:
    with _expecting("needs the folder of a bundle, with a readable manifest.json"):
        read_file(folder / "manifest.json")


def _readable(read: Callable[[Path], object], what: str) -> Callable[[Path], None]:
    """A check that a file or folder can be read as `what`."""

    def check_path(path: Path) -> None:
        try:
            read(path)
        except RcaError as error:
            # Errors name files of a folder, and never the place.
            reason = error.message.replace(str(path), "").lstrip("/:, ")
            raise InvalidInput(f"needs {what}: {reason}") from None

    return check_path


def _collections(folder: Path) -> None:
    with _expecting("needs a folder that can be read"):
        list(folder.iterdir())


def _check_parameters(url: str) -> None:
    """Refuse parameters of PostgreSQL that the driver would report at its first connection."""
    try:
        import psycopg
    except ImportError:
        raise no_postgres_driver() from None
    try:
        read = psycopg.conninfo.conninfo_to_dict(url)
        # Several hosts have several ports.
        known = str(read.get("port", 1)).replace(",", "").isdecimal()
    except psycopg.ProgrammingError:
        known = False
    if not known:
        raise InvalidInput("needs a URL such as postgresql://USER@HOST:5432/NAME")


def _check_writable(folder: Path) -> None:
    with _expecting(_WRITABLE):
        private_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass


@contextmanager
def _expecting(what: str) -> Iterator[None]:
    """Turn errors of the system, which hold paths, into what is expected."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise InvalidInput(f"{what}: {reason}") from None
    except SourceError:
        raise InvalidInput(f"{what}, not a pipe or a device") from None


_CHECKS: dict[str, Callable[[Any], None]] = {
    "data_dir": _check_writable,
    "database_url": _database,
    "window_store_url": _window_store,
    "rate_limit_storage_url": _rates,
    "bundle": _bundle,
    "priors": _readable(read_priors, "a JSON file of positive numbers by slow cause"),
    "site": _readable(Site.read, "a readable YAML file with costs and limits"),
    "runbooks": _readable(Library.read, "a folder of runbooks"),
    "sources": _readable(Sources.read, "a readable YAML file with Prometheus servers"),
    "collections_dir": _collections,
    "cache_dir": _check_writable,
}
