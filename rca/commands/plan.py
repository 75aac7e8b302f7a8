"""`rca plan`: what to do about a slow or stopped job, at which price."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rca.commands.diagnose import MAX_BYTES, of_content, read, read_stdin, served_by, window_of
from rca.commands.prometheus_options import NO_OPTIONS, PrometheusOptions, takes_prometheus
from rca.errors import InvalidInput, RcaError, SourceError
from rca.files import read_file
from rca.process import start_quickly
from rca.terminal import fail, rendered, write

if TYPE_CHECKING:
    from rca.diagnosis.result import Diagnosis
    from rca.window.window import Window

EXAMPLES = """
rca plan data/windows/nic-rate-limited                       every action with gain, cost and risk
rca plan window.json --verbose                               and why the other actions do not apply
rca plan window.json --restart-seconds 240 --steps-left 5000
rca plan window.json --site site.yaml --format json | jq .first
rca diagnose window.json --format json | rca plan -          the diagnosis is enough
rca plan --prometheus http://prometheus:9090 --job llama-70b
"""


class PlanFormat(StrEnum):
    """How the plan is written."""

    json = "json"
    markdown = "markdown"
    table = "table"


@takes_prometheus()
def command(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATH]",
            show_default=False,
            help="A window, as for `rca diagnose`, or the JSON of a diagnosis; `-` reads standard input. A "
            "diagnosis alone keeps its prices of actions that change the ranks' work.",
        ),
    ] = None,
    site: Annotated[
        Path | None,
        typer.Option(metavar="FILE", envvar="RCA_SITE", help="YAML with the site's costs and limits."),
    ] = None,
    restart_seconds: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Time of a restart. [default: the job's hint, else 600]"),
    ] = None,
    checkpoint_seconds: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Between two checkpoints. [default: the job's hint, else 1800]"),
    ] = None,
    steps_left: Annotated[
        int | None,
        typer.Option(metavar="N", help="Steps until the job ends; later gains do not count."),
    ] = None,
    seconds_lost: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Cost of the incident before this window. [default: 0]"),
    ] = None,
    pool_nodes: Annotated[
        int | None,
        typer.Option(metavar="N", help="Nodes of the pool; a fifth may be out of service."),
    ] = None,
    nodes_out: Annotated[
        int | None, typer.Option(metavar="N", help="Nodes of the pool that are out already. [default: 0]")
    ] = None,
    nics_per_node: Annotated[
        int | None, typer.Option(metavar="N", help="Network interfaces of a node for collectives.")
    ] = None,
    topology: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Switches and NICs of the GPUs of a window, as for `rca diagnose`; repeatable.",
        ),
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Model bundle to use. [default: the shipped one]")
    ] = None,
    format_: Annotated[
        PlanFormat | None,
        typer.Option("--format", "-f", help="Default: table on a terminal, markdown in a pipe."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here instead of stdout.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also say why each other action does not apply.")
    ] = False,
    asked: PrometheusOptions = NO_OPTIONS,
) -> None:
    """Plan the recovery of a slow or stopped job.

    Every action is listed with the seconds per step that it saves, its cost, when it pays off and its risk.
    Or there is the reason against it. Light actions come first. A heavy one is due when the loss that it ends
    equals its cost, which is never worse than twice the best.

    Exit codes: 0 planned, 2 bad input.
    """
    chosen = format_ or (PlanFormat.table if sys.stdout.isatty() and output is None else PlanFormat.markdown)
    given = {
        "restart_seconds": restart_seconds,
        "checkpoint_seconds": checkpoint_seconds,
        "steps_left": steps_left,
        "seconds_lost": seconds_lost,
        "pool_nodes": pool_nodes,
        "nodes_out": nodes_out,
        "nics_per_node": nics_per_node,
    }
    try:
        from rca.recovery.site import Site

        changes = {name: value for name, value in given.items() if value is not None}
        limits = Site.checked(changes) if site is None else Site.read(site, changes)
        diagnosis, window = diagnosed(path, bundle, topology, asked)
        from rca.diagnosis.planning import plan

        found = plan(diagnosis, window, site=limits)
    except RcaError as error:
        fail(error, as_json=chosen is PlanFormat.json)
    if chosen is PlanFormat.json:
        write(found.model_dump_json(indent=2), output, quiet=True)
        return
    from rca.runbook.plan_page import plan_markdown, plan_terminal

    if chosen is PlanFormat.table:
        write(rendered(plan_terminal(found, verbose=verbose)), output)
        return
    write(plan_markdown(found, verbose=verbose), output)


def diagnosed(
    path: str | None, bundle: Path | None, topology: list[Path] | None, asked: PrometheusOptions
) -> tuple[Diagnosis, Window | None]:
    """The diagnosis of a window, of a path or of Prometheus, or a stored one without its window."""
    if path is None or (asked.job is not None and asked.url is not None):
        found: Diagnosis | Window = window_of(path, asked, quiet=False)
    else:
        asked.refuse_any()
        found = diagnosis_or_window(path)
    from rca.diagnosis.result import Diagnosis

    if isinstance(found, Diagnosis):
        if bundle is not None or topology:
            raise InvalidInput(
                "a stored diagnosis needs no bundle and no topology",
                hint="give the window itself, or neither --bundle nor --topology",
            )
        return found, None
    import rca

    window = served_by(found, topology)
    return rca.diagnose(window, bundle=None if bundle is None else rca.Bundle.load(bundle)), window


def diagnosis_or_window(path: str) -> Diagnosis | Window:
    """Read a stored diagnosis or a window, from a path or from standard input for ``-``."""
    piped = read_stdin() if path == "-" else None
    if piped is None and not Path(path).exists():
        raise SourceError(
            f"{path}: no such file or directory",
            hint="give the path of the window, or write the file first: rca diagnose WINDOW -o answer.json",
        )
    known = _stored(Path(path)) if piped is None else _diagnosis("standard input", piped)
    if known is not None:
        return known
    start_quickly()
    return read(path) if piped is None else of_content(piped)


def _stored(path: Path) -> Diagnosis | None:
    """The diagnosis that a JSON file holds; None for other files."""
    if path.suffix.lower() != ".json" or not path.is_file() or path.stat().st_size > MAX_BYTES:
        return None
    return _diagnosis(str(path), read_file(path))


def _diagnosis(name: str, content: bytes) -> Diagnosis | None:
    if b'"diagnosis_id"' not in content:
        return None
    from pydantic import ValidationError

    from rca.diagnosis.result import Diagnosis

    try:
        return Diagnosis.model_validate_json(content)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise InvalidInput(f"{name} is no whole diagnosis: {place or 'not JSON'}") from None
