"""Tables that people and schedulers write: a line of column names, and a line per job or incident."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from rca.errors import InvalidInput, SourceError, cut
from rca.files import read_text
from rca.sources.instants import moment_of

#: Empty lines, lines under a header, and what Excel writes for itself.
_NO_DATA = re.compile(r"[\s|+=-]*|sep=.", re.IGNORECASE)
_SEPARATORS = ("|", "\t", ";", ",")
#: What schedulers write for a value that is not known.
_UNKNOWN = frozenset({"", "unknown", "none", "<none>", "n/a", "null", "-"})
Item = TypeVar("Item")
#: Names of columns, in lower case: ours, Slurm's and Kubernetes'.
JOB = ("job", "job_id", "jobidraw", "jobid", "jobname", "name")
START = ("start", "starttime", "started", "begin")
END = ("end", "endtime", "completiontime", "ended")


def read_table(
    path: str | os.PathLike[str],
    needed: Mapping[str, Sequence[str]],
    make: Callable[[str, dict[str, str]], Item],
    other: Mapping[str, Sequence[str]] | None = None,
) -> list[Item]:
    """Read a table, and make something of each line.

    Parameters
    ----------
    path : path
        Values are separated by ``|``, tabs, ``;``, commas or spaces, and may be quoted.
    needed : mapping of str to sequence of str
        Columns, and all the names that each may have.
    make : callable
        Gets the place of a line, for messages, and its values by column. The place is added to its errors.
    other : mapping of str to sequence of str, optional
        The same for columns that may be missing; their values are then "".

    Raises
    ------
    SourceError
        If the file cannot be read.
    InvalidInput
        If it has no line, lacks a column, or a line has other columns than the first; or of `make`.
    """
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(
            f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'no text in UTF-8'}",
            hint="save it as text or CSV in UTF-8",
        ) from error
    lines = [
        (number, line) for number, line in enumerate(text.splitlines(), 1) if not _NO_DATA.fullmatch(line)
    ]
    if len(lines) < 2:
        raise InvalidInput(
            f"{path}: has no lines", hint=f"a first line {','.join(needed)}, then one per item"
        )
    separator = next((each for each in _SEPARATORS if each in lines[0][1]), None)
    header = [name.lower() for name in _cells(lines[0][1], separator)]
    places = {column: _place(path, header, names) for column, names in needed.items()}
    optional = {column: set(names).intersection(header) for column, names in (other or {}).items()}
    places |= {column: header.index(min(names)) for column, names in optional.items() if names}
    found = []
    for number, line in lines[1:]:
        cells = _cells(line, separator)
        if len(cells) != len(header):
            raise InvalidInput(f"{path}: line {number}: {len(cells)} values for {len(header)} columns")
        held = {column: cells[place] for column, place in places.items()}
        place = f"{path}: line {number}"
        try:
            found.append(make(place, dict.fromkeys(other or {}, "") | held))
        except InvalidInput as error:
            raise InvalidInput(f"{place}: {error}", hint=error.hint) from None
    return found


def known(value: str) -> str:
    """A value, or "" for what schedulers write in its place."""
    return "" if value.lower() in _UNKNOWN else value


def span_of(values: Mapping[str, str], what: str) -> tuple[float, float | None]:
    """Start and end of a line, Unix seconds; the end is None if it is not known.

    Raises
    ------
    InvalidInput
        If a time is none, or the end lies before the start.
    """
    start = moment_of(values["start"])
    end = moment_of(values["end"]) if known(values["end"]) else None
    if end is not None and end < start:
        raise InvalidInput(f"{what} ends at {cut(values['end'])}, and starts at {cut(values['start'])}")
    return start, end


def _cells(line: str, separator: str | None) -> list[str]:
    if separator is None:
        return line.split()
    return [cell.strip() for cell in next(csv.reader([line], delimiter=separator, skipinitialspace=True))]


def _place(path: str | os.PathLike[str], header: Sequence[str], names: Sequence[str]) -> int:
    for name in names:
        if name in header:
            return header.index(name)
    raise InvalidInput(
        f"{path}: no column {names[0]!r}: the first line has {', '.join(map(cut, header))}",
        hint=f"name the column {' or '.join(names)}",
    )
