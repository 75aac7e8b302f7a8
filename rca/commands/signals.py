"""`rca signals`: the exporter metrics that a diagnosis uses."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rca.terminal import OutputFormat, rendered, write

if TYPE_CHECKING:
    from rca.window.catalogue import Signal

EXAMPLES = """
rca signals
rca signals tcp
rca signals --format json | jq '.[].name'
"""
COLUMNS = ("Signal", "Kind", "Unit", "Used", "Meaning")


def command(
    pattern: Annotated[
        str,
        typer.Argument(metavar="[PATTERN]", help="Only signals with this text in name, alias or meaning."),
    ] = "",
    format_: Annotated[
        OutputFormat, typer.Option("--format", "-f", help="Output format.")
    ] = OutputFormat.table,
) -> None:
    """List the exporter metrics that a diagnosis uses.

    Other names of the same signal are listed as aliases. A diagnosis ignores all other metrics and lists them
    in its quality section. In a pipe each signal is one line.
    """
    from rca.window.catalogue import KNOWN

    wanted = pattern.lower()
    found = [signal for signal in KNOWN if wanted in _searched(signal)]
    if not found:
        raise typer.BadParameter(f"no known signal contains {pattern!r}", param_hint="PATTERN")
    if format_ is OutputFormat.json:
        write(_json(found))
    else:
        write(_table(found) if sys.stdout.isatty() else _lines(found))


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
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    for signal in signals:
        name, *others = _cells(signal)
        names = "\n".join((name, *(f"  or {alias}" for alias in signal.aliases)))
        table.add_row(*map(Text, (names, *others)))
    return rendered(table)


def _lines(signals: list[Signal]) -> str:
    """Aligned columns that are never folded, for `grep` and `awk`; the longest column is the last."""
    rows = [COLUMNS, *map(_cells, signals)]
    aliases = ["Aliases", *(", ".join(signal.aliases) for signal in signals)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=True)), last)).rstrip()
        for row, last in zip(rows, aliases, strict=True)
    )


def _cells(signal: Signal) -> tuple[str, ...]:
    used = bool(signal.all_channels())
    kind, unit = (signal.kind, signal.unit) if used else ("", "")
    return signal.name, kind, unit, "yes" if used else "no", signal.meaning
