"""`rca feedback`: what people said about diagnoses, as a labelled collection."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rca_api.commands.database import Url, ready_database, require_service

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Export feedback for training and evaluation.",
    epilog="\b\nExamples:\n"
    "  rca feedback export incidents\n"
    "  rca train --collection incidents --windows 20000\n"
    "  rca feedback export incidents --hold-out        keep a part for `rca evaluate incidents --part test`",
)


@app.callback()
def _group() -> None:
    """Keep `export` a command of its own."""


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New, empty, or of an earlier export.")],
    hold_out: Annotated[
        bool,
        typer.Option(
            "--hold-out",
            help="Let a hash of the incident choose the part: 62 % train, 12 % calibration, 14 % validation, "
            "12 % test. By default all windows are for training.",
        ),
    ] = False,
    database_url: Url = None,
) -> None:
    """Write every judged window with its label.

    Windows of one incident share a group. Windows whose judgements contradict each other are left out, and
    so are those without a cause or steps; the last lines count them.
    """
    require_service()
    from rca_api.feedback.export import export_collection
    from rca_api.shell.settings import environment, start_checks
    from rca_api.shell.store.window_store import WindowStore

    settings = environment.read() if database_url is None else environment.read(database_url=database_url)
    start_checks.check(settings, start_checks.FEEDBACK)
    windows = WindowStore(settings.window_store_url)
    with ready_database(database_url) as database, database.reading() as session:
        counts = export_collection(session, windows.get, folder, hold_out=hold_out)
    part = "train, calibration, validation and test" if hold_out else "train"
    typer.echo(f"{counts.written} windows in {folder}, for {part}")
    left_out = {
        "contradicting judgements": counts.conflicting,
        "no longer stored": counts.missing,
        "without a cause and its ranks": counts.incomplete,
        "without steps": counts.without_steps,
    }
    for reason, number in left_out.items():
        if number:
            typer.echo(f"left out: {number} {reason}")
