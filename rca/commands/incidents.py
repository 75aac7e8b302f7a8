"""`rca incidents`: list the incidents of a service, and say what people do about them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import orjson
import typer

from rca.errors import InvalidInput
from rca.terminal import OutputFormat, rendered, write

if TYPE_CHECKING:
    from rca.client import Client

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List the incidents of a service; acknowledge, assign, mute and close them.\n\n"
    "INCIDENT is a job with an open incident, or the id of an incident, or the begin of the id of an open "
    "one. RCA_API_KEY holds a key: the scope read lists, feedback changes.",
    epilog="\b\nExamples:\n"
    "  export RCA_SERVICE=http://rca:8080\n"
    "  rca incidents list\n"
    "  rca incidents show llama-70b\n"
    "  rca incidents acknowledge llama-70b\n"
    "  rca incidents assign llama-70b ana\n"
    "  rca incidents mute llama-70b --for 2h\n"
    "  rca incidents close llama-70b 'planned power cap'",
)
#: Incidents of one request.
_PAGE = 200
#: Most incidents that are read.
MAX_LISTED = 10_000


class ListedState(StrEnum):
    """Which incidents are listed."""

    open = "open"
    resolved = "resolved"
    all = "all"


Address = Annotated[
    str, typer.Option("--service", metavar="URL", envvar="RCA_SERVICE", help="Address of the service.")
]
Which = Annotated[str, typer.Argument(metavar="INCIDENT", help="Job, id, or begin of an id.")]
As = Annotated[OutputFormat, typer.Option("--format", "-f", help="Output format.")]
_LOCAL = "http://127.0.0.1:8080"


@app.command("list")
def list_command(
    state: Annotated[ListedState, typer.Option(help="Which incidents.")] = ListedState.open,
    job: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of a job.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_LISTED, help="Most incidents, newest first.")] = 50,
    service: Address = _LOCAL,
    format_: As = OutputFormat.table,
) -> None:
    """List incidents, newest first."""
    given = {"state": None if state is ListedState.all else state.value, "job": job}
    found = _listed(_client(service), limit, **given)
    if format_ is OutputFormat.json:
        write(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())
        return
    write(_table(found) if found else f"no {'' if state is ListedState.all else f'{state} '}incident")


@app.command("show")
def show_command(incident: Which, service: Address = _LOCAL, format_: As = OutputFormat.table) -> None:
    """Show an incident: cause, cost, what to do, timeline."""
    client = _client(service)
    media_type = "application/json" if format_ is OutputFormat.json else "text/markdown"
    write(client.get(f"/v1/incidents/{_id(client, incident)}", media_type).decode())


@app.command("acknowledge")
def acknowledge_command(
    incident: Which,
    undo: Annotated[bool, typer.Option("--undo", help="It was not seen after all.")] = False,
    service: Address = _LOCAL,
    format_: As = OutputFormat.table,
) -> None:
    """Say that you have seen an incident."""
    _change(service, incident, {"acknowledged": not undo}, format_)


@app.command("assign")
def assign_command(
    incident: Which,
    person: Annotated[
        str | None, typer.Argument(metavar="WHO", help="Without it the incident has none.")
    ] = None,
    service: Address = _LOCAL,
    format_: As = OutputFormat.table,
) -> None:
    """Say who works on an incident."""
    _change(service, incident, {"assigned_to": person}, format_)


@app.command("mute")
def mute_command(
    incident: Which,
    span: Annotated[str, typer.Option("--for", metavar="SPAN", help="How long: 30m, 2h.")] = "1h",
    undo: Annotated[bool, typer.Option("--undo", help="Webhooks get messages again.")] = False,
    service: Address = _LOCAL,
    format_: As = OutputFormat.table,
) -> None:
    """Send webhooks no message of an incident for a time, except of its resolution."""
    from rca.sources.instants import seconds_of

    until = None if undo else datetime.fromtimestamp(time.time() + seconds_of(span), UTC).isoformat()
    _change(service, incident, {"muted_until": until}, format_)


@app.command("close")
def close_command(
    incident: Which,
    reason: Annotated[str, typer.Argument(metavar="REASON", help="Why it is closed.")],
    service: Address = _LOCAL,
    format_: As = OutputFormat.table,
) -> None:
    """Close an incident; a fault that goes on reopens it."""
    _change(service, incident, {"close": reason}, format_)


def _client(service: str) -> Client:
    from rca.client import Client

    return Client(service)


def _change(service: str, incident: str, change: dict[str, Any], format_: OutputFormat) -> None:
    client = _client(service)
    changed = client.patch(f"/v1/incidents/{_id(client, incident)}", change)
    if format_ is OutputFormat.json:
        write(orjson.dumps(changed, option=orjson.OPT_INDENT_2).decode())
        return
    write(_table([changed]))


def _id(client: Client, given: str) -> str:
    """The id of the incident that a person names.

    Raises
    ------
    InvalidInput
        If no open incident has this job or this begin of its id, or several have it.
    """
    if len(given) == 32 and not set(given) - set("0123456789abcdef"):
        return given
    opened = _listed(client, MAX_LISTED, state="open")
    named = [each["id"] for each in opened if each["job_id"] == given]
    named = named or [each["id"] for each in opened if each["id"].startswith(given)]
    if len(named) == 1:
        return str(named[0])
    held = "several open incidents" if named else "no open incident"
    raise InvalidInput(
        f"{held} of {given!r}", hint="`rca incidents list --state all` has the ids; give a whole one"
    )


def _listed(client: Client, limit: int, **wanted: str | None) -> list[dict[str, Any]]:
    """Incidents of all pages, newest first."""
    found: list[dict[str, Any]] = []
    cursor = None
    while len(found) < limit:
        asked = {**wanted, "cursor": cursor, "limit": min(_PAGE, limit - len(found))}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        answer = orjson.loads(client.get(f"/v1/incidents?{query}"))
        found += answer["items"]
        cursor = answer["next"]
        if cursor is None:
            break
    return found


def _table(found: list[dict[str, Any]]) -> str:
    from rich.table import Table
    from rich.text import Text

    table = Table("id", "job", "what", "where", "since (UTC)", "GPU-hours", "state", box=None, pad_edge=False)
    for each in found:
        cause = f"{each['failure_mode'].replace('_', '-')}, {each['cause'] or 'cause not known'}"
        began = datetime.fromisoformat(each["began"])
        row = (
            each["id"][:8],
            each["job_id"],
            f"suspected {cause}" if each["suspected"] else cause,
            ", ".join(each["place"]) or "not known",
            f"{began:%Y-%m-%d %H:%M}",
            f"{each['gpu_hours_lost']:.3g}",
            _state(each),
        )
        table.add_row(*map(Text, row))
    return rendered(table).rstrip()


def _state(incident: dict[str, Any]) -> str:
    """Whether it is open, and what people have said about it."""
    said = [str(incident["state"]) + (f" ({note})" if (note := incident["closing_note"]) else "")]
    if by := incident["acknowledged_by"]:
        said.append(f"seen by {by}")
    if who := incident["assigned_to"]:
        said.append(f"{who} works on it")
    muted = incident["muted_until"] and datetime.fromisoformat(incident["muted_until"])
    if muted and muted > datetime.now(UTC):
        said.append(f"muted until {muted:%Y-%m-%d %H:%M} UTC")
    return ", ".join(said)
