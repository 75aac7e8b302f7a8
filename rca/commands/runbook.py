"""`rca runbook`: what to do about a cause, with commands to copy."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rca.commands.completion import causes
from rca.commands.prometheus_options import NO_OPTIONS, PrometheusOptions, takes_prometheus
from rca.errors import InvalidInput, RcaError
from rca.terminal import fail, write

if TYPE_CHECKING:
    from rca.runbook.procedures import DiagnosedCause, Library
    from rca.runbook.procedures.sources import Platform

EXAMPLES = """
rca runbook gpu_throttling
rca runbook nic_degradation --platform slurm --format markdown
rca diagnose window.json --format json > answer.json; rca runbook --diagnosis answer.json
rca runbook --diagnosis window.json --platform kubernetes      with GPUs and PCI addresses of its ranks
rca runbook --prometheus http://prometheus:9090 --job llama-70b
rca runbook --list
"""


class RunbookFormat(StrEnum):
    """How the runbook is written."""

    text = "text"
    markdown = "markdown"
    json = "json"


class PlatformName(StrEnum):
    """Where the commands run."""

    kubernetes = "kubernetes"
    slurm = "slurm"
    host = "host"


@takes_prometheus()
def command(
    cause: Annotated[
        str | None,
        typer.Argument(
            metavar="[CAUSE]",
            show_default=False,
            autocompletion=causes,
            help="A cause of the catalogue, or unknown. By default the first cause of the diagnosis.",
        ),
    ] = None,
    diagnosis: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            show_default=False,
            help="JSON of a diagnosis, or a window: fills nodes, ranks and devices into the commands.",
        ),
    ] = None,
    topology: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="With a window: as for `rca diagnose`; names its adapters."),
    ] = None,
    platform: Annotated[
        PlatformName | None,
        typer.Option("--platform", "-p", help="Where the job runs. [default: the site's, else host]"),
    ] = None,
    format_: Annotated[
        RunbookFormat, typer.Option("--format", "-f", help="Output format.")
    ] = RunbookFormat.text,
    runbooks: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", envvar="RCA_RUNBOOKS", help="Folder with the site's own runbooks and values."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here instead of stdout.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List all runbooks.")] = False,
    asked: PrometheusOptions = NO_OPTIONS,
) -> None:
    """Show the runbook of a cause: verify, contain, fix, roll back, escalate, confirm.

    Steps that change something are marked, and each has a line in the roll back. Words in capitals stand
    for what is not known; the head of the page says how to find them.

    Exit codes: 0 shown, 2 bad input.
    """
    try:
        from rca.runbook.procedures import Library

        library = Library.read(runbooks)
        if cause is not None:
            # Before the diagnosis, which may take a second.
            library.source(cause)
        if list_:
            shown = _listed(library, format_)
        else:
            incident = None
            if diagnosis is not None or asked.given():
                cause, incident = _incident(cause, diagnosis, topology, asked)
            shown = _shown(library, cause, incident, None if platform is None else platform.value, format_)
    except RcaError as error:
        fail(error, as_json=format_ is RunbookFormat.json)
    write(shown, output, quiet=format_ is RunbookFormat.json)


def _listed(library: Library, format_: RunbookFormat) -> str:
    import orjson

    from rca.window.causes import SPECS

    rows = [
        {
            "cause": cause,
            "meaning": SPECS[cause].meaning,
            "owner": SPECS[cause].owner,
            "of_site": cause in library.of_site,
        }
        for cause in library.runbooks
    ]
    if format_ is RunbookFormat.json:
        return orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode()
    if format_ is RunbookFormat.markdown:
        return "\n".join(f"- `{row['cause']}`: {row['meaning']} ({row['owner']})" for row in rows)
    width = max(len(cause) for cause in library.runbooks)
    return "\n".join(f"{row['cause']:<{width}}  {row['meaning']} ({row['owner']})" for row in rows)


def _shown(
    library: Library,
    cause: str | None,
    incident: DiagnosedCause | None,
    platform: Platform | None,
    format_: RunbookFormat,
) -> str:
    from rca.runbook.procedures import runbook
    from rca.runbook.procedures.pages import markdown, text

    if cause is None:
        raise InvalidInput("give a cause or --diagnosis", hint="rca runbook --list")
    found = runbook(library, cause, platform=platform, incident=incident)
    if format_ is RunbookFormat.json:
        return found.model_dump_json(indent=2)
    return markdown(found) if format_ is RunbookFormat.markdown else text(found)


def _incident(
    cause: str | None, path: str | None, topology: list[Path] | None, asked: PrometheusOptions
) -> tuple[str, DiagnosedCause]:
    """What a diagnosis says about a cause, by default about its first one."""
    from rca.commands.plan import diagnosed
    from rca.runbook.procedures import DiagnosedCause

    diagnosis, window = diagnosed(path, None, topology, asked)
    if cause is None:
        if not diagnosis.causes:
            raise InvalidInput("the diagnosis names no cause", hint="give one: rca runbook --list")
        cause = diagnosis.causes[0].cause
    return cause, DiagnosedCause.of(diagnosis, cause, None if window is None else window.job)
