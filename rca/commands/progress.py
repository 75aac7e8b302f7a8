"""A progress bar per phase on a terminal, plain lines in a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Protocol

#: Phase of the imports.
LOADING = "loading modules"


def import_counted(report: ProgressReport, modules: Sequence[str]) -> None:
    """Import modules that take seconds, and report how many of them are loaded."""
    report(LOADING, 0, len(modules))
    for done, each in enumerate(modules, start=1):
        import_module(each)
        report(LOADING, done, len(modules))


class ProgressReport(Protocol):
    """``report(phase, done, total)``; a total of 0 is a message without an amount."""

    def __call__(self, phase: str, done: int, total: int) -> None:
        """Report the progress of a phase."""


@contextmanager
def progress() -> Iterator[ProgressReport]:
    """Bars on stderr with the estimated remaining time; stdout has the command's answer only."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, int] = {}

        def report(phase: str, done: int, total: int) -> None:
            if total == 0:
                console.print(phase)
                return
            if phase not in tasks:
                # Earlier work of a resumed run must not count as speed.
                tasks[phase] = bars.add_task(phase, total=total, completed=done)
                if not console.is_terminal:
                    console.print(f"{phase}: {total:,}")
            bars.update(tasks[phase], completed=done)  # type: ignore[arg-type]

        yield report
