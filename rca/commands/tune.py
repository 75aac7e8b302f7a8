"""`rca tune`: search LightGBM's settings, and say honestly what that is worth."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rca.commands.output import rendered, table_of, write
from rca.commands.progress import progress
from rca.commands.training_options import Cache, Format, Result, Seed

EXAMPLES = """
rca tune --output tuned.json                            every head; stop and start again at any time
rca tune --collection captures --head cause --trials 40  one head, longer
rca train --settings tuned.json --output my-bundle      learn with what was found
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
    pattern = "pattern"


def command(
    windows: Annotated[int | None, typer.Option(min=200, help="Simulated windows. [default: 3000]")] = None,
    seed: Seed = None,
    collection: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Folder of real labelled windows; repeat for several."),
    ] = None,
    head: Annotated[
        list[HeadName] | None, typer.Option(help="Tune only this head; repeat for several.")
    ] = None,
    trials: Annotated[int, typer.Option(min=2, help="Settings tried per search.")] = 20,
    outer: Annotated[int, typer.Option(min=2, help="Folds that judge what was chosen.")] = 3,
    inner: Annotated[int, typer.Option(min=2, help="Folds that choose.")] = 2,
    variants: Annotated[
        int | None, typer.Option(min=1, help="Variants of each real window. [default: 8]")
    ] = None,
    study: Annotated[
        Path, typer.Option(metavar="FILE", help="SQLite file of all trials; a run goes on with its own.")
    ] = Path("tuning.db"),
    format_: Result = Format.table,
    processes: Annotated[int, typer.Option(min=1, help="Worker processes for the features.")] = 1,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the settings for `rca train --settings`."),
    ] = None,
    cache: Cache = None,
) -> None:
    """Tune each head under nested, grouped cross-validation; keep the present settings unless tuning wins.

    Needs the extra [train]. Inner folds choose by log loss, weighted as in training; outer folds judge.
    """
    from rca.training.feature_cache import FeatureCache, default_folder
    from rca.training.run import DEFAULT_SEED
    from rca.training.settings import write_settings
    from rca.training.tuning.nested import Effort
    from rca.training.tuning.run import DEFAULT_WINDOWS, VARIANTS, tune

    with progress() as report:
        found = tune(
            windows or DEFAULT_WINDOWS,
            DEFAULT_SEED if seed is None else seed,
            collection or (),
            study=study,
            heads=[each.value for each in head or ()],
            effort=Effort(trials, outer, inner),
            variants=variants or VARIANTS,
            processes=processes,
            cache=FeatureCache(cache or default_folder()),
            progress=report,
        )
    if output is not None:
        write_settings(output, found.settings)
    if format_ is Format.markdown:
        write(found.table().to_markdown())
    elif format_ is Format.json:
        import json

        write(json.dumps(found.as_dict(), indent=2))
    else:
        write(rendered(table_of(found.table())))
