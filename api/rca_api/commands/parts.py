"""What the service's commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rca.errors import MissingExtra

if TYPE_CHECKING:
    from rca_api.store.database import Database

Url = Annotated[
    str | None,
    typer.Option("--database-url", envvar="RCA_DATABASE_URL", help="[default: rca.db in RCA_DATA_DIR]"),
]


def database_of(url: str | None) -> Database:
    """The database as it is, whatever its schema.

    Raises
    ------
    MissingExtra
        If the service's libraries are not installed.
    """
    try:
        from rca_api.settings import Settings
        from rca_api.store.database import Database
    except ImportError as error:
        raise MissingExtra("the service is not installed", hint="pip install 'straggler-rca[api]'") from error
    return Database(url or Settings().database_url)


def open_database(url: str | None) -> Database:
    """The database with the schema this version needs; a new SQLite file is made on the way.

    Raises
    ------
    StoreError
        If it cannot be used, or if a server's schema is old: `rca db upgrade` is a decision there.
    """
    database = database_of(url)
    if database.is_sqlite:
        database.upgrade()
    else:
        database.check()
    return database
