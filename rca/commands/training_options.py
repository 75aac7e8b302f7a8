"""Options that the commands which fit models have in common."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """How a result is written."""

    table = "table"
    markdown = "markdown"
    json = "json"


Seed = Annotated[
    int | None, typer.Option("--seed", min=0, help="Seed of everything. [default: as the shipped bundle]")
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
        help="Where features, and what else is kept between runs, are. "
        "[default: ~/.cache/straggler-rca/examples]",
    ),
]
Result = Annotated[Format, typer.Option("--format", "-f", help="How to write the result.")]
