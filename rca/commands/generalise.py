"""`rca generalise`: scores on clusters, models or other kinds of captures that a bundle has not learned."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rca.commands.progress import progress
from rca.commands.training_options import Cache, Result, ResultFormat, Seed, Settings
from rca.commands.worker_options import Processes, Scheduler, workers_of
from rca.terminal import rendered, table_of, write

EXAMPLES = """
rca generalise --collection cluster-a --collection cluster-b       without each cluster
rca generalise --collection captures --by group                    without each incident, to compare with
rca generalise --collection captures --by model -o generalisation  without each model; also writes files
"""


def command(
    collection: Annotated[
        list[Path],
        typer.Option(metavar="DIR", help="Folder of captured labelled windows; repeat for several."),
    ],
    by: Annotated[
        str,
        typer.Option(
            metavar="FIELD",
            help="What is held out, value by value: collection, or a field of the manifests such as group or "
            "model.",
        ),
    ] = "collection",
    windows: Annotated[
        int, typer.Option(min=200, help="Simulated windows, which every bundle learns from.")
    ] = 3000,
    seed: Seed = None,
    settings: Settings = None,
    format_: Result = ResultFormat.table,
    processes: Processes = None,
    scheduler: Scheduler = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Also write the files of `rca evaluate --output`."
        ),
    ] = None,
    cache: Cache = None,
) -> None:
    """For each cluster: fit without its captures, then test on them.

    The column source of the scores is the cluster, or the value of another field, that was held out. An
    interrupted run continues where it stopped. Needs the extra [train].
    """
    from rca.lab.evaluation.report import document, tables, write_report
    from rca.lab.training.feature_cache import FeatureCache, default_folder
    from rca.lab.training.generalise import generalise
    from rca.lab.training.run import DEFAULT_SEED
    from rca.lab.training.settings import read_settings

    place = cache or default_folder()
    tuned = None if settings is None else read_settings(settings)
    with progress() as report, workers_of(processes, scheduler) as workers:
        found = generalise(
            windows,
            DEFAULT_SEED if seed is None else seed,
            collection,
            by=by,
            results=place / "folds",
            settings=tuned,
            workers=workers,
            cache=FeatureCache(place),
            progress=report,
        )
    if output is not None:
        write_report(found, output, f"captures held out by {by}")
    if format_ is ResultFormat.json:
        import json

        write(json.dumps(document(found, ["source"]), indent=2))
    else:
        write("".join(rendered(table_of(table)) for table in tables(found, ["source"], brief=True)))
