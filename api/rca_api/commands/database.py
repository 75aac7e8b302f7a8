"""The database of the service, opened for a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rca.errors import MissingExtra, SourceError

if TYPE_CHECKING:
    from rca_api.shell.settings.settings import Settings
    from rca_api.shell.store.database import Database

Url = Annotated[
    str | None,
    typer.Option("--database-url", envvar="RCA_DATABASE_URL", help="[default: rca.db in RCA_DATA_DIR]"),
]


def require_service() -> None:
    """Raise an error that says what to install if the service is not installed.

    Raises
    ------
    MissingExtra
    """
    try:
        import rca_api.shell.settings.settings
        import rca_api.shell.store.database  # noqa: F401
    except ImportError as error:
        raise MissingExtra("the service is not installed", hint="pip install 'straggler-rca[api]'") from error


@contextmanager
def any_database(url: str | None) -> Iterator[Database]:
    """Open the database with its present schema.

    Raises
    ------
    InvalidInput
        If the settings of the database cannot be used.
    MissingExtra
        If the service's libraries are not installed.
    """
    require_service()
    from rca_api.shell.observability import logs
    from rca_api.shell.settings import environment, start_checks
    from rca_api.shell.store.database import Database

    settings = environment.read() if url is None else environment.read(database_url=url)
    logs.configure(settings.log_level)
    start_checks.check(settings, start_checks.DATABASE)
    seconds = settings.database_timeout_seconds
    with closing(Database(settings.database_url, longest_seconds=seconds)) as database:
        yield database


@contextmanager
def ready_database(url: str | None) -> Iterator[Database]:
    """Open the database with the schema that this version needs; creates or upgrades a SQLite file.

    Raises
    ------
    StoreError
        If it is not available, or if the schema on a database server is old: `rca db upgrade` upgrades it.
    """
    with any_database(url) as database:
        if database.is_sqlite:
            database.upgrade()
        else:
            database.check()
        yield database


@contextmanager
def unchanged_database(settings: Settings) -> Iterator[Database]:
    """Open the database to read it; neither creates a file nor upgrades the schema.

    Raises
    ------
    SourceError
        If the file does not exist, or if the schema is older than this version needs.
    """
    from sqlalchemy import make_url

    from rca_api.shell.store.database import Database

    url = make_url(settings.database_url)
    if url.get_backend_name() == "sqlite" and url.database and not Path(url.database).exists():
        raise SourceError(
            "the database does not exist yet", hint="the service or `rca db upgrade` creates it"
        )
    seconds = settings.database_timeout_seconds
    with closing(Database(settings.database_url, longest_seconds=seconds)) as database:
        database.check()
        yield database
