"""Common options of the commands that fit models."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class ResultFormat(StrEnum):
    """Output format of a result."""

    table = "table"
    json = "json"


Seed = Annotated[
    int | None,
    typer.Option(
        "--seed", min=0, help="Seed of the simulation and the fits. [default: as the shipped bundle]"
    ),
]
Settings = Annotated[
    Path | None,
    typer.Option("--settings", metavar="FILE", help="LightGBM's settings, as `rca tune` writes them."),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        metavar="DIR",
        envvar="RCA_CACHE_DIR",
        help="Folder of features and finished folds, kept between runs. "
        "[default: ~/.cache/straggler-rca/examples]",
    ),
]
Result = Annotated[ResultFormat, typer.Option("--format", "-f", help="Output format.")]
