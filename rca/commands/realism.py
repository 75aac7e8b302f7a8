"""`rca realism`: measure how far simulated windows are from real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rca.commands.output import rendered, table_of, write
from rca.commands.process import usable_cores
from rca.commands.progress import progress

EXAMPLES = """
rca realism data/windows
rca realism captures --output realism                  realism.md, realism.json and pictures
rca realism captures --traces traces --windows 2000    also against operation traces
"""


def command(
    collection: Annotated[Path, typer.Argument(help="Folder with manifest.json and labelled real captures.")],
    traces: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Also compare with real operation traces: trace-NAME.parquet, meta-NAME.yaml."
        ),
    ] = None,
    windows: Annotated[
        int | None, typer.Option(min=20, help="Simulated windows. [default: four per capture]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the simulated windows and the intervals.")] = 0,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Worker processes; no influence on the result. [default: cores]")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Also write realism.md, realism.json and pictures."
        ),
    ] = None,
) -> None:
    """Compare the simulator with real captures: effect sizes, feature distributions, a discriminator.

    Every simulated window is the twin of a capture: same job, same victims, same steps, same slowdown.
    What still differs is what the simulator gets wrong, and it is listed, largest first. An AUC near 0.5
    says that a small model cannot tell real from simulated; near 1, that something gives them away.
    """
    from rca.evaluation.realism.reading import (
        discriminator_table,
        effects_table,
        features_table,
        importance_table,
        summary_table,
    )
    from rca.evaluation.realism.run import compare

    with progress() as report:
        found = compare(
            collection,
            traces=traces,
            n_windows=windows,
            seed=seed,
            processes=processes or usable_cores(),
            report=report,
        )
    if output is not None:
        from rca.evaluation.realism.report import write_report

        write_report(found, output, collection.resolve().name)
    tables = (
        summary_table(found),
        discriminator_table(found),
        importance_table(found, 10),
        effects_table(found.effects, 10),
        features_table(found.features, "largest differences of features", 10),
    )
    write("".join(rendered(table_of(table)) for table in tables if table.rows))
