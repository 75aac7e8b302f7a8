"""`rca sweep`: diagnose all windows of an archive, and sum up what was lost."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from rca.commands.progress import progress
from rca.commands.prometheus_options import NO_OPTIONS, PrometheusOptions, takes_prometheus
from rca.commands.worker_options import Processes, Scheduler, workers_of
from rca.errors import InvalidInput
from rca.terminal import rendered, write

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rca.sweep import Found, Swept
    from rca.sweep.report import SweepReport


class ReportFormat(StrEnum):
    """Output format of the report."""

    table = "table"
    json = "json"
    html = "html"


USUAL_SPAN = "30m"
#: Rows of a table on a terminal, and refused files.
SHOWN = 10
_BY_SUFFIX = {".html": ReportFormat.html, ".htm": ReportFormat.html, ".json": ReportFormat.json}


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
@takes_prometheus("job", "since", "start", "end")
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
        typer.Option("--output", "-o", metavar="ANSWERS", help="Folder or URL of the answers: Parquet."),
    ] = "sweep",
    bundle: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Model bundle to use. [default: the shipped one]")
    ] = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="Try windows again that could not be diagnosed.")
    ] = False,
    processes: Processes = None,
    scheduler: Scheduler = None,
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
    asked: PrometheusOptions = NO_OPTIONS,
) -> None:
    """Diagnose every window that has no answer yet.

    Windows are those under URLs, or with --prometheus and --jobs the spans of jobs. You can stop the command
    at any time and repeat it: windows with an answer of the same bundle are left out. Bad windows are listed,
    kept with their error, and tried again when they change. The workers of a scheduler read URLs themselves;
    name a folder that all machines mount as file:///FOLDER. Exit code 0 whatever the verdicts; 2 if a place
    cannot be read.
    """
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
    _say_done(done, output, "windows", "answer")


@app.command("what-if")
def what_if_command(
    urls: Annotated[
        list[str],
        typer.Argument(
            metavar="URL...",
            help="Folders, files, or URLs such as s3://bucket/traces. A trace is a Parquet file with a "
            "column optype. Its sizes are in NAME.meta.yaml, in meta-A.yaml for trace-A.parquet, or in "
            "meta.yaml beside it. Of windows the operations are replayed, or else the phases.",
        ),
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="RESULTS", help="Folder or URL of the results: Parquet.")
    ] = "what-if",
    retry: Annotated[
        bool, typer.Option("--retry", help="Try traces again that could not be replayed.")
    ] = False,
    processes: Processes = None,
    scheduler: Scheduler = None,
) -> None:
    """Replay every trace that has no result yet without its stragglers.

    You can stop the command at any time and repeat it: traces with a result of the same version of
    straggler-rca are left out. Traces that cannot be replayed are listed, kept with their error, and tried
    again when they change. Exit code 0 whatever the results; 2 if a place cannot be read.
    """
    from rca.sweep.what_if import JobLosses, sweep_what_if

    with progress() as report, workers_of(processes, scheduler) as workers:
        done = sweep_what_if(
            urls,
            JobLosses(output),
            workers=workers,
            progress=lambda finished, total: report("replaying", finished, total),
            retry=retry,
        )
    _say_done(done, output, "files", "result")


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
        ReportFormat | None,
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
    from rca.sweep import Answers as DataSet
    from rca.sweep.incident_report import incident_report
    from rca.sweep.what_if import JobLosses
    from rca.sweep.what_if_report import what_if_report

    losses = JobLosses(answers)
    found = what_if_report(losses) if losses.is_kept() else incident_report(DataSet(answers))
    if found.facts.get("windows") == 0:
        raise InvalidInput(f"{answers}: holds no answers", hint="rca sweep URL... writes some")
    chosen = format_ or _BY_SUFFIX.get("" if output is None else output.suffix.lower(), ReportFormat.table)
    if chosen is ReportFormat.json:
        write(found.to_json(), output)
    else:
        write(found.to_html() if chosen is ReportFormat.html else _text(found), output)


def _text(found: SweepReport) -> str:
    from rich.table import Table
    from rich.text import Text

    lines = [*found.headline]
    for each in found.shown:
        shown = f", the first {SHOWN} of {len(each.rows):,}" if len(each.rows) > SHOWN else ""
        table = Table(title=f"{each.title}{shown}")
        for name, text in each.columns.items():
            table.add_column(name, justify="right" if "," in text else "left", overflow="fold")
        for row in each.cells(SHOWN):
            table.add_row(*map(Text, row))
        lines.append(rendered(table))
    refused = found.refused.itertuples(index=False)
    return "\n".join([*lines, *_refused(refused, "--format json has all")])


def _refused(refused: Iterable[tuple[str, str]], rest: str) -> list[str]:
    lines = [f"refused: {url}: {reason}" for url, reason in refused]
    return lines if len(lines) <= SHOWN else [*lines[:SHOWN], f"and {len(lines) - SHOWN:,} more; {rest}"]


def _say_done(done: Swept, output: str, found: str, kept: str) -> None:
    """Print the counts of a sweep, and on stderr what was refused.

    Parameters
    ----------
    output : str
        Folder of the data set.
    found, kept : str
        What was swept, and what the data set has of it, such as "windows" and "answer".
    """
    for line in _refused(done.refused, f"rca sweep report {output}"):
        typer.echo(line, err=True)
    counts = ", ".join(f"{n:,} {name.replace('_', '-')}" for name, n in sorted(done.outcomes.items()))
    article = "an" if kept[0] in "aeiou" else "a"
    write(
        f"{done.found:,} {found}, {done.kept:,} with {article} {kept} before: {counts or 'nothing to do'}\n"
        f"{kept}s in {output}; next: rca sweep report {output}"
    )


@app.command("export")
def export_command(
    answers: Answers,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New or empty.")],
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
