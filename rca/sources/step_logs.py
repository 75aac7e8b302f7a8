"""Step lines of trainers' logs: each with a step's number, and its time or when it was written.

Many trainers report every n-th step only. A row then stands for the steps since the report before, with their
mean.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rca.errors import InvalidInput
from rca.sources.logs.text_lines import TextLine, lines_of
from rca.sources.source import Source
from rca.window.rows.validation import MAX_WORLD_SIZE
from rca.window.window import Window

#: Reports of one rank, the newest ones.
MAX_REPORTS = 20_000
#: Loops of one rank.
MAX_LOOPS = 64
#: Seconds of the units of Keras.
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
MARKS = re.compile(
    rb"completed step: \d+, seconds: \d|train_step_timing in s[=:]|\d/\d+ \[(?:\d+:)?\d+:\d\d<"
    rb"|\d/\d+ (?:\[[=>.]+\] -|[^ -~]+) [^\n]{0,80}\d[mu]?s/step|\"_step\": ?\d"
    rb"|\d\d:\d\d:\d\d[^\n]{0,120}\b(?:global_)?step[s]?[ :=]{1,8}\d",
    re.MULTILINE,
)
#: Forms of a line: MaxText; NeMo; W&B's history, with its names in two orders; tqdm, as of the Hugging Face
#: Trainer and Lightning; Keras 2 and 3; others with a time.
_FORMS = (
    re.compile(r"completed step: (?P<step>\d{1,12}+), seconds: (?P<seconds>\d{1,9}+(?:\.\d{1,9}+)?+)"),
    re.compile(
        r"\b(?:global_)?step[s]?[ :=]{1,8}(?P<step>\d{1,12}+)\b.{0,400}?"
        r"train_step_timing in s[=:] ?(?P<seconds>\d{1,9}+(?:\.\d{1,9}+)?+)"
    ),
    re.compile(r'"_step": ?(?P<step>\d{1,12}+)\b.{0,400}?"_timestamp": ?(?P<unix>\d{9,10}+(?:\.\d{1,9}+)?+)'),
    re.compile(r'"_timestamp": ?(?P<unix>\d{9,10}+(?:\.\d{1,9}+)?+)\b.{0,400}?"_step": ?(?P<step>\d{1,12}+)'),
    re.compile(r"\b(?P<step>\d{1,12}+)/(?P<total>\d{1,12}+) \[(?P<elapsed>(?:\d{1,4}+:)?\d{1,2}+:\d\d)<"),
    re.compile(
        r"\b(?P<step>\d{1,12}+)/(?P<total>\d{1,12}+) (?:\[[=>.]{1,60}+\] -|[^ -~]{1,60}+) .{0,60}?"
        r"\b(?P<mean>\d{1,9}+)(?P<unit>[mu]?s)/step"
    ),
    re.compile(r"\d\d:\d\d:\d\d.{0,120}?\b(?:global_)?step[s]?[ :=]{1,8}(?P<step>\d{1,12}+)\b"),
)


class _Report(NamedTuple):
    """A step that was reported; `at` is in Unix seconds or since the begin of a progress bar."""

    step: int
    at: float
    seconds: float


@dataclass
class _Loop:
    """Reports of one loop, such as the training; an evaluation has another number of steps.

    Attributes
    ----------
    before : int
        Steps of earlier rounds of the loop, as of Keras' epochs.
    """

    held: dict[int, _Report] = field(default_factory=dict)
    before: int = 0
    last: int = 0

    def add(self, report: _Report, total: int) -> None:
        if total and report.step < self.last and np.isfinite(report.seconds):
            self.before += total
        self.last = report.step
        step = self.before + report.step
        self.held[step] = report._replace(step=step)
        while len(self.held) > MAX_REPORTS:
            del self.held[next(iter(self.held))]


@dataclass
class _Reports:
    """Reports of one rank, of one form, by the number of steps of the loop; 0 if a line does not say it."""

    form: int
    written: float
    loops: dict[int, _Loop] = field(default_factory=dict)

    def add(self, report: _Report, total: int) -> None:
        """Add a report; of more loops the first ones are held."""
        if total in self.loops or len(self.loops) < MAX_LOOPS:
            self.loops.setdefault(total, _Loop()).add(report, total)

    @property
    def held(self) -> dict[int, _Report]:
        """The reports of the loop with most steps: the training."""
        return self.loops[max(self.loops)].held if self.loops else {}

    def rows(self, rank: int) -> list[dict[str, float]]:
        """One row for each report after the first one, or with a time of its own."""
        held = self.held
        reports = [held[step] for step in sorted(held)]
        if not reports:
            return []
        if not np.isfinite(reports[-1].at):
            ends = np.cumsum([each.seconds for each in reports])
            ends += self.written - ends[-1]
            reports = [each._replace(at=float(end)) for each, end in zip(reports, ends, strict=True)]
        elif _FORMS[self.form].groupindex.get("elapsed"):
            # A progress bar counts from its begin: the file was written at its end.
            begun = self.written - reports[-1].at
            reports = [each._replace(at=begun + each.at) for each in reports]
        found = []
        for before, each in zip([None, *reports[:-1]], reports, strict=True):
            seconds = each.seconds
            if not np.isfinite(seconds) and before is not None:
                seconds = (each.at - before.at) / (each.step - before.step)
            if np.isfinite(seconds) and seconds >= 0 and np.isfinite(each.at):
                found.append(
                    {
                        "rank": rank,
                        "step": each.step,
                        "start_time": each.at - seconds,
                        "step_seconds": seconds,
                    }
                )
        return found


def read(paths: Sequence[Path], job_id: str) -> Window:
    """Read the logs of one job into a window of the ranks that write step lines.

    Parameters
    ----------
    job_id : str
        Of the window; logs hold none.

    Returns
    -------
    Window
        With ``steps``. A log without a rank in its lines or its name is that of rank 0.

    Raises
    ------
    InvalidInput
        If no two steps have a time.
    """
    ranks: dict[int, _Reports] = {}
    for path in paths:
        for line in lines_of(path, MARKS):
            _add(ranks, line)
    rows = [row for rank, reports in sorted(ranks.items()) for row in reports.rows(rank)]
    if len(rows) < 2:
        names = ", ".join(path.name for path in paths[:3])
        raise InvalidInput(
            f"{names}: step lines, but no two steps with a time",
            hint="log the time with each step; `rca.collect` times the steps of every rank",
        )
    world_size = max(ranks) + 1
    steps = sorted({row["step"] for row in rows})
    every = int(np.median(np.diff(steps))) if len(steps) > 1 else 1
    notes = ["step lines of a trainer's log: durations are from line to line, so pauses are in them"]
    if every > 1:
        notes.append(f"one report in {every} steps: values are means over them")
    if len(ranks) == 1:
        notes.append("one rank writes the log: it stands for the job, and no straggler is seen")
    start = min(row["start_time"] for row in rows)
    end = max(row["start_time"] + row["step_seconds"] for row in rows)
    job = {"job_id": job_id, "world_size": world_size, "start": start, "end": max(end, start + 1e-3)}
    window = Window.from_tables(job, rows)
    return replace(window, notes=(*window.notes, *notes))


def _add(ranks: dict[int, _Reports], line: TextLine) -> None:
    found = ((number, form.search(line.text)) for number, form in enumerate(_FORMS))
    number, match = next(((n, each) for n, each in found if each is not None), (0, None))
    if match is None:
        return
    rank = line.rank if line.rank is not None else line.task if line.task is not None else 0
    if rank >= MAX_WORLD_SIZE:
        raise InvalidInput(f"{line.path.name}: rank {rank:,} is above {MAX_WORLD_SIZE - 1:,}")
    groups = match.groupdict()
    seconds = float(groups["seconds"]) if groups.get("seconds") else np.nan
    if groups.get("mean"):
        seconds = float(groups["mean"]) * _UNITS[groups["unit"]]
    at = _elapsed(groups["elapsed"]) if groups.get("elapsed") else line.time
    at = float(groups["unix"]) if groups.get("unix") else at
    reports = ranks.setdefault(rank, _Reports(number, line.written))
    if number < reports.form:
        # A form that says more about its steps came later.
        reports = ranks[rank] = _Reports(number, line.written)
    if number == reports.form and (np.isfinite(at) or np.isfinite(seconds)):
        reports.add(_Report(int(match["step"]), at, seconds), int(groups.get("total") or 0))


def _elapsed(text: str) -> float:
    """Seconds of a text such as ``3:03:39``."""
    total = 0
    for part in text.split(":"):
        total = 60 * total + int(part)
    return float(total)


SOURCE = Source(
    name="step-log",
    title="logs of trainers with step lines and their times (MaxText, NeMo, TorchTitan, tqdm and others)",
    tells="whether the job as a whole became slower; slow ranks, if each rank writes a log",
    lacks="phases, hardware and cause; who is slow, from the log of one rank",
    recognises=lambda *_: False,
    read=read,
    marks=MARKS,
)
