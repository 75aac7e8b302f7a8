"""`rca sweep`: diagnose all windows of an archive, and sum up what was lost."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from rca.commands.output import rendered, write
from rca.commands.progress import progress
from rca.commands.sweep_output import SHOWN, refused_lines, say_done
from rca.commands.sweep_what_if import command as what_if_command
from rca.commands.sweep_what_if import text as what_if_text
from rca.commands.worker_options import Processes, Scheduler, workers_of

if TYPE_CHECKING:
    from rich.table import Table

    from rca.sweep.report import Report, Total
    from rca.sweep.what_if_report import WhatIfReport


class Format(StrEnum):
    """Output format of the report."""

    table = "table"
    json = "json"
    html = "html"


class _RunByDefault(TyperGroup):
    """A group whose first argument may be an argument of its command ``run``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["run", *args]
        return list(super().parse_args(ctx, args))


app = typer.Typer(
    cls=_RunByDefault,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Diagnose every window of an archive, or replay every trace, on all cores or on a Dask cluster, and "
    "sum up the answers. `rca sweep URL...` is short for `rca sweep run URL...`.",
    epilog="\b\nExamples:\n"
    "  rca sweep data/windows                         answers in the folder sweep; repeat it to continue\n"
    "  rca sweep s3://bucket/windows --output s3://bucket/answers --scheduler tcp://10.0.0.1:8786\n"
    "  rca sweep report sweep                         incidents by cause and node, GPU-hours lost\n"
    "  rca sweep report sweep --output incidents.html\n"
    "  rca sweep what-if traces                       what stragglers cost each job, in the folder what-if\n"
    "  rca sweep report what-if                       jobs by share of time lost",
)

Answers = Annotated[
    str,
    typer.Argument(
        metavar="ANSWERS", help="Folder or URL that `rca sweep` or `rca sweep what-if` has written."
    ),
]


@app.command("run")
def run_command(
    urls: Annotated[
        list[str],
        typer.Argument(
            metavar="URL...",
            help="Folders, files, or URLs such as s3://bucket/windows or gs://bucket/windows. A window is a "
            "directory with window.json, or a file that ends with .json, .json.gz, .json.zst or .arrow.",
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="ANSWERS", help="Folder or URL of the answers: Parquet, by month."
        ),
    ] = "sweep",
    bundle: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Model bundle to use. [default: the shipped one]")
    ] = None,
    processes: Processes = None,
    scheduler: Scheduler = None,
) -> None:
    """Diagnose every window that has no answer yet.

    You can stop the command at any time and repeat it: windows with an answer of the same bundle are left
    out. Windows that cannot be read are listed, kept with their error, and tried again when they change.
    Exit code 0 whatever the verdicts; 2 if a place cannot be read.
    """
    from rca.diagnosis.bundle import Bundle, baseline
    from rca.sweep import Answers as DataSet
    from rca.sweep import sweep

    held = baseline() if bundle is None else Bundle.load(bundle)
    with progress() as report, workers_of(processes, scheduler) as workers:
        done = sweep(
            urls,
            DataSet(output),
            bundle=held,
            workers=workers,
            progress=lambda finished, total: report("diagnosing", finished, total),
        )
    say_done(done, output, "windows", "answer")


app.command("what-if")(what_if_command)


@app.command("report")
def report_command(
    answers: Answers = "sweep",
    format_: Annotated[
        Format | None,
        typer.Option("--format", "-f", help="Default: table, or html with --output FILE.html."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here instead of stdout.")
    ] = None,
) -> None:
    """Sum up what a sweep has written.

    Of `rca sweep`: incidents by cause, node and job, GPU-hours lost, and refused windows. Windows of one job
    with the same cause and place are one incident, unless an hour or more lies between. Of `rca sweep
    what-if`: jobs by share of time lost, patterns, types of operations, and refused traces.
    """
    import json

    found, as_text = _report(answers)
    by_name = Format.html if output is not None and output.suffix in (".html", ".htm") else Format.table
    chosen = format_ or by_name
    if chosen is Format.json:
        write(json.dumps(found.as_dict(), indent=2), output)
    elif chosen is Format.html:
        write(found.to_html(), output)
    else:
        write(as_text(), output)


def _report(url: str) -> tuple[Report | WhatIfReport, Callable[[], str]]:
    """The report on a data set, and its text; the columns show what it holds."""
    from rca.errors import InvalidInput
    from rca.sweep import Answers as DataSet
    from rca.sweep import report
    from rca.sweep.losses import Losses
    from rca.sweep.what_if_report import what_if_report

    losses = Losses(url)
    if losses.is_kept():
        results = what_if_report(losses)
        return results, lambda: what_if_text(results)
    found = report(DataSet(url))
    if not found.windows:
        raise InvalidInput(f"{url}: holds no answers", hint="rca sweep URL... writes some")
    return found, lambda: _text(found)


def _text(found: Report) -> str:
    counts = ", ".join(f"{n:,} {name.replace('_', '-')}" for name, n in found.verdicts.items())
    lines = [
        f"{found.gpu_hours:,.2f} GPU-hours lost in {len(found.incidents):,} incidents",
        f"{found.windows:,} windows of {found.jobs:,} jobs: {counts}",
    ]
    tables = [
        _table("by cause", "cause", "most frequent place", found.causes),
        _table("by node", "node", "most frequent cause", found.nodes),
        _table("by job", "job", "most frequent cause", found.by_job),
    ]
    return "\n".join([*lines, *map(rendered, tables), *refused_lines(found.refused)])


def _table(title: str, name: str, main: str, totals: list[Total]) -> Table:
    from rich.table import Table
    from rich.text import Text

    shown = f", the first {SHOWN} of {len(totals):,}" if len(totals) > SHOWN else ""
    table = Table(title=f"{title}{shown}")
    table.add_column(name)
    for each in ("GPU-hours", "incidents", "jobs", "windows"):
        table.add_column(each, justify="right")
    table.add_column(main)
    for row in totals[:SHOWN]:
        numbers = (f"{row.gpu_hours:,.3f}", f"{row.incidents:,}", f"{row.jobs:,}", f"{row.windows:,}")
        table.add_row(Text(row.name), *numbers, Text(row.main))
    return table
