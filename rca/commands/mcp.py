"""`rca mcp`: diagnoses, incidents and runbooks for an assistant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """
rca mcp --root /var/telemetry                                 files below this folder only
RCA_API_KEY=... rca mcp --url http://127.0.0.1:8080           with the incidents of a service
claude mcp add rca -- rca mcp --root /var/telemetry           in an assistant
"""


def command(
    root: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of windows, logs and dumps; nothing else is read.")
    ] = Path(),
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            show_default=False,
            help="Service with incidents and stored diagnoses; RCA_API_KEY holds a key of the scope read.",
        ),
    ] = None,
    runbooks: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", envvar="RCA_RUNBOOKS", help="Folder with the site's own runbooks and values."
        ),
    ] = None,
) -> None:
    """Serve an assistant over the Model Context Protocol, on standard input and output.

    Its tools diagnose a window, explain a diagnosis, show a runbook and, with --url, list incidents. They
    change nothing.

    Exit codes: 0 ended by the assistant, 1 not installed, 2 bad input.
    """
    from rca.client import Client
    from rca.commands.mcp_tools import Tools, server
    from rca.errors import SourceError
    from rca.runbook.procedures import Library

    if not root.is_dir():
        raise SourceError(f"{root} is no folder", hint="--root names a folder of windows")
    client = None if url is None else Client(url)
    server(Tools(root, Library.read(runbooks), client)).run("stdio")
