"""`rca db`: the schema of the service's database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rca.errors import MissingExtra

if TYPE_CHECKING:
    from rca_api.store.database import Database

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show and upgrade the schema of the service's database.",
    epilog="\b\nExamples:\n"
    "  rca db status\n"
    "  RCA_DATABASE_URL=postgresql://rca@db/rca rca db upgrade     before a rollout",
)
Url = Annotated[
    str | None,
    typer.Option("--database-url", envvar="RCA_DATABASE_URL", help="[default: rca.db in RCA_DATA_DIR]"),
]


@app.command()
def upgrade(database_url: Url = None) -> None:
    """Bring the schema to the newest revision.

    Migrations only add, so the version that is running goes on working meanwhile.
    """
    database = _database(database_url)
    before, _ = database.revisions()
    database.upgrade()
    after, _ = database.revisions()
    typer.echo(f"schema {after}" + (" (nothing to do)" if before == after else f", was {before or 'empty'}"))


@app.command()
def status(database_url: Url = None) -> None:
    """Say which revision the database has; exit code 1 if this version needs a newer one."""
    database = _database(database_url)
    current, wanted = database.revisions()
    typer.echo(
        f"{database.url.render_as_string(hide_password=True)}: schema {current or 'none'}, newest {wanted}"
    )
    if current != wanted:
        raise typer.Exit(1)


@app.command()
def prune() -> None:
    """Delete windows over the limits (RCA_WINDOW_DAYS, RCA_MAX_WINDOW_STORE_BYTES), as the service does."""
    _require_service()
    from rca_api.settings import Settings
    from rca_api.state import State

    state = State.build(Settings())
    pruned = state.retention.prune()
    state.database.close()
    typer.echo(
        f"{pruned.windows} windows ({pruned.n_bytes:,} bytes) and {pruned.orphans} files without a row"
    )


def _require_service() -> None:
    try:
        import rca_api.settings
        import rca_api.store.database  # noqa: F401
    except ImportError as error:
        raise MissingExtra("the service is not installed", hint="pip install 'straggler-rca[api]'") from error


def _database(url: str | None) -> Database:
    _require_service()
    from rca_api.settings import Settings
    from rca_api.store.database import Database

    return Database(url or Settings().database_url)
