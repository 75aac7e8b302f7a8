"""`rca sources`: what can be diagnosed besides a window."""

from __future__ import annotations

from typing import Annotated

import typer

from rca.process import start_quickly
from rca.terminal import OutputFormat, rendered, write

EXAMPLES = """
rca sources
rca diagnose /tmp/nccl_trace_rank_      a folder with one flight recorder dump per rank
rca sources --format json | jq '.[].name'
"""


def command(
    format_: Annotated[
        OutputFormat, typer.Option("--format", "-f", help="Output format.")
    ] = OutputFormat.table,
) -> None:
    """List the files that `rca diagnose` reads, what each kind can tell, and the lines of logs it knows.

    Give such a file, or a folder of them, in place of a window. The content decides what it is.
    """
    start_quickly()
    from rca.sources.logs.line_kinds import line_kinds
    from rca.sources.registry import SOURCES
    from rca.sources.watchdog.window import SOURCE as LOGS

    if format_ is OutputFormat.json:
        import orjson

        lines = [
            {"name": each.name, "says": each.says, "example": each.example, "source": each.source}
            for each in line_kinds()
        ]
        rows = [
            {"name": each.name, "title": each.title, "tells": each.tells, "lacks": each.lacks}
            | ({"lines": lines} if each is LOGS else {})
            for each in SOURCES
        ]
        write(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table("source", "files", "can tell", "cannot tell", box=None, pad_edge=False)
    for each in SOURCES:
        table.add_row(each.name, each.title, each.tells, each.lacks)
    write(rendered(table))
    kinds = Table(f"line of a log ({LOGS.name})", "says", "example", box=None, pad_edge=False)
    for kind in line_kinds():
        kinds.add_row(kind.name, kind.says, escape(kind.example))
    write("\n" + rendered(kinds))
