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
    """List the files that `rca diagnose` reads, and what each kind can tell.

    Give such a file, or a folder of them, in place of a window. The content decides what it is.
    """
    start_quickly()
    from rca.sources.registry import SOURCES

    if format_ is OutputFormat.json:
        import orjson

        rows = [
            {"name": each.name, "title": each.title, "tells": each.tells, "lacks": each.lacks}
            for each in SOURCES
        ]
        write(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    from rich.table import Table

    table = Table("source", "files", "can tell", "cannot tell", box=None, pad_edge=False)
    for each in SOURCES:
        table.add_row(each.name, each.title, each.tells, each.lacks)
    write(rendered(table))
