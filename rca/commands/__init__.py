"""Commands of the `rca` command line, one module each, imported only when they run.

A command is one module with a function ``command`` and a string ``EXAMPLES`` (one per line), and one line in
`COMMANDS`. A group of subcommands has a ``typer.Typer`` named ``app`` instead. The first line of the
function's docstring is its line in ``rca --help``. Heavy imports are inside the function.
"""

from __future__ import annotations

COMMANDS: tuple[str, ...] = (
    "diagnose",
    "jobs",
    "plan",
    "act",
    "runbook",
    "incidents",
    "validate",
    "what-if",
    "serve",
    "sweep",
    "evaluate",
    "simulate",
    "testbed",
    "train",
    "generalise",
    "tune",
    "models",
    "signals",
    "sources",
    "mcp",
    "version",
)
#: Groups that work on the service's own data; their modules are in `rca_api.commands`.
SERVICE_COMMANDS: tuple[str, ...] = ("watch", "worker", "keys", "db", "feedback")
