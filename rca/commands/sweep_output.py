"""What the commands of `rca sweep` print: the counts of a sweep, and the reports on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from rca.terminal import rendered, write

if TYPE_CHECKING:
    from rca.sweep import Swept
    from rca.sweep.report import Reason, Report
    from rca.sweep.what_if_report import WhatIfReport

#: Rows of a table on a terminal, and refused files.
SHOWN, SHOWN_REFUSED = 10, 10
#: The text of a row in each column. A format with a colon is one of numbers, which stand at the right.
_Columns = Mapping[str, str | Callable[[Any], str]]


def say_done(done: Swept, output: str, found: str, kept: str) -> None:
    """Print the counts of a sweep, and on stderr what was refused.

    Parameters
    ----------
    output : str
        Folder of the data set.
    found, kept : str
        What was swept, and what the data set has of it, such as "windows" and "answer".
    """
    for url, reason in done.refused[:SHOWN_REFUSED]:
        typer.echo(f"refused: {url}: {reason}", err=True)
    if len(done.refused) > SHOWN_REFUSED:
        typer.echo(f"and {len(done.refused) - SHOWN_REFUSED} more: rca sweep report {output}", err=True)
    counts = ", ".join(f"{n:,} {name.replace('_', '-')}" for name, n in sorted(done.outcomes.items()))
    article = "an" if kept[0] in "aeiou" else "a"
    write(
        f"{done.found:,} {found}, {done.kept:,} with {article} {kept} before: {counts or 'nothing to do'}\n"
        f"{kept}s in {output}; next: rca sweep report {output}"
    )


def report_text(found: Report) -> str:
    """The report on answers."""
    counts = ", ".join(f"{n:,} {name.replace('_', '-')}" for name, n in found.verdicts.items())
    incidents = f"{len(found.incidents):,} incident{'s' if len(found.incidents) != 1 else ''}"
    lines = [
        f"{found.gpu_hours_lost:,.2f} GPU-hours lost in {incidents}, "
        f"{found.gpu_hours_unexplained:,.2f} of them without a named cause",
        f"{found.windows:,} windows of {found.jobs:,} jobs: {counts}",
    ]
    if len(found.models) > 1:
        models = ", ".join(f"{name[:12]} ({n:,} windows)" for name, n in found.models.items())
        lines.append(f"answers of {len(found.models)} models: {models}; repeat the sweep for those of one")
    for title, name, main, totals in (
        ("by cause", "cause", "most frequent place", found.causes),
        ("by node", "node", "most frequent cause", found.nodes),
        ("by job", "job", "most frequent cause", found.by_job),
        ("named by undecided windows", "node", "most frequent cause", found.suspects),
    ):
        columns = {
            name: "{0.name}",
            "GPU-hours": "{0.gpu_hours:,.3f}",
            "incidents": "{0.incidents:,}",
            "jobs": "{0.jobs:,}",
            "windows": "{0.windows:,}",
            main: "{0.main}",
        }
        if totals or totals is not found.suspects:
            lines.append(_table(title, totals, columns))
    return "\n".join([*lines, *_refused_lines(found.refused)])


def what_if_text(found: WhatIfReport) -> str:
    """The report on what-if results."""
    from rca.sweep.what_if_report import STRAGGLES_ABOVE

    hours = f"{found.gpu_hours_lost:,.2f} of {found.gpu_hours:,.2f} GPU-hours"
    jobs = f"{found.traces:,} traces of {len(found.jobs):,} jobs"
    lines = [
        f"{hours} lost to stragglers ({found.waste:.1%})",
        f"{jobs}; {found.straggling_jobs:,} jobs have a slowdown above {STRAGGLES_ABOVE}",
    ]
    if found.waste_quantiles:
        shares = (f"{found.waste_quantiles[name]:.1%}" for name in ("p50", "p90", "p99"))
        lines.append("share of time lost, by job: median {}, p90 {}, p99 {}".format(*shares))
    if found.warnings:
        lines.append(f"{len(found.warnings):,} warnings; --format json has them, with their traces")
    if found.left_out:
        lines.append(f"{len(found.left_out):,} files without operations are left out")
    columns: _Columns = {
        "job": "{0.job_id}",
        "time lost": "{0.waste:.1%}",
        "slowdown": "{0.slowdown:.3f}",
        "s/step": "{0.seconds_per_step:.3g}",
        "GPU-hours": "{0.gpu_hours_lost:,.2f}",
        "pattern": "{0.pattern}",
        "costliest type": "{0.worst_type}",
        "worst rank": lambda job: _place(job.worst_rank, job.worst_rank_slowdown),
        "worst stage": lambda job: _place(job.worst_stage, job.worst_stage_slowdown),
    }
    lines.append(_table("by job; in brackets: slowdown by this alone", found.jobs, columns))
    for title, name, hours, parts in (
        ("by pattern (patterns overlap)", "pattern", "GPU-hours saved", found.patterns),
        ("by type of operations (types do not add up)", "type", "GPU-hours alone", found.types),
    ):
        columns = {
            name: "{0.name}",
            hours: "{0.gpu_hours:,.3f}",
            "jobs where it is first": "{0.jobs:,}",
            "job where it costs most": "{0.main}",
        }
        if parts:
            lines.append(_table(title, parts, columns))
    return "\n".join([*lines, *_refused_lines(found.refused)])


def _refused_lines(refused: Sequence[Reason]) -> list[str]:
    lines = [f"refused: {each.url}: {each.reason}" for each in refused[:SHOWN_REFUSED]]
    if len(refused) > SHOWN_REFUSED:
        lines.append(f"and {len(refused) - SHOWN_REFUSED:,} more; --format json has all")
    return lines


def _place(number: int, slowdown: float | None) -> str:
    return str(number) if slowdown is None else f"{number} ({slowdown:.3f})"


def _table(title: str, rows: Sequence[Any], columns: _Columns) -> str:
    from rich.table import Table
    from rich.text import Text

    shown = f", the first {SHOWN} of {len(rows):,}" if len(rows) > SHOWN else ""
    table = Table(title=f"{title}{shown}")
    for name, text in columns.items():
        table.add_column(name, justify="right" if isinstance(text, str) and ":" in text else "left")
    for row in rows[:SHOWN]:
        cells = (text.format(row) if isinstance(text, str) else text(row) for text in columns.values())
        table.add_row(*map(Text, cells))
    return rendered(table)
