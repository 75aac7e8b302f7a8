"""`rca simulate`: write labelled synthetic windows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rca.commands.completion import healthy_or_causes
from rca.commands.progress import progress
from rca.commands.worker_options import Processes, Scheduler, workers_of
from rca.terminal import write

EXAMPLES = """
rca simulate corpus --windows 100 --seed 7
rca simulate corpus --windows 10000 --seed 7           resumes: keeps existing windows
rca simulate one --windows 1 --cause gpu_throttling
rca simulate second --windows 100 --corpus 2           also chronic faults, untimed time, gang stops, ...
rca simulate fleet --windows 100 --operations          then: rca sweep what-if fleet; rca sweep report what-if
rca evaluate corpus
"""


def command(
    output: Annotated[
        Path, typer.Argument(help="Collection folder to write or to resume; existing windows are kept.")
    ],
    windows: Annotated[int, typer.Option(min=1, help="Number of windows.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same windows.")] = 0,
    cause: Annotated[
        str | None,
        typer.Option(
            autocompletion=healthy_or_causes,
            help="healthy, or a cause id for every window. [default: a mixture]",
        ),
    ] = None,
    corpus: Annotated[
        int,
        typer.Option(min=1, max=2, help="Version of the corpus; the shipped models learned from version 1."),
    ] = 1,
    mechanism: Annotated[
        str | None,
        typer.Option(help="Mechanism of every window, of version 2. [default: a mixture]"),
    ] = None,
    operations: Annotated[
        bool,
        typer.Option(
            "--operations",
            help="A fleet for rca sweep what-if: jobs of their own that record their operations.",
        ),
    ] = False,
    processes: Processes = None,
    scheduler: Scheduler = None,
) -> None:
    """Simulate jobs with labelled faults and write their telemetry windows as a collection.

    You can stop the command at any time and start it again: it continues and writes the same bytes.
    """
    from rca.errors import InvalidInput
    from rca.lab.simulation.faults import FAULTS, FIRST_CAUSES
    from rca.lab.simulation.mechanisms import MECHANISMS
    from rca.lab.training.collection import simulate_collection

    causes = FIRST_CAUSES if corpus == 1 else tuple(FAULTS)
    if cause is not None and cause != "healthy" and cause not in causes:
        later = "; --corpus 2 has it" if cause in FAULTS else ""
        raise InvalidInput(f"unknown cause {cause!r}", hint=f"one of: healthy, {', '.join(causes)}{later}")
    if mechanism is not None and (corpus == 1 or mechanism not in MECHANISMS):
        known = f"with --corpus 2 one of: {', '.join(MECHANISMS)}"
        raise InvalidInput(f"unknown mechanism {mechanism!r} of version {corpus}", hint=known)
    if mechanism is not None and cause is not None:
        raise InvalidInput("--cause and --mechanism exclude each other", hint="leave one of them out")
    with progress() as report, workers_of(processes, scheduler) as workers:
        written = simulate_collection(
            output,
            windows,
            seed,
            cause=cause,
            version=2 if corpus == 2 else 1,
            mechanism=mechanism,
            operations=operations,
            workers=workers,
            progress=lambda done, total: report("simulating", done, total),
        )
    write(f"{written} windows in {output}")
