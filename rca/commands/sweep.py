"""`rca sweep`: diagnose all windows of an archive, and sum up what was lost."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from rca.commands import prometheus_options
from rca.commands.progress import progress
from rca.commands.prometheus_options import PrometheusOptions
from rca.commands.sweep_output import SHOWN, refused_lines, say_done
from rca.commands.sweep_what_if import command as what_if_command
from rca.commands.sweep_what_if import text as what_if_text
from rca.commands.worker_options import Processes, Scheduler, workers_of
from rca.errors import InvalidInput
from rca.terminal import rendered, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from rca.sweep.archive import Found
    from rca.sweep.report import Report, Total
    from rca.sweep.what_if_report import WhatIfReport


class Format(StrEnum):
    """Output format of the report."""

    table = "table"
    json = "json"
    html = "html"


USUAL_SPAN = "30m"
_BY_SUFFIX = {".html": Format.html, ".htm": Format.html, ".json": Format.json}


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
    "sum up the answers. `rca sweep URL...` is short for `rca sweep run URL...`, whose --help lists the "
    "options.",
    epilog="\b\nExamples:\n"
    "  rca sweep data/windows                         answers in the folder sweep; repeat it to continue\n"
    "  rca sweep s3://bucket/windows --output s3://bucket/answers --scheduler tcp://10.0.0.1:8786\n"
    "  sacct -X -P -o JobID,Start,End > jobs.txt      then read these jobs from Prometheus:\n"
    "  rca sweep --prometheus http://prometheus:9090 --jobs jobs.txt\n"
    "  rca sweep report sweep                         incidents by cause and node, GPU-hours lost\n"
    "  rca sweep report sweep --output incidents.html\n"
    "  rca sweep export sweep my-incidents --truth incidents.csv    windows with true labels, for rca train\n"
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
        list[str] | None,
        typer.Argument(
            metavar="[URL]...",
            help="Folders, files, or URLs such as s3://bucket/windows or gs://bucket/windows. A window is a "
            "directory with window.json, or a file that ends with .json, .json.gz, .json.zst or .arrow.",
        ),
    ] = None,
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="ANSWERS", help="Folder or URL of the answers: Parquet, by month."
        ),
    ] = "sweep",
    bundle: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Model bundle to use. [default: the shipped one]")
    ] = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="Try windows again that could not be diagnosed.")
    ] = False,
    processes: Processes = None,
    scheduler: Scheduler = None,
    prometheus: prometheus_options.Url = None,
    jobs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --prometheus: a table with the columns job, start and end, and a line per job, as "
            "Slurm's sacct -X -P -o JobID,Start,End and kubectl's custom columns write it. Times without an "
            "offset are UTC. Without an end the job runs.",
        ),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="With --jobs: length of a window: 90s, 30m, 2h. [default: 30m]"),
    ] = None,
    labels: prometheus_options.Labels = None,
    namespace: prometheus_options.Namespace = None,
    match: prometheus_options.Match = None,
    header: prometheus_options.Header = None,
    token_file: prometheus_options.TokenFile = None,
    ca_file: prometheus_options.CaFile = None,
    timeout: prometheus_options.Timeout = prometheus_options.USUAL_TIMEOUT,
    allow_partial: prometheus_options.AllowPartial = False,
) -> None:
    """Diagnose every window that has no answer yet.

    Windows are those under URLs, or with --prometheus and --jobs the spans of jobs. You can stop the command
    at any time and repeat it: windows with an answer of the same bundle are left out. Bad windows are listed,
    kept with their error, and tried again when they change. Exit code 0 whatever the verdicts; 2 if a place
    cannot be read.
    """
    asked = PrometheusOptions(
        url=prometheus,
        labels=labels,
        namespace=namespace,
        match=tuple(match or ()),
        header=tuple(header or ()),
        token_file=token_file,
        ca_file=ca_file,
        timeout=timeout,
        allow_partial=allow_partial,
    )
    windows = _found(urls or [], jobs, every, asked)
    from rca.diagnosis.bundle import Bundle, baseline
    from rca.sweep import Answers as DataSet
    from rca.sweep import sweep

    held = baseline() if bundle is None else Bundle.load(bundle)
    with progress() as report, workers_of(processes, scheduler) as workers:
        done = sweep(
            windows,
            DataSet(output),
            bundle=held,
            workers=workers,
            progress=lambda finished, total: report("diagnosing", finished, total),
            retry=retry,
        )
    say_done(done, output, "windows", "answer")


app.command("what-if")(what_if_command)


def _found(
    urls: list[str], jobs: Path | None, every: str | None, asked: PrometheusOptions
) -> Sequence[Found]:
    """What to diagnose: an archive, or jobs of Prometheus."""
    import time

    from rca.sources.instants import seconds_of
    from rca.sweep import archived, job_windows, read_jobs

    if urls:
        asked.refuse_any()
        for name, given in (("jobs", jobs), ("every", every)):
            if given is not None:
                raise InvalidInput(
                    f"--{name} is for --prometheus only", hint="leave out the URLs, or this option"
                )
        found = archived(urls)
        if not found:
            raise InvalidInput(
                f"no windows under {', '.join(urls)}",
                hint="a window is a directory with window.json, or a file that ends with .json, .json.gz, "
                ".json.zst or .arrow",
            )
        return found
    if asked.url is None or jobs is None:
        raise InvalidInput("nothing to diagnose", hint="give a URL, or --prometheus URL and --jobs FILE")
    held, left_out = read_jobs(jobs)
    if left_out:
        typer.echo(f"left out: {left_out:,} lines of jobs that have not run, or of job steps", err=True)
    every = every or USUAL_SPAN
    windows = job_windows(held, every=seconds_of(every), reading=asked.reading(), now=time.time())
    if not windows:
        raise InvalidInput(
            f"{jobs}: no job has a span of {every} that is over",
            hint="check the times, or give a shorter --every",
        )
    return windows


@app.command("report")
def report_command(
    answers: Answers = "sweep",
    format_: Annotated[
        Format | None,
        typer.Option("--format", "-f", help="Default: table, or by the suffix of --output: .html, .json."),
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
    chosen = format_ or _BY_SUFFIX.get("" if output is None else output.suffix.lower(), Format.table)
    if chosen is Format.json:
        write(json.dumps(found.as_dict(), indent=2), output)
    elif chosen is Format.html:
        write(found.to_html(), output)
    else:
        write(as_text(), output)


def _report(url: str) -> tuple[Report | WhatIfReport, Callable[[], str]]:
    """The report on a data set, and its text; the columns show what it holds."""
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


@app.command("export")
def export_command(
    answers: Answers,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New, empty, or of an earlier export.")],
    truth: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="What was found out: a table with the columns job, cause, start and end, and if known nodes "
            "(node[1-4]) and ranks (8-15). The cause healthy says that the job ran as it should.",
        ),
    ],
    hold_out: Annotated[
        bool,
        typer.Option(
            "--hold-out",
            help="Let a hash of the job choose the part. By default all windows are for training.",
        ),
    ] = False,
) -> None:
    """Write the windows of an archive with their true labels, for `rca train` and `rca evaluate`.

    A window is faulty if a cause acts in a fifth of its time or more, or stops the job in it. It is healthy
    if a finding says so for all of its time. Others are left out.
    """
    from rca.sweep import Answers as DataSet
    from rca.sweep import read_findings, write_collection

    with progress() as report:
        written, left_out = write_collection(
            DataSet(answers),
            read_findings(truth),
            folder,
            hold_out=hold_out,
            progress=lambda done, total: report("writing windows", done, total),
        )
    for reason, number in sorted(left_out.items()):
        typer.echo(f"left out: {number:,} {reason}", err=True)
    write(f"{written:,} windows in {folder}; next: rca train --collection {folder}, or rca evaluate {folder}")


def _text(found: Report) -> str:
    counts = ", ".join(f"{n:,} {name.replace('_', '-')}" for name, n in found.verdicts.items())
    incidents = f"{len(found.incidents):,} incident{'s' if len(found.incidents) != 1 else ''}"
    lines = [
        f"{found.gpu_hours:,.2f} GPU-hours lost in {incidents}, "
        f"{found.unexplained:,.2f} of them without a named cause",
        f"{found.windows:,} windows of {found.jobs:,} jobs: {counts}",
    ]
    tables = [
        _table("by cause", "cause", "most frequent place", found.causes),
        _table("by node", "node", "most frequent cause", found.nodes),
        _table("by job", "job", "most frequent cause", found.by_job),
    ]
    if found.suspects:
        tables.append(_table("named by undecided windows", "node", "most frequent cause", found.suspects))
    if len(found.models) > 1:
        models = ", ".join(f"{name[:12]} ({n:,} windows)" for name, n in found.models.items())
        lines.append(f"answers of {len(found.models)} models: {models}; repeat the sweep for those of one")
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
