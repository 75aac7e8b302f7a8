"""`rca db`: the schema of the service's database, and the age of its rows."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from rca_api.commands.database import (
    Url,
    any_database,
    ready_database,
    require_service,
    unchanged_database,
)
from rca_api.commands.keys import duration

if TYPE_CHECKING:
    from rca_api.shell.settings.settings import Settings
    from rca_api.shell.store.database import Database
    from rca_api.stored_windows.retention import Retention

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show, check and upgrade the schema of the service's database, and delete what is old.",
    epilog="\b\nExamples:\n"
    "  rca db status\n"
    "  RCA_DATABASE_URL=postgresql://rca@db/rca rca db upgrade     before a rollout\n"
    "  rca db prune --older-than 90d --dry-run",
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
        from rca_api.shell.observability.logs import hidden

        schema = database.schema()
        # A password may also be a parameter of the URL.
        place = hidden(database.url.render_as_string(hide_password=True))
    typer.echo(f"{place}: schema {schema.current or 'none'}, newest {schema.newest}")
    if schema.current != schema.newest and not schema.is_newer:
        raise typer.Exit(1)


@app.command()
def check(database_url: Url = None) -> None:
    """Compare the tables with those of their revision; exit code 1 if they differ.

    They differ if a migration was edited after it ran, or if somebody changed a table by hand.
    """
    with any_database(database_url) as database:
        from rca_api.shell.store.schema_check import SchemaCheck

        found = SchemaCheck(database).read()
    if not found.is_comparable:
        typer.echo(
            f"schema {found.schema.current or 'none'}, newest {found.schema.newest}: cannot be compared"
        )
        typer.echo("Run `rca db upgrade` first." if not found.schema.is_newer else "Use the newer version.")
        raise typer.Exit(1)
    if not found.differences:
        typer.echo(f"schema {found.schema.current}: the tables are as expected")
        return
    typer.echo(f"schema {found.schema.current}: the tables differ")
    for each in found.differences:
        typer.echo(f"- {each.text}")
    statements = [each.statement for each in found.differences if each.statement is not None]
    if statements:
        typer.echo("\nMake a backup, then add what is missing:\n")
        typer.echo(";\n".join(statements) + ";")
    if len(statements) < len(found.differences):
        typer.echo("\nWhat no statement above mends: restore a backup, or ask for help with this list.")
    raise typer.Exit(1)


@app.command()
def prune(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count only; delete nothing.")] = False,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="Age such as 12h, 90d or 52w, in place of all settings. Feedback keeps its own setting.",
        ),
    ] = None,
    vacuum: Annotated[
        bool,
        typer.Option("--vacuum", help="Return free space of a SQLite file to the disk; writers wait."),
    ] = False,
) -> None:
    """Delete now what is older than the settings allow, as the running service does every hour.

    These are RCA_DIAGNOSIS_DAYS, RCA_INCIDENT_DAYS, RCA_FEEDBACK_DAYS, RCA_TRAINING_RUN_DAYS,
    RCA_WEBHOOK_KEEP_DAYS, RCA_WEBHOOK_DEAD_DAYS, RCA_WINDOW_DAYS and RCA_MAX_WINDOW_STORE_BYTES.
    """
    require_service()
    from rca_api.shell.observability import logs
    from rca_api.shell.settings import environment, start_checks
    from rca_api.shell.store.base import now
    from rca_api.shell.store.old_rows import Ages, OldRows

    settings, age, at = environment.read(), None if older_than is None else duration(older_than), now()
    logs.configure(settings.log_level)
    if not dry_run:
        # They try to write.
        start_checks.check(settings, start_checks.SERVE)
    opened = unchanged_database(settings) if dry_run else ready_database(settings.database_url)
    ages = Ages.of(settings) if age is None else Ages.of(settings).all(age)
    with opened as database:
        rows = OldRows(database, ages)
        windows = _retention(settings, database, age)
        kept = {kind.name: kind.age for kind in rows.kinds(at)}
        counted = rows.count(at) if dry_run else rows.delete(at)
        pruned = windows.count(at) if dry_run else windows.prune(at)
        if vacuum and not dry_run:
            database.vacuum()
        free = database.free_bytes()

    def shown(kept_for: timedelta | None) -> str:
        return older_than if older_than is not None and kept_for == age else _shown(kept_for)

    typer.echo(f"{'kind':<20} {'older than':>12} {'to delete' if dry_run else 'deleted':>10}")
    for name, number in counted.items():
        typer.echo(f"{name:<20} {shown(kept[name]):>12} {number:>10,}")
    typer.echo(f"{'windows':<20} {shown(windows.age):>12} {pruned.windows:>10,} ({pruned.n_bytes:,} bytes)")
    if not dry_run:
        typer.echo(f"{'files without a row':<20} {'1 h':>12} {pruned.orphans:>10,}")
    if missing := [name for name in kept if name not in counted]:
        typer.echo(f"not deleted, because the database could not be used: {', '.join(missing)}")
    typer.echo(_space(free))
    if missing:
        raise typer.Exit(1)


def _retention(settings: Settings, database: Database, age: timedelta | None) -> Retention:
    from rca_api.feedback.repository import has_feedback
    from rca_api.shell.store.window_store import WindowStore
    from rca_api.stored_windows.retention import Retention

    if age is not None:
        settings = settings.model_copy(update={"window_days": age / timedelta(days=1)})
    return Retention(database, WindowStore(settings.window_store_url), settings, (has_feedback(),))


def _shown(age: timedelta | None) -> str:
    return "never" if age is None else f"{age / timedelta(days=1):g} days"


def _space(free: int | None) -> str:
    if free is None:
        return (
            "PostgreSQL uses the space for new rows. VACUUM FULL returns it to the disk and locks the tables."
        )
    if not free:
        return "The file has no free space."
    return (
        f"{free:,} bytes of the file are free. SQLite uses them for new rows; "
        "`rca db prune --vacuum` returns them to the disk."
    )
