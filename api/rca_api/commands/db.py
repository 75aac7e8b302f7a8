"""`rca db`: the schema of the service's database."""

from __future__ import annotations

import typer

from rca_api.commands.database import Url, any_database, require_service

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
    """Upgrade the schema to the newest revision.

    Migrations only add, so a running service of the version before keeps working.
    """
    with any_database(database_url) as database:
        before = database.upgrade()
    if before.is_newer:
        typer.echo(
            f"schema {before.current} is newer than {before.newest}, the newest that this version knows "
            "(nothing to do: this version works with it)"
        )
        return
    done = "nothing to do" if before.current == before.newest else f"was {before.current or 'empty'}"
    typer.echo(f"schema {before.newest} ({done})")


@app.command()
def status(database_url: Url = None) -> None:
    """Show the revision of the schema; exit code 1 if this version needs a newer one."""
    with any_database(database_url) as database:
        from rca_api.logs import hidden

        schema = database.schema()
        # A password may also be a parameter of the URL.
        place = hidden(database.url.render_as_string(hide_password=True))
    typer.echo(f"{place}: schema {schema.current or 'none'}, newest {schema.newest}")
    if schema.current != schema.newest and not schema.is_newer:
        raise typer.Exit(1)


@app.command()
def prune() -> None:
    """Delete windows over the limits RCA_WINDOW_DAYS and RCA_MAX_WINDOW_STORE_BYTES now."""
    require_service()
    from rca_api import environment, logs, start_checks
    from rca_api.state import State

    settings = environment.read()
    logs.configure(settings.log_level)
    start_checks.check(settings, start_checks.SERVE)
    state = State.build(settings)
    pruned = state.retention.prune()
    state.database.close()
    typer.echo(
        f"deleted {pruned.windows} windows ({pruned.n_bytes:,} bytes), {pruned.orphans} files without a row"
    )
