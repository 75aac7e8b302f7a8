"""`rca sweep what-if`: what the jobs of an archive of traces lost to stragglers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rca.commands.progress import progress
from rca.commands.sweep_output import SHOWN, refused_lines, say_done
from rca.commands.worker_options import Processes, Scheduler, workers_of
from rca.terminal import rendered

if TYPE_CHECKING:
    from rich.table import Table

    from rca.sweep.what_if_report import JobLoss, Part, WhatIfReport


def command(
    urls: Annotated[
        list[str],
        typer.Argument(
            metavar="URL...",
            help="Folders, files, or URLs such as s3://bucket/traces. A trace is a Parquet file with a "
            "column optype. Its sizes are in NAME.meta.yaml, in meta-A.yaml for trace-A.parquet, or in "
            "meta.yaml beside it. Windows with operations count, too.",
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
    again when they change. Workers of a scheduler read URLs themselves; name a folder that all machines mount
    as file:///FOLDER. They get traces of up to 64 MiB from other folders. Exit code 0 whatever the results; 2
    if a place cannot be read.
    """
    from rca.sweep.losses import Losses
    from rca.sweep.what_if import sweep_what_if

    with progress() as report, workers_of(processes, scheduler) as workers:
        done = sweep_what_if(
            urls,
            Losses(output),
            workers=workers,
            progress=lambda finished, total: report("replaying", finished, total),
            retry=retry,
        )
    say_done(done, output, "files", "result")


def text(found: WhatIfReport) -> str:
    """The report for a terminal."""
    from rca.sweep.what_if_report import STRAGGLES_ABOVE

    hours = f"{found.gpu_hours_lost:,.2f} of {found.gpu_hours:,.2f} GPU-hours"
    jobs = f"{found.traces:,} traces of {len(found.jobs):,} jobs"
    lines = [
        f"{hours} lost to stragglers ({found.waste:.1%})",
        f"{jobs}; {found.straggling:,} jobs have a slowdown above {STRAGGLES_ABOVE}",
    ]
    if found.waste_quantiles:
        shares = (f"{found.waste_quantiles[name]:.1%}" for name in ("p50", "p90", "p99"))
        lines.append("share of time lost, by job: median {}, p90 {}, p99 {}".format(*shares))
    tables = [_jobs(found.jobs)]
    if found.patterns:
        tables.append(_parts("by pattern (patterns overlap)", "pattern", "GPU-hours saved", found.patterns))
    if found.types:
        title = "by type of operations (types do not add up)"
        tables.append(_parts(title, "type", "GPU-hours alone", found.types))
    if found.doubtful:
        lines.append(f"{len(found.doubtful):,} warnings; --format json has them, with their traces")
    if found.left_out:
        lines.append(f"{len(found.left_out):,} files without operations are left out")
    return "\n".join([*lines, *map(rendered, tables), *refused_lines(found.refused)])


def _jobs(jobs: list[JobLoss]) -> Table:
    from rich.table import Table
    from rich.text import Text

    shown = f", the first {SHOWN} of {len(jobs):,}" if len(jobs) > SHOWN else ""
    table = Table(title=f"by job{shown}; in brackets: slowdown by this alone")
    table.add_column("job")
    for name in ("time lost", "slowdown", "s/step", "GPU-hours"):
        table.add_column(name, justify="right")
    for name in ("pattern", "costliest type", "worst rank", "worst stage"):
        table.add_column(name)
    for job in jobs[:SHOWN]:
        table.add_row(
            Text(job.job_id),
            f"{job.waste:.1%}",
            f"{job.slowdown:.3f}",
            f"{job.seconds_per_step:.3g}",
            f"{job.gpu_hours_lost:,.2f}",
            job.pattern,
            Text(job.worst_type),
            _place(job.worst_rank, job.worst_rank_slowdown),
            _place(job.worst_stage, job.worst_stage_slowdown),
        )
    return table


def _place(number: int, slowdown: float | None) -> str:
    return str(number) if slowdown is None else f"{number} ({slowdown:.3f})"


def _parts(title: str, name: str, hours: str, parts: list[Part]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title)
    table.add_column(name)
    table.add_column(hours, justify="right")
    table.add_column("jobs where it is first", justify="right")
    table.add_column("job where it costs most")
    for part in parts[:SHOWN]:
        table.add_row(Text(part.name), f"{part.gpu_hours:,.3f}", f"{part.jobs:,}", Text(part.main))
    return table
