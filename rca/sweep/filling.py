"""Fill a data set: everything of an archive that has no row yet gets one, made on workers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rca.errors import RcaError, TooLarge
from rca.sweep.archive import Found
from rca.sweep.data_set import REFUSED, DataSet, Row, printable
from rca.workers import Workers

#: Rows of a part, and the longest time that a row waits for its part, seconds.
PART_ROWS, PART_SECONDS = 512, 20.0

Progress = Callable[[int, int], None]
#: What was found; and its content, or why it cannot be read, if it was read on this machine.
Task = tuple[Found, Any]


@dataclass
class Swept:
    """What a sweep has done.

    Attributes
    ----------
    found : int
        Windows or traces of the archive.
    kept : int
        Those that had a row of the same maker already.
    outcomes : Counter of str
        New rows by outcome; ``refused`` are those that could not be used.
    refused : list of (str, str)
        URL and reason of each.
    """

    found: int
    kept: int
    outcomes: Counter[str] = field(default_factory=Counter)
    refused: list[tuple[str, str]] = field(default_factory=list)

    def count(self, rows: Sequence[Row], column: str) -> None:
        """Count new rows by a column."""
        self.outcomes.update(row[column] or REFUSED for row in rows)
        self.refused += [(row["url"], row["error_message"]) for row in rows if row["error"] is not None]


def fill(
    every: Sequence[Found],
    data: DataSet,
    make: Callable[[Task], Row],
    maker: str,
    *,
    workers: Callable[[Sequence[Found]], Workers],
    chunk: int,
    progress: Progress,
    retry: bool = False,
) -> Swept:
    """Make and keep the rows that a data set lacks.

    A sweep that was interrupted continues when it is repeated. What cannot be used gets a row with the error.
    It is tried again when its files change, and what could not be read every time.

    Parameters
    ----------
    make : callable
        The row of what was found. It travels to workers as a pickle.
    maker : str
        What the column `DataSet.maker` of its rows has.
    workers : callable
        The workers for what has no row yet.
    chunk : int
        Rows of one task.
    progress : callable
        ``(done, total)`` windows or traces.
    retry : bool
        Try everything again that has an error.
    """
    data.prepare()
    known = data.known(refused=not retry)
    todo = [each for each in every if (printable(each.url), each.version, maker) not in known]
    done = Swept(len(every), len(every) - len(todo))
    progress(done.kept, done.found)
    chosen = workers(todo)
    tasks = ((each, None) if chosen.share_files else _read(each) for each in todo)
    guarded = _Guarded(make, maker, type(data))
    for part in _parts(chosen.map(guarded.row, tasks, chunk=chunk, lost=guarded.lost)):
        data.write(part)
        done.count(part, data.outcome)
        progress(done.kept + done.outcomes.total(), done.found)
    return done


@dataclass(frozen=True)
class _Guarded:
    """One bad window or trace does not end a sweep, whatever it does."""

    make: Callable[[Task], Row]
    maker: str
    kind: type[DataSet]

    def row(self, task: Task) -> Row:
        try:
            return self.make(task)
        except Exception as error:
            return self.kind.error_row(task[0], self.maker, _known(error))

    def lost(self, task: Task) -> Row:
        ended = TooLarge("several workers in a row ended with it; mostly they lack memory")
        return self.kind.error_row(task[0], self.maker, ended)


def content_of(task: Task) -> Any:
    """What was read on the other machine, else what is read here.

    Raises
    ------
    RcaError
        If it could not be read there, or cannot be read here.
    """
    found, content = task
    if isinstance(content, RcaError):
        raise content
    return found.read() if content is None else content


def _parts(rows: Iterator[Row]) -> Iterator[Sequence[Row]]:
    """Rows in parts: those that exist are given also if the next one raises, such as after an interrupt."""
    held: list[Row] = []
    began = time.monotonic()
    try:
        for row in rows:
            held.append(row)
            if len(held) >= PART_ROWS or time.monotonic() - began > PART_SECONDS:
                part, held, began = held, [], time.monotonic()
                yield part
    except BaseException:
        if held:
            yield held
        raise
    if held:
        yield held


def _read(found: Found) -> Task:
    """The content of what is on this machine alone."""
    try:
        return found, found.read() if found.is_local else None
    except Exception as error:
        return found, _known(error)


def _known(error: Exception) -> RcaError:
    if isinstance(error, RcaError):
        return error
    return RcaError(f"a defect of straggler-rca, please report it: {type(error).__name__}: {error}")
