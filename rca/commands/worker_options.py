"""Options of the commands that use several processes, or a Dask cluster."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from rca.process import usable_cores

if TYPE_CHECKING:
    from rca.workers import Workers

Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        min=1,
        help="Worker processes on this machine; no influence on the result. [default: cores]",
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        metavar="ADDRESS",
        envvar="RCA_DASK_SCHEDULER",
        help="Dask scheduler whose workers do the work, such as tcp://HOST:8786. [default: this machine]",
    ),
]


def workers_of(processes: int | None, scheduler: str | None) -> Workers:
    """The workers that the options name; by default one process per core, if Dask is installed."""
    from rca.workers import Workers

    if processes is None:
        processes = usable_cores() if find_spec("distributed") else 1
    return Workers(processes, scheduler)
