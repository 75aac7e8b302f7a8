"""`rca simulate`: write labelled synthetic windows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rca.commands.completion import healthy_or_causes
from rca.commands.output import write
from rca.commands.process import usable_cores
from rca.commands.progress import progress

EXAMPLES = """
rca simulate corpus --windows 100 --seed 7
rca simulate corpus --windows 10000 --seed 7           resumes: keeps existing windows
rca simulate one --windows 1 --cause gpu_throttling
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
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Worker processes; the result does not depend on it. [default: cores]"),
    ] = None,
) -> None:
    """Simulate jobs with labelled faults and write their telemetry windows as a collection.

    You can stop the command at any time and start it again: it continues and writes the same bytes.
    """
    from rca.errors import InvalidInput
    from rca.simulation import FAULTS
    from rca.training.collection import simulate_collection

    if cause is not None and cause != "healthy" and cause not in FAULTS:
        raise InvalidInput(f"unknown cause {cause!r}", hint=f"one of: healthy, {', '.join(FAULTS)}")
    with progress() as report:
        written = simulate_collection(
            output,
            windows,
            seed,
            cause=cause,
            processes=processes or usable_cores(),
            progress=lambda done, total: report("simulating", done, total),
        )
    write(f"{written} windows in {output}")
