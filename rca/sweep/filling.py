"""Fill a data set: everything of an archive that has no row yet gets one, made on workers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from rca.errors import InvalidInput, RcaError, TooLarge
from rca.sweep.archive import Found
from rca.sweep.data_set import REFUSED, DataSet, Row, printable
from rca.workers import Workers

#: Rows of a part, and the longest time that a row waits for its part, seconds.
PART_ROWS, PART_SECONDS = 512, 20.0

Progress = Callable[[int, int], None]


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
    make: Callable[[Found], Row],
    maker: str,
    *,
    workers: Workers,
    n_windows: Callable[[Sequence[Found]], int] = len,
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
    n_windows : callable
        How many windows take as long as what has no row yet: for few no workers start.
    chunk : int
        Rows of one task.
    progress : callable
        ``(done, total)`` windows or traces.
    retry : bool
        Try everything again that has an error.

    Raises
    ------
    InvalidInput
        If only this machine reads an archive, and the workers are on others.
    """
    data.prepare()
    known = data.known(refused=not retry)
    todo = [each for each in every if (printable(each.url), each.version, maker) not in known]
    local = next((each.url for each in todo if each.is_local), None)
    if local is not None and not workers.share_files:
        raise InvalidInput(
            f"{local}: the workers of a scheduler cannot read it",
            hint="name the archive by a URL that they read: s3://..., gs://..., or file:///FOLDER if the "
            "folder is mounted at the same place on all machines",
        )
    done = Swept(len(every), len(every) - len(todo))
    progress(done.kept, done.found)
    guarded = _Guarded(make, maker, type(data))
    rows = workers.for_few(n_windows(todo)).map(guarded.row, todo, chunk=chunk, lost=guarded.lost)
    for part in _parts(rows):
        data.write(part)
        done.count(part, data.outcome)
        progress(done.kept + done.outcomes.total(), done.found)
    return done


@dataclass(frozen=True)
class _Guarded:
    """One bad window or trace does not end a sweep, whatever it does."""

    make: Callable[[Found], Row]
    maker: str
    kind: type[DataSet]

    def row(self, found: Found) -> Row:
        try:
            return self.make(found)
        except RcaError as error:
            return self.kind.error_row(found, self.maker, error)
        except Exception as error:
            text = f"a defect of straggler-rca, please report it: {type(error).__name__}: {error}"
            return self.kind.error_row(found, self.maker, RcaError(text))

    def lost(self, found: Found) -> Row:
        ended = TooLarge("several workers in a row ended with it; mostly they lack memory")
        return self.kind.error_row(found, self.maker, ended)


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
    finally:
        if held:
            yield held
