"""`rca db`: the schema of the service's database."""

from __future__ import annotations

import typer

from rca_api.commands.parts import Url, database_of

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show and upgrade the schema of the service's database.",
    epilog="\b\nExamples:\n"
    "  rca db status\n"
    "  RCA_DATABASE_URL=postgresql://rca@db/rca rca db upgrade     before a rollout",
)


@app.command()
def upgrade(database_url: Url = None) -> None:
    """Bring the schema to the newest revision.

    Migrations only add, so the version that is running goes on working meanwhile.
    """
    database = database_of(database_url)
    before, _ = database.revisions()
    database.upgrade()
    after, _ = database.revisions()
    typer.echo(f"schema {after}" + (" (nothing to do)" if before == after else f", was {before or 'empty'}"))


@app.command()
def status(database_url: Url = None) -> None:
    """Say which revision the database has; exit code 1 if this version needs a newer one."""
    database = database_of(database_url)
    current, wanted = database.revisions()
    typer.echo(
        f"{database.url.render_as_string(hide_password=True)}: schema {current or 'none'}, newest {wanted}"
    )
    if current != wanted:
        raise typer.Exit(1)
