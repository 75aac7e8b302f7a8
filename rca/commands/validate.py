"""`rca validate`: check a window against the format, and list its content."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rca.commands.diagnose import read
from rca.errors import SourceError
from rca.runbook.numbers import count, seconds
from rca.runbook.phrases import clean
from rca.terminal import fail, write

if TYPE_CHECKING:
    from rca.window.window import Window

EXAMPLES = """
rca validate data/windows/healthy
my-exporter | rca validate -
rca validate data/windows/healthy --output window.arrow      one file to send or upload
"""


def command(
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="A window: its directory, a JSON or Arrow file, or - for stdin."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(help="Write the window as one file: .json as JSON, any other name as Arrow."),
    ] = None,
) -> None:
    """Check a telemetry window against the format, and list its content.

    --output writes a directory of Parquet files as one file, which `POST /v1/diagnoses` and `/ui` take.

    Exit codes: 0 valid, 2 refused. The message names the table, the column, the first rows and the expected
    values.
    """
    window = read(path)
    write("\n".join(_summary(window)))
    if output is not None:
        _save(window, output)


def _save(window: Window, path: Path) -> None:
    try:
        path.write_bytes(window.to_json() if path.suffix == ".json" else window.to_arrow())
    except OSError as error:
        fail(SourceError(f"cannot write {path}: {error.strerror}"))
    sys.stderr.write(f"written to {path}\n")


def _summary(window: Window) -> list[str]:
    job = window.job
    steps, names = len(window.steps.column("step").unique()), len(window.metrics.column("name").unique())
    lines = [
        f"valid: job {clean(job.job_id)}, {count(job.world_size, 'rank')}, {count(steps, 'step')}, "
        f"{seconds(job.end - job.start)}",
        f"  steps    {count(window.steps.num_rows, 'row')}: "
        + ", ".join(column for column in window.steps.column_names if column.endswith("_seconds")),
        f"  metrics  {count(window.metrics.num_rows, 'sample')} of {count(names, 'metric')}",
        f"  events   {count(window.events.num_rows, 'row')}",
        f"  ops      {count(window.ops.num_rows, 'row')}",
        f"  collectives  {count(window.collectives.num_rows, 'row')}",
    ]
    return [*lines, *(f"  note     {clean(note)}" for note in window.notes)]
