"""`rca keys`: API keys of the service."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rca.errors import InvalidInput
from rca_api.commands.database import Url, ready_database, require_service

if TYPE_CHECKING:
    from rca_api.shell.security.keys import ApiKeyRow

_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Create, list and revoke API keys.",
    epilog="\b\nExamples:\n"
    "  rca keys create --scope diagnose --scope read --name on-call\n"
    "  export RCA_API_KEY=$(rca keys create --scope diagnose --name bot --expires 90d --quiet)\n"
    "  rca keys list\n"
    "  rca keys revoke 0f3a9c51d2e4b687",
)


@app.command()
def create(
    scope: Annotated[
        list[str],
        typer.Option(
            help="Permission: diagnose, read, feedback, train, promote, rollback, or admin for all."
        ),
    ],
    name: Annotated[
        str, typer.Option(help="Name of the user or program; shown in lists and logs.")
    ] = "unnamed",
    expires: Annotated[
        str | None, typer.Option(help="Lifetime, such as 12h, 90d or 52w. [default: no end]")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the key, for a script.")] = False,
    database_url: Url = None,
) -> None:
    """Create a key. It is shown only once, because only its digest is kept."""
    require_service()
    from rca_api.shell.security import keys
    from rca_api.shell.store.base import now

    scopes = _scopes(scope)
    until = None if expires is None else now() + duration(expires)
    with ready_database(database_url) as database, database.session() as session:
        row, key = keys.create(session, name, scopes, until)
    if quiet:
        typer.echo(key)
        return
    typer.echo(f"{key}\n\nid {row.id}, scopes {row.scopes}, expires {until or 'never'}")
    typer.echo("Store it now: it cannot be shown again. Send it as `Authorization: Bearer <key>`.")


@app.command("list")
def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a program.")] = False,
    database_url: Url = None,
) -> None:
    """List all keys without their secrets, the newest first."""
    require_service()
    from rca_api.shell.security import keys

    with ready_database(database_url) as database, database.reading() as session:
        rows = keys.listed(session)
    if as_json:
        typer.echo(json.dumps([_document(row) for row in rows], indent=2))
        return
    if not rows:
        typer.echo("there are no keys; `rca keys create --scope diagnose` creates one")
    for row in rows:
        state = (
            f"revoked {row.revoked_at:%Y-%m-%d}" if row.revoked_at else f"expires {row.expires_at or 'never'}"
        )
        used = f"{row.used_at:%Y-%m-%d}" if row.used_at else "never"
        typer.echo(
            f"{row.id}  {row.name}  [{row.scopes}]  created {row.created_at:%Y-%m-%d}, used {used}, {state}"
        )


@app.command()
def revoke(key_id: Annotated[str, typer.Argument(metavar="ID")], database_url: Url = None) -> None:
    """Revoke a key; every replica refuses it from the next request on."""
    require_service()
    from rca_api.shell.security import keys

    with ready_database(database_url) as database, database.session() as session:
        row = keys.revoke(session, key_id)
    typer.echo(f"{row.id} ({row.name}) is revoked")


def _scopes(names: list[str]) -> list[Any]:
    from rca_api.shell.security.principal import Scope

    known = ", ".join(scope.value for scope in Scope)
    wrong = [name for name in names if name not in list(Scope)]
    if wrong:
        raise InvalidInput(f"there is no scope {wrong[0]!r}", hint=f"scopes are {known}")
    return [Scope(name) for name in names]


def duration(text: str) -> timedelta:
    """Read a number of hours, days or weeks, such as 90d.

    Raises
    ------
    InvalidInput
    """
    form = re.fullmatch(r"([1-9]\d{0,4})([hdw])", text)
    if form is None:
        raise InvalidInput(f"{text!r} is not a duration", hint="a number and h, d or w, such as 90d")
    return int(form[1]) * _UNITS[form[2]]


def _document(row: ApiKeyRow) -> dict[str, Any]:
    moments = ("created_at", "expires_at", "revoked_at", "used_at")
    held = {name: getattr(row, name) for name in moments}
    return {
        "id": row.id,
        "name": row.name,
        "scopes": row.scopes.split(),
        **{name: None if moment is None else moment.isoformat() for name, moment in held.items()},
    }
