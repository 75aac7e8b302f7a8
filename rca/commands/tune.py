"""`rca tune`: search LightGBM's settings, and measure their gain on data that the search has not used."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rca.commands.progress import progress
from rca.commands.training_options import Cache, Result, ResultFormat, Seed
from rca.commands.worker_options import Processes, Scheduler, workers_of
from rca.terminal import rendered, table_of, write

EXAMPLES = """
rca tune --output tuned.json                              every head; an interrupted run continues
rca tune --collection captures --head cause --trials 40   one head, more trials
rca train --settings tuned.json --output my-bundle        train with the settings found
"""


class HeadName(StrEnum):
    """Heads of a bundle."""

    mode = "mode"
    scope = "scope"
    straggler = "straggler"
    stopper = "stopper"
    type = "type"
    cause = "cause"
    stop_cause = "stop_cause"


def command(
    windows: Annotated[int, typer.Option(min=200, help="Simulated windows.")] = 3000,
    seed: Seed = None,
    collection: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Folder of real labelled windows; repeat for several."),
    ] = None,
    head: Annotated[
        list[HeadName] | None, typer.Option(help="Tune only this head; repeat for several.")
    ] = None,
    trials: Annotated[int, typer.Option(min=2, help="Settings tried per head.")] = 20,
    format_: Result = ResultFormat.table,
    processes: Processes = None,
    scheduler: Scheduler = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the settings for `rca train --settings`."),
    ] = None,
    cache: Cache = None,
) -> None:
    """Tune LightGBM's settings of each head by grouped cross-validation.

    Folds of two thirds of the groups choose settings by log loss, and the last third measures the gain. A
    head keeps its present settings unless tuning wins. An interrupted run continues where it stopped. Needs
    the extra [train].
    """
    from rca.lab.training.feature_cache import FeatureCache, default_folder
    from rca.lab.training.run import DEFAULT_SEED
    from rca.lab.training.settings import write_settings
    from rca.lab.training.tune import table, tune

    place = cache or default_folder()
    with progress() as report, workers_of(processes, scheduler) as workers:
        found = tune(
            windows,
            DEFAULT_SEED if seed is None else seed,
            collection or (),
            results=place / "folds",
            heads=[each.value for each in head or ()],
            trials=trials,
            workers=workers,
            cache=FeatureCache(place),
            progress=report,
        )
    if output is not None:
        write_settings(output, {each.name: each.chosen for each in found if each.chosen is not None})
    if format_ is ResultFormat.json:
        import json

        write(json.dumps({"heads": [each.as_dict() for each in found]}, indent=2))
    else:
        write(rendered(table_of(table(found))))
