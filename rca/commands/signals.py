"""`rca signals`: the exporter metrics that a diagnosis uses."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rca.commands.output import rendered, write

if TYPE_CHECKING:
    from rca.telemetry.catalogue import Signal

EXAMPLES = """
rca signals
rca signals tcp
rca signals --format json | jq '.[].name'
"""


class Format(StrEnum):
    """How the catalogue is written."""

    table = "table"
    json = "json"


def command(
    pattern: Annotated[
        str,
        typer.Argument(metavar="[PATTERN]", help="Only signals with this text in name, alias or meaning."),
    ] = "",
    format_: Annotated[Format, typer.Option("--format", "-f", help="Output format.")] = Format.table,
) -> None:
    """List the exporter metrics that a diagnosis uses.

    Other names of the same signal are listed as aliases. A diagnosis ignores all other metrics and lists them
    in its quality section.
    """
    from rca.telemetry.catalogue import KNOWN

    wanted = pattern.lower()
    found = [signal for signal in KNOWN if wanted in _searched(signal)]
    if not found:
        raise typer.BadParameter(f"no known signal contains {pattern!r}", param_hint="PATTERN")
    write(_table(found) if format_ is Format.table else _json(found))


def _searched(signal: Signal) -> str:
    return " ".join((signal.name, *signal.aliases, signal.meaning)).lower()


def _json(signals: list[Signal]) -> str:
    import orjson

    return orjson.dumps([_fields(signal) for signal in signals], option=orjson.OPT_INDENT_2).decode()


def _fields(signal: Signal) -> dict[str, Any]:
    return {
        "name": signal.name,
        "aliases": list(signal.aliases),
        "kind": signal.kind,
        "unit": signal.unit,
        "channels": list(signal.all_channels()),
        "worse": signal.worse,
        "meaning": signal.meaning,
    }


def _table(signals: list[Signal]) -> str:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("Signal", "Kind", "Unit", "Used", "Meaning"):
        table.add_column(column, overflow="fold")
    for signal in signals:
        names = "\n".join((signal.name, *(f"  or {alias}" for alias in signal.aliases)))
        used = "yes" if signal.all_channels() else "no"
        kind, unit = (signal.kind, signal.unit) if signal.all_channels() else ("", "")
        table.add_row(*(Text(cell) for cell in (names, kind, unit, used, signal.meaning)))
    return rendered(table)
