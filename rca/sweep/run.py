"""The sweep: every window that has no answer yet is diagnosed on workers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from rca.diagnosis import Bundle, diagnose
from rca.errors import RcaError
from rca.sweep.answers import Answers, Row, row_of, row_of_error
from rca.sweep.archive import Found
from rca.telemetry.window import Window
from rca.workers import HERE, Workers

#: Rows of a part, and the longest time that a row waits for its part, seconds.
PART_ROWS, PART_SECONDS = 512, 20.0
#: Windows of one task: the way of a task takes as long as a tenth of a diagnosis.
CHUNK = 4

Progress = Callable[[int, int], None]
#: A window that was found; and its content, or why it cannot be read, if it was read on this machine.
_Task = tuple[Found, Window | RcaError | None]


@dataclass
class Swept:
    """What a sweep has done.

    Attributes
    ----------
    found : int
        Windows in all.
    kept : int
        Those that had an answer of this model already.
    verdicts : Counter of str
        New answers by verdict; ``refused`` are windows that could not be diagnosed.
    refused : list of (str, str)
        URL and reason of each.
    """

    found: int
    kept: int
    verdicts: Counter[str] = field(default_factory=Counter)
    refused: list[tuple[str, str]] = field(default_factory=list)

    def count(self, row: Row) -> None:
        """Count a new row."""
        self.verdicts[row["verdict"] or "refused"] += 1
        if row["error"] is not None:
            self.refused.append((row["url"], row["error_message"]))


def sweep(
    windows: Sequence[Found],
    answers: Answers,
    *,
    bundle: Bundle,
    workers: Workers = HERE,
    progress: Progress = lambda done, total: None,
) -> Swept:
    """Diagnose every window that has no answer of this bundle, and keep the answers.

    A sweep that was interrupted continues when it is repeated. Windows that cannot be read or diagnosed get a
    row with the error. A bad window is tried again when its version changes, an unreadable one every time.

    Parameters
    ----------
    windows : sequence of Found
        Of `rca.sweep.archive.archived`, or of `rca.sweep.prometheus_jobs.job_windows`. Workers read URLs
        themselves; a cluster gets the content of files.
    answers : Answers
    bundle : Bundle
    workers : Workers
        Without influence on the answers.
    progress : callable
        ``(done, total)`` windows.
    """
    known, model = answers.known(), bundle.model.sha256
    todo = [each for each in windows if (each.url, each.version, model) not in known]
    done = Swept(len(windows), len(windows) - len(todo))
    progress(done.kept, done.found)
    tasks = ((each, None) if workers.share_files else _read(each) for each in todo)
    rows = workers.for_few(len(todo)).map(_Diagnosing(bundle).row, tasks, chunk=CHUNK)
    for part in _parts(rows):
        answers.write(part)
        for row in part:
            done.count(row)
        progress(done.kept + sum(done.verdicts.values()), done.found)
    return done


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


def _read(found: Found) -> _Task:
    """The content of a window that is on this machine alone."""
    if not found.is_local:
        return found, None
    try:
        return found, found.read()
    except RcaError as error:
        return found, error


@dataclass(frozen=True)
class _Diagnosing:
    bundle: Bundle

    def row(self, task: _Task) -> Row:
        found, content = task
        model = self.bundle.model.sha256
        try:
            if isinstance(content, RcaError):
                raise content
            window = found.read() if content is None else content
            return row_of(found, model, diagnose(window, bundle=self.bundle))
        except RcaError as error:
            return row_of_error(found, model, error)
