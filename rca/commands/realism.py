"""`rca realism`: measure how far simulated windows are from real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rca.commands.output import rendered, table_of, write
from rca.commands.progress import progress
from rca.commands.worker_options import Processes, Scheduler, workers_of

EXAMPLES = """
rca realism data/windows
rca realism captures --output realism    also writes realism.md and realism.json
rca realism captures --windows 2000      simulates 2,000 windows
"""


def command(
    collection: Annotated[Path, typer.Argument(help="Folder with manifest.json and labelled real captures.")],
    windows: Annotated[
        int | None, typer.Option(min=20, help="Simulated windows. [default: four per capture]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulated windows and the intervals.")] = 0,
    processes: Processes = None,
    scheduler: Scheduler = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Also write realism.md and realism.json."),
    ] = None,
) -> None:
    """Compare the simulator with real captures: effect sizes of faults, and a discriminator.

    Every simulated window is the twin of a capture: same job, victims, steps and slowdown. The tables list
    what still differs, largest first. The discriminator's AUC is 0.5 if a small model cannot distinguish real
    windows from simulated ones, and 1 if it always can.
    """
    from rca.evaluation.realism.compare import compare
    from rca.evaluation.realism.report import terminal_tables, write_report

    with progress() as report, workers_of(processes, scheduler) as workers:
        found = compare(collection, n_windows=windows, seed=seed, workers=workers, report=report)
    if output is not None:
        write_report(found, output, collection.resolve().name)
    write("".join(rendered(table_of(table)) for table in terminal_tables(found)))
