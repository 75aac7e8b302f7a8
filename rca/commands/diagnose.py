"""`rca diagnose`: a window in, a diagnosis out."""

from __future__ import annotations

import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rca.commands.prometheus_options import NO_OPTIONS, PrometheusOptions, takes_prometheus
from rca.errors import InvalidInput, InvalidWindow, RcaError, TooLarge
from rca.process import start_quickly
from rca.terminal import VERDICT_CODES, fail, rendered, write

if TYPE_CHECKING:
    from rca.diagnosis.result import Diagnosis
    from rca.window.window import Window

EXAMPLES = """
rca diagnose data/windows/cpu-contention-node
rca diagnose window.json --format json | jq '.causes[0]'
rca diagnose - --output incident.html < window.json
kubectl logs POD | rca diagnose -
rca diagnose dumps/                                who stopped the job, by flight recorder dumps
rca diagnose now.json --earlier yesterday.json    is all of it slower than it was?
rca diagnose window.json --topology topology.conf    which switch do the slow ranks share?
rca diagnose --prometheus http://prometheus:9090 --job llama-70b --since 30m
rca diagnose collected --prometheus http://prometheus:9090 --job llama-70b   step times and exporters
"""
# One file must not be able to take all memory of the machine it is looked at on.
MAX_BYTES = 1024**3


class DiagnosisFormat(StrEnum):
    """How the diagnosis is written."""

    json = "json"
    markdown = "markdown"
    html = "html"
    slack = "slack"
    table = "table"


_BY_SUFFIX = {
    ".json": DiagnosisFormat.json,
    ".md": DiagnosisFormat.markdown,
    ".html": DiagnosisFormat.html,
    ".txt": DiagnosisFormat.table,
}


@takes_prometheus()
def command(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATH]",
            show_default=False,
            help="A window: its directory, a JSON or Arrow file, or - for stdin. "
            "Or files of a source, such as a folder of flight recorder dumps (rca sources). "
            "With --prometheus and --job: its steps, beside the exporters of that job.",
        ),
    ] = None,
    format_: Annotated[
        DiagnosisFormat | None,
        typer.Option(
            "--format",
            "-f",
            help="Default: table on a terminal, markdown in a pipe, by the suffix with --output.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here instead of stdout.")
    ] = None,
    earlier: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="The same job while it ran as usual, over before this window: shows what slows all ranks "
            "alike from the first step to the last.",
        ),
    ] = None,
    topology: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Which PCIe switch, NIC and leaf switch serve each GPU: Slurm's topology.conf or .yaml, "
            "kubectl get nodes -o json, nvidia-smi topo -m, NCCL_TOPO_DUMP_FILE, or a file of your own. "
            "May be given several times.",
        ),
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Model bundle to use. [default: the shipped one]")
    ] = None,
    priors: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="RCA_PRIORS",
            help='How often each slow cause occurs on this cluster: {"nic_degradation": 12, ...}, any unit.',
        ),
    ] = None,
    node_odds: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="RCA_NODE_ODDS",
            help='How much likelier than others nodes are at fault, by their history: {"node-17": 4, ...}.',
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print the internal names of signals.")
    ] = False,
    asked: PrometheusOptions = NO_OPTIONS,
) -> None:
    """Diagnose one telemetry window.

    Exit codes: 0 healthy, 10 fail-slow, 20 fail-stop, 30 undecided, 2 bad input.
    With --format json errors are one JSON object on stderr.
    """
    chosen = format_ or _default_format(output)
    try:
        # Errors are all that stderr has for programs.
        window = window_of(path, asked, quiet=chosen is DiagnosisFormat.json)
        window = served_by(window, topology)
        diagnosis = _diagnose(window, path, earlier, bundle, priors, node_odds)
    except RcaError as error:
        fail(error, as_json=chosen is DiagnosisFormat.json)
    text = _render(diagnosis, chosen, window, verbose=verbose, path=None if path == "-" else path)
    write(text, output, quiet=format_ is DiagnosisFormat.json)
    raise typer.Exit(VERDICT_CODES[diagnosis.verdict])


def read(path: str) -> Window:
    """Read a window from a path, or from standard input for ``-``."""
    start_quickly()
    import rca

    if path != "-":
        return rca.read_window(path, max_bytes=MAX_BYTES)
    return of_content(read_stdin())


def of_content(content: bytes) -> Window:
    """The window of a content: a window in its encodings, or a log or another file of a source."""
    import rca
    from rca.sources.registry import read_files

    try:
        return rca.read_window(content, max_bytes=MAX_BYTES)
    except InvalidWindow as error:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "stdin"
            path.write_bytes(content)
            try:
                found = read_files(path)
            except InvalidInput:
                # It is no file of a source either.
                found = None
        if found is None:
            raise error
        return found


def window_of(path: str | None, asked: PrometheusOptions, *, quiet: bool) -> Window:
    """The window of a path, of Prometheus, or of both."""
    if path is not None and (asked.job is None or asked.url is None):
        asked.refuse_any()
        return read(path)
    if path is not None:
        return asked.beside(read(path), quiet=quiet)
    if asked.url is None:
        raise InvalidInput("nothing to diagnose", hint="give a PATH, or --prometheus URL and --job NAME")
    start_quickly()
    return asked.read(quiet=quiet)


def served_by(window: Window, files: list[Path] | None) -> Window:
    """The window with the switches and NICs of its GPUs that the files give."""
    if not files:
        return window
    from rca.window.topology import with_topology

    return with_topology(window, files)


def _read_earlier(path: str) -> Window:
    try:
        return read(path)
    except RcaError as error:
        raise error.restated(f"the earlier window: {error.message}") from error


def read_stdin() -> bytes:
    """Everything on standard input, up to the limit of a window."""
    pieces: list[bytes] = []
    size = 0
    # In pieces: one read of at most MAX_BYTES would claim that much memory first.
    while piece := sys.stdin.buffer.read(1 << 20):
        size += len(piece)
        if size > MAX_BYTES:
            raise TooLarge(f"standard input goes on beyond the limit of {MAX_BYTES:,} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _diagnose(
    window: Window,
    path: str | None,
    earlier: str | None,
    bundle: Path | None,
    priors: Path | None,
    node_odds: Path | None,
) -> Diagnosis:
    # Before anything that imports Arrow: it must not import pandas as well.
    start_quickly()
    import rca
    from rca.classify.operator_inputs import read_node_odds, read_priors

    if path == earlier == "-":
        raise InvalidInput("standard input is one window: give the other one as a file")
    return rca.diagnose(
        window,
        earlier=_read_earlier(earlier) if earlier is not None else None,
        bundle=rca.Bundle.load(bundle) if bundle is not None else None,
        priors=read_priors(priors) if priors is not None else None,
        node_odds=read_node_odds(node_odds) if node_odds is not None else None,
    )


def _default_format(output: Path | None) -> DiagnosisFormat:
    if output is not None:
        if output.suffix and output.suffix.lower() not in _BY_SUFFIX:
            raise typer.BadParameter(
                f"{output.suffix} says no format: use {', '.join(_BY_SUFFIX)}, or --format",
                param_hint="--output",
            )
        return _BY_SUFFIX.get(output.suffix.lower(), DiagnosisFormat.markdown)
    return DiagnosisFormat.table if sys.stdout.isatty() else DiagnosisFormat.markdown


def _render(
    diagnosis: Diagnosis, chosen: DiagnosisFormat, window: Window, *, verbose: bool, path: str | None
) -> str:
    if chosen is DiagnosisFormat.json:
        return diagnosis.to_json(indent=2)
    from rca.runbook import render

    if chosen is DiagnosisFormat.table:
        return rendered(render(diagnosis, "terminal", verbose=verbose, path=path))
    if chosen is DiagnosisFormat.slack:
        return render(diagnosis, "slack")
    if chosen is DiagnosisFormat.html:
        return render(diagnosis, "html", verbose=verbose, window=window)
    return render(diagnosis, "markdown", verbose=verbose, path=path)
