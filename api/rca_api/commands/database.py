"""What the service's commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from rca.errors import MissingExtra

if TYPE_CHECKING:
    from rca_api.store.database import Database

Url = Annotated[
    str | None,
    typer.Option("--database-url", envvar="RCA_DATABASE_URL", help="[default: rca.db in RCA_DATA_DIR]"),
]


def require_service() -> None:
    """Say what to install where the service's libraries are not there.

    Raises
    ------
    MissingExtra
    """
    try:
        import rca_api.settings
        import rca_api.store.database  # noqa: F401
    except ImportError as error:
        raise MissingExtra("the service is not installed", hint="pip install 'straggler-rca[api]'") from error


@contextmanager
def any_database(url: str | None) -> Iterator[Database]:
    """Open the database as it is, whatever its schema.

    Raises
    ------
    MissingExtra
        If the service's libraries are not installed.
    """
    require_service()
    from rca_api import environment
    from rca_api.store.database import Database

    settings = environment.read() if url is None else environment.read(database_url=url)
    database = Database(settings.database_url)
    try:
        yield database
    finally:
        database.close()


@contextmanager
def ready_database(url: str | None) -> Iterator[Database]:
    """Open the database with the schema this version needs; a new SQLite file is made on the way.

    Raises
    ------
    StoreError
        If it cannot be used, or if a server's schema is old: `rca db upgrade` is a decision there.
    """
    with any_database(url) as database:
        if database.is_sqlite:
            database.upgrade()
        else:
            database.check()
        yield database
