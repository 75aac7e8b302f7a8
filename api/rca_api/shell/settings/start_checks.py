"""Checks of what settings name, before a command starts: folders, files, drivers.

A server that is away is not an error here: it may come back. All errors name the variable and what is
expected, and never hold the value.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

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
    "oidc_client_id",
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
_WRITABLE, _READABLE = "needs a folder that can be written", "needs a folder that can be read"


def check(settings: Settings, names: tuple[str, ...]) -> None:
    """Check the settings that a command uses.

    Raises
    ------
    InvalidInput
        Names each variable that cannot be used.
    """
    wrong: dict[str, str] = {}
    for name in names:
        variable = variable_of(_origin(settings, name))
        if variable in wrong:
            continue
        try:
            _CHECKS[name](settings)
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


def _data_dir(settings: Settings) -> None:
    _check_writable(settings.data_dir)


def _database(settings: Settings) -> None:
    database = Database(settings.database_url)
    try:
        if database.is_sqlite:
            database.schema()
        else:
            _check_parameters("postgresql://" + settings.database_url.partition("://")[2])
    except StoreError as error:
        raise InvalidInput(f"needs a file of SQLite that can be written: {error.message}") from None
    finally:
        database.close()


def _window_store(settings: Settings) -> None:
    if "://" not in settings.window_store_url:
        with _expecting(_WRITABLE):
            _check_writable(Path(settings.window_store_url).expanduser())
        return
    try:
        WindowStore(settings.window_store_url)
    except ImportError:
        raise InvalidInput("needs the driver of this protocol, such as s3fs for s3://") from None
    except Exception as error:
        # Each driver raises its own errors.
        raise InvalidInput(f"cannot be used: {type(error).__name__}") from None


def _client(settings: Settings) -> None:
    if settings.oidc_client_id and not settings.oidc_issuer:
        raise InvalidInput("needs RCA_OIDC_ISSUER, where this client is registered")


def _rates(settings: Settings) -> None:
    if is_redis(settings.rate_limit_storage_url):
        redis_pool(settings.rate_limit_storage_url, 1.0)


def _bundle(settings: Settings) -> None:
    if settings.bundle is not None:
        with _expecting("needs the folder of a bundle, with a readable manifest.json"):
            read_file(settings.bundle / "manifest.json")


def _priors(settings: Settings) -> None:
    if settings.priors is not None:
        try:
            read_priors(settings.priors)
        except RcaError as error:
            reason = error.message.removeprefix(f"{settings.priors}: ")
            raise InvalidInput(f"needs a JSON file of positive numbers by slow cause: {reason}") from None


def _site(settings: Settings) -> None:
    if settings.site is not None:
        try:
            Site.read(settings.site)
        except InvalidInput as error:
            raise InvalidInput(f"needs a YAML file with costs and limits: {error.message}") from None
        except RcaError:
            raise InvalidInput("needs a readable YAML file with costs and limits") from None


def _runbooks(settings: Settings) -> None:
    if settings.runbooks is not None:
        try:
            Library.read(settings.runbooks)
        except RcaError as error:
            # Names files of the folder, not the folder.
            reason = error.message.removeprefix(f"{settings.runbooks}").lstrip("/: ")
            raise InvalidInput(f"needs a folder of runbooks: {reason}") from None


def _sources(settings: Settings) -> None:
    if settings.sources is not None:
        try:
            Sources.read(settings.sources)
        except InvalidInput as error:
            reason = error.message.removeprefix(f"{settings.sources}").lstrip(":, ")
            raise InvalidInput(f"needs a YAML file with Prometheus servers: {reason}") from None
        except RcaError:
            raise InvalidInput("needs a readable YAML file with Prometheus servers") from None


def _collections(settings: Settings) -> None:
    if settings.collections_dir is not None:
        with _expecting(_READABLE):
            list(settings.collections_dir.iterdir())


def _cache(settings: Settings) -> None:
    _check_writable(settings.cache_dir)


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


_CHECKS: dict[str, Callable[[Settings], None]] = {
    "data_dir": _data_dir,
    "database_url": _database,
    "window_store_url": _window_store,
    "oidc_client_id": _client,
    "rate_limit_storage_url": _rates,
    "bundle": _bundle,
    "priors": _priors,
    "site": _site,
    "runbooks": _runbooks,
    "sources": _sources,
    "collections_dir": _collections,
    "cache_dir": _cache,
}
