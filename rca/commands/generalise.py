"""`rca generalise`: scores on causes, severities, job sizes and captures that the model has not learned."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rca.commands.progress import progress
from rca.commands.training_options import Cache, Format, Result, Seed, Settings
from rca.commands.worker_options import Processes, Scheduler, workers_of
from rca.terminal import rendered, table_of, write

EXAMPLES = """
rca generalise                                          simulated windows only
rca generalise --collection captures -o generalisation  also captures; report.md, scores.json, judged.parquet
rca generalise --windows 600 --per-cell 4               a short run
rca generalise --settings tuned.json -o tuned           bundles with tuned settings
"""


def command(
    windows: Annotated[int | None, typer.Option(min=200, help="Simulated windows. [default: 3000]")] = None,
    seed: Seed = None,
    collection: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Folder of captured labelled windows; repeat for several."),
    ] = None,
    per_cell: Annotated[
        int | None,
        typer.Option(min=1, help="Tested simulated windows of each cause and severity. [default: 20]"),
    ] = None,
    variants: Annotated[
        int | None, typer.Option(min=1, help="Variants of each learned capture. [default: 8]")
    ] = None,
    settings: Settings = None,
    format_: Result = Format.table,
    processes: Processes = None,
    scheduler: Scheduler = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Also write report.md, scores.json, judged.parquet."
        ),
    ] = None,
    cache: Cache = None,
) -> None:
    """Cross-validate: fit without a kind of job, and test on that kind.

    Held out are scenarios, causes at a severity, job sizes, and captures by scenario, cluster and model.
    Every fold is tested with every set of signals. An interrupted run continues where it stopped. Needs the
    extra [train].
    """
    from rca.lab.training.cross_validation import generalise
    from rca.lab.training.cross_validation.report import document, lines, tables, to_markdown, write_report
    from rca.lab.training.feature_cache import FeatureCache, default_folder
    from rca.lab.training.run import DEFAULT_SEED
    from rca.lab.training.settings import read_settings

    place = cache or default_folder()
    tuned = None if settings is None else read_settings(settings)
    with progress() as report, workers_of(processes, scheduler) as workers:
        found = generalise.generalise(
            windows or generalise.DEFAULT_WINDOWS,
            DEFAULT_SEED if seed is None else seed,
            collection or (),
            results=place / "folds",
            per_cell=per_cell or generalise.DEFAULT_PER_CELL,
            variants=variants or generalise.DEFAULT_VARIANTS,
            settings=tuned,
            workers=workers,
            cache=FeatureCache(place),
            progress=report,
        )
    held = lines(found)
    if output is not None:
        write_report(found, held, output)
    if format_ is Format.markdown:
        write(to_markdown(found, held))
    elif format_ is Format.json:
        import json

        write(json.dumps(document(found, held), indent=2))
    else:
        write("".join(rendered(table_of(table)) for table in tables(held, brief=True)))
