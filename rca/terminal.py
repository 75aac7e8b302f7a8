"""Writes answers and errors to pipes, files and terminals."""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from rca.errors import InvalidInput, InvalidWindow, RcaError, SourceError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rca.lab.evaluation.tables import TextTable

#: Exit codes of commands that have diagnosed.
VERDICT_CODES = {"healthy": 0, "fail_slow": 10, "fail_stop": 20, "undecided": 30}
BAD_INPUT = 2
BROKEN_INSTALLATION = 1
BROKEN_PIPE = 141  # 128 + SIGPIPE, what a shell reports for other programs in a pipe
_PIPED_WIDTH = 120


class OutputFormat(StrEnum):
    """How a list or a result is written."""

    table = "table"
    json = "json"


def exit_code(error: RcaError) -> int:
    """2 if other input would work, 1 if the installation is broken."""
    return BAD_INPUT if isinstance(error, InvalidInput | SourceError) else BROKEN_INSTALLATION


def print_error(error: RcaError, *, as_json: bool = False) -> None:
    """Print the error, its place and the expected value to stderr, without a traceback."""
    if as_json:
        body = {"code": error.code, "detail": error.message} | error.details()
        sys.stderr.write(json.dumps(body, default=str) + "\n")
        return
    sys.stderr.write("\n".join(_lines(error)) + "\n")


def fail(error: RcaError, *, as_json: bool = False) -> NoReturn:
    """Print `error` and leave with its exit code."""
    print_error(error, as_json=as_json)
    raise typer.Exit(exit_code(error))


def _lines(error: RcaError) -> list[str]:
    from rca.runbook.phrases import clean

    if not isinstance(error, InvalidWindow):
        lines = [f"error ({error.code}): {clean(error.message)}"]
    else:
        place = error.table if error.column is None else f"{error.table}.{error.column}"
        if error.path is not None:
            place = f"{error.path}, {place}"
        lines = [f"error ({error.code}) in {clean(place)}: {clean(error.message)}"]
        if error.expected:
            lines.append(f"  expected: {clean(error.expected)}")
        if error.rows:
            lines.append(f"  offending rows: {error.n_rows:,}, the first of them:")
            shown = (", ".join(f"{key}={value!r}" for key, value in row.items()) for row in error.rows)
            lines += [f"    {clean(row)}" for row in shown]
    return [*lines, f"  hint: {clean(error.hint)}"] if error.hint else lines


def write(text: str, path: Path | None = None, *, quiet: bool = False) -> None:
    """Write `text` to `path` or standard output; end without an error if the reader is gone.

    Standard error says which file was written, unless `quiet`.
    """
    text = text if text.endswith("\n") else text + "\n"
    if path is not None:
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            fail(SourceError(f"cannot write {path}: {error.strerror}"))
        if not quiet:
            sys.stderr.write(f"written to {path}\n")
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes stdout again at exit, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(BROKEN_PIPE) from None


def console() -> Console:
    """Build a console that writes into a string."""
    from io import StringIO

    from rich.console import Console

    if sys.stdout.isatty():
        width = Console().width
        return Console(file=StringIO(), force_terminal=True, width=width)
    return Console(file=StringIO(), width=int(os.environ.get("COLUMNS") or _PIPED_WIDTH))


def rendered(renderable: object) -> str:
    """Render with Rich for standard output, with colours on a terminal only."""
    from io import StringIO

    target = console()
    target.print(renderable)
    held = target.file
    assert isinstance(held, StringIO)  # noqa: S101  (set above; for the type checker)
    # Rich fills the last column of a table with blanks.
    return "\n".join(line.rstrip() for line in held.getvalue().split("\n"))


def table_of(text: TextTable) -> Table:
    """Build a Rich table from a table of text."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*text.header, title=text.title)
    for row in text.rows:
        # Brackets are text here, not Rich's markup.
        table.add_row(*map(Text, row))
    return table
