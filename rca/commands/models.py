"""`rca models`: list, compare, promote and roll back registered bundles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rca.commands.progress import progress
from rca.commands.worker_options import Processes, Scheduler, workers_of
from rca.terminal import OutputFormat, rendered, write

if TYPE_CHECKING:
    from rich.table import Table

    from rca.lab.training.promotion import Promotion
    from rca.lab.training.registry import RegisteredVersion, Registry

#: Exit code of a promotion that the gate refuses.
REFUSED = 3
#: Column -> metric of a version's run.
COLUMNS = {
    "failure mode": "test_failure_mode_accuracy_value",
    "false alarms": "test_false_alarm_rate_value",
    "ranks exact": "test_ranks_exact_value",
    "cause AC@1": "test_cause_ac_at_1_value",
}

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, show, promote, roll back, retry and fetch registered bundles.",
    epilog="\b\nExamples:\n"
    "  rca models list\n"
    "  rca models show challenger --card\n"
    "  rca models promote --collection my-incidents     exit code 3 if the gate refuses\n"
    "  rca models rollback --reason 'blames healthy nodes'\n"
    "  rca models fetch champion --output champion      for `rca diagnose --bundle`",
)


Uri = Annotated[
    str | None,
    typer.Option(
        "--tracking-uri",
        envvar=["RCA_TRACKING_URI", "MLFLOW_TRACKING_URI"],
        help="MLflow store. [default: that of the service]",
    ),
]
As = Annotated[OutputFormat, typer.Option("--format", "-f", help="Output format.")]
Version = Annotated[str, typer.Argument(metavar="VERSION", help="Number or alias.")]


@app.command("list")
def list_command(tracking_uri: Uri = None, format_: As = OutputFormat.table) -> None:
    """List the registered versions, the newest first."""
    registry = _registry(tracking_uri)
    found = registry.with_scores(registry.versions())
    if format_ is OutputFormat.json:
        write(_json([_document(each) for each in found]))
        return
    if not found:
        write("no version is registered; `rca train` registers one")
        return
    from rich.table import Table

    table = Table("version", "aliases", "bundle", "trained", *COLUMNS, "gate")
    for each in found:
        scores = (_score(each, metric) for metric in COLUMNS.values())
        trained = f"{each.created:%Y-%m-%d %H:%M}"
        row = (str(each.number), ", ".join(each.aliases), each.sha256[:12], trained, *scores, _gate(each))
        table.add_row(*row)
    write(rendered(table))


@app.command("show")
def show_command(
    version: Version = "champion",
    card: Annotated[bool, typer.Option("--card", help="Print the model card instead.")] = False,
    tracking_uri: Uri = None,
    format_: As = OutputFormat.table,
) -> None:
    """Show one version: its digests, its scores with intervals, the gate's verdict; or its model card."""
    registry = _registry(tracking_uri)
    (found,) = registry.with_scores([registry.get(version)])
    if card:
        from rca.lab.training.run_record import CARD_FILE

        write(registry.document(found, CARD_FILE))
    elif format_ is OutputFormat.json:
        write(_json(_document(found)))
    else:
        write("\n".join(_facts(found)) + "\n" + rendered(_scores(found)))


@app.command("promote")
def promote_command(
    version: Version = "challenger",
    collection: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Real labelled windows to judge on as well; all collections that a version was tested on.",
        ),
    ] = None,
    windows: Annotated[
        int | None, typer.Option(min=20, help="Frozen simulated test windows. [default: 2000]")
    ] = None,
    processes: Processes = None,
    scheduler: Scheduler = None,
    force: Annotated[
        str | None,
        typer.Option(metavar="REASON", help="Promote even if the gate refuses; the reason is kept as a tag."),
    ] = None,
    tracking_uri: Uri = None,
    format_: As = OutputFormat.table,
) -> None:
    """Make a version the champion if it is no worse than the champion on the frozen test windows.

    Both versions diagnose the same windows. Without a champion the version is compared with the shipped
    bundle. Exit code 3 if the gate refuses.
    """
    from rca.lab.training.bundle_comparison import TEST_WINDOWS
    from rca.lab.training.promotion import promote

    registry = _registry(tracking_uri)
    with progress() as report, workers_of(processes, scheduler) as workers:
        result = promote(
            registry,
            version,
            collections=collection or (),
            n_windows=windows or TEST_WINDOWS,
            workers=workers,
            force=force,
            progress=report,
        )
    write(_json(result.to_document()) if format_ is OutputFormat.json else _promotion(result))
    if not result.promoted:
        raise typer.Exit(REFUSED)


@app.command("rollback")
def rollback_command(
    reason: Annotated[str, typer.Option(help="Kept as a tag of the version that is rolled back.")] = "",
    tracking_uri: Uri = None,
    format_: As = OutputFormat.table,
) -> None:
    """Make the version before the champion the champion again, without a comparison."""
    was, now = _registry(tracking_uri).rollback(reason)
    if format_ is OutputFormat.json:
        write(_json({"from": was.number, "to": None if now is None else now.number}))
        return
    left = f"version {now.number} is the champion again" if now else "the shipped bundle is used"
    write(f"version {was.number} is no longer the champion: {left}")


@app.command("retry")
def retry_command(version: Version = "champion", tracking_uri: Uri = None) -> None:
    """Let services that have rejected a version try it again, for example after a repair."""
    registry = _registry(tracking_uri)
    found = registry.get(version)
    registry.request_again(found)
    write(f"services that follow the registry try version {found.number} again at their next poll")


@app.command("fetch")
def fetch_command(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write.")],
    version: Version = "champion",
    tracking_uri: Uri = None,
) -> None:
    """Copy a version's bundle out of the registry, for `rca diagnose --bundle`."""
    from rca.errors import InvalidInput
    from rca.lab.training.registry import copy_bundle

    if output.exists():
        raise InvalidInput(f"{output} exists already", hint="name a folder that does not exist")
    registry = _registry(tracking_uri)
    found = registry.get(version)
    copy_bundle(registry, found, output)
    write(f"{output}: version {found.number}, sha256 {found.sha256}")


def _registry(uri: str | None) -> Registry:
    from rca.lab.training.registry import Registry
    from rca.lab.training.tracking import default_uri

    return Registry.existing(uri or default_uri())


def _json(content: Any) -> str:
    import orjson

    return orjson.dumps(content, option=orjson.OPT_INDENT_2).decode()


def _document(found: RegisteredVersion) -> dict[str, Any]:
    return {
        "version": found.number,
        "aliases": list(found.aliases),
        "sha256": found.sha256,
        "created": found.created.isoformat(),
        "run_id": found.run_id,
        "tags": found.tags,
        "scores": found.scores,
    }


def _score(found: RegisteredVersion, metric: str) -> str:
    return f"{found.scores[metric]:.3f}" if metric in found.scores else "-"


def _gate(found: RegisteredVersion) -> str:
    from rca.lab.training.promotion import AGAINST, FORCED, OUTCOME

    if OUTCOME not in found.tags:
        return "-"
    forced = ", forced" if FORCED in found.tags else ""
    return f"{found.tags[OUTCOME]} (against {found.tags[AGAINST]}){forced}"


def _facts(found: RegisteredVersion) -> list[str]:
    facts = {
        "version": f"{found.number}  {', '.join(found.aliases)}".rstrip(),
        "bundle": f"sha256 {found.sha256}",
        "trained": f"{found.created:%Y-%m-%d %H:%M} UTC, MLflow run {found.run_id}",
        **dict(sorted(found.tags.items())),
    }
    return [f"{name:22} {value}" for name, value in facts.items()]


def _scores(found: RegisteredVersion) -> Table:
    from rich.table import Table

    table = Table("score", "value", "95 % interval", "windows", title="held-out windows")
    for name in sorted(found.scores):
        base = name.removesuffix("_value")
        if base != name:
            low, high, n = (found.scores.get(f"{base}_{end}") for end in ("low", "high", "n"))
            interval = "-" if low is None or high is None else f"{low:.3f} .. {high:.3f}"
            table.add_row(base, f"{found.scores[name]:.3f}", interval, "-" if n is None else f"{n:.0f}")
    return table


def _promotion(result: Promotion) -> str:
    from rich.table import Table
    from rich.text import Text

    other = "the shipped bundle" if result.against is None else f"version {result.against}"
    table = Table(
        "source", "check", "champion", "challenger", "difference", "95 % interval", "windows", "finding"
    )
    for check in result.verdict.checks:
        low, high, n = check.difference.low, check.difference.high, check.difference.n
        figures = (f"{value:.4f}" for value in (check.champion, check.challenger))
        interval = f"{low:+.3f} .. {high:+.3f}"
        change = f"{check.difference.value:+.3f}"
        cells = (check.source, check.name, *figures, change, interval, str(n), check.finding)
        # The name of a collection is text, not Rich's markup.
        table.add_row(*map(Text, cells))
    lines = [f"version {result.version} against {other}: {result.verdict.outcome}"]
    lines += [f"  {reason}" for reason in result.verdict.reasons]
    lines.append(_outcome(result))
    return (rendered(table) if result.verdict.checks else "") + "\n".join(lines)


def _outcome(result: Promotion) -> str:
    if not result.promoted:
        return "not promoted; --force REASON promotes it anyway"
    forced = "" if result.forced is None else f", forced: {result.forced}"
    return f"version {result.version} is the champion now{forced}"
