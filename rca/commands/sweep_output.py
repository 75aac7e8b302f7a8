"""What `rca sweep run` and `rca sweep what-if` print when they end, and their reports have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from rca.terminal import write

if TYPE_CHECKING:
    from rca.sweep import Swept

#: Rows of a table on a terminal, and refused files.
SHOWN, SHOWN_REFUSED = 10, 10


def say_done(done: Swept, output: str, found: str, kept: str) -> None:
    """Print the counts of a sweep, and on stderr what was refused.

    Parameters
    ----------
    output : str
        Folder of the data set.
    found, kept : str
        What was swept, and what the data set has of it, such as "windows" and "answer".
    """
    for url, reason in done.refused[:SHOWN_REFUSED]:
        typer.echo(f"refused: {url}: {reason}", err=True)
    if len(done.refused) > SHOWN_REFUSED:
        typer.echo(f"and {len(done.refused) - SHOWN_REFUSED} more: rca sweep report {output}", err=True)
    counts = ", ".join(f"{n:,} {name.replace('_', '-')}" for name, n in sorted(done.outcomes.items()))
    article = "an" if kept[0] in "aeiou" else "a"
    write(
        f"{done.found:,} {found}, {done.kept:,} with {article} {kept} before: {counts or 'nothing to do'}\n"
        f"{kept}s in {output}; next: rca sweep report {output}"
    )


def refused_lines(refused: list[tuple[str, str]]) -> list[str]:
    """The first refused files with their reasons, for a report."""
    lines = [f"refused: {url}: {reason}" for url, reason in refused[:SHOWN_REFUSED]]
    if len(refused) > SHOWN_REFUSED:
        lines.append(f"and {len(refused) - SHOWN_REFUSED:,} more; --format json has all")
    return lines
