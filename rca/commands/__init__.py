"""Commands of the `rca` command line, one module each, imported only when they run.

A command is one module here with a function ``command`` and a string ``EXAMPLES`` (one a line), or, for
a group of subcommands, a ``typer.Typer`` named ``app``; and one line in `COMMANDS`. The first line of
the function's docstring is its line in ``rca --help``. Modules import what is heavy inside the function.
"""

from __future__ import annotations

COMMANDS: tuple[str, ...] = (
    "diagnose",
    "validate",
    "what-if",
    "serve",
    "evaluate",
    "realism",
    "simulate",
    "testbed",
    "train",
    "generalise",
    "tune",
    "models",
    "signals",
    "version",
)
#: Groups that work on the service's own data; their modules are in `rca_api.commands`.
SERVICE_COMMANDS: tuple[str, ...] = ("worker", "keys", "db")
