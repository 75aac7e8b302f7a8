"""Megatron-LM's timers in a job log: the phases of each rank, if ``--timing-log-option all`` is set.

The line of an iteration has the time of its end; the block of timers follows it. Values are means over the
iterations since the last report, in milliseconds. Zeros are left out. Without ``all``, no rank is named.

References
----------
NVIDIA/Megatron-LM, ``megatron/core/timers.py`` and ``megatron/training/training.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from rca.errors import InvalidInput, cut
from rca.sources import megatron_stragglers
from rca.sources.logs.text_lines import TextLine, lines_of, mixed
from rca.sources.source import Source
from rca.sources.watchdog import window as watchdog
from rca.sources.watchdog.messages import WANTED as WATCHDOG_LINES
from rca.sources.watchdog.messages import JobLog, events_of
from rca.window.rows.validation import MAX_WORLD_SIZE
from rca.window.schema import METRICS, OPS
from rca.window.window import Window

#: A window holds the newest reports, and at most so many values (reports x ranks x timers).
MAX_REPORTS, MAX_VALUES = 2000, 40_000_000
#: Digits of an iteration's number that 64 bits hold.
_MAX_NUMBER_LENGTH = 18
MARKS = re.compile(
    rb"times? across ranks \(ms\):|elapsed time per iteration \(ms\): |^ *time \(ms\) \| ", re.MULTILINE
)
_OWN_LINES = (
    rb"times? across ranks \(ms\):|iteration +\d+/ *\d+ \||time \(ms\) \| |using world size: "
    rb"|rank +\d+: +[\d.]+[ \t]*$|^[^|\n]{0,40}  [a-z][a-z0-9/_-]*:[ \t]*$|\.\.\.: +\(?[\d.]+"
)
_WANTED = re.compile(
    _OWN_LINES + rb"|" + megatron_stragglers.MARKS.pattern + rb"|" + WATCHDOG_LINES.pattern, re.MULTILINE
)
_ITERATION = re.compile(
    r"iteration +(\d+)/ *\d+ \|(?:.*?elapsed time per iteration \(ms\): (\d{1,15}(?:\.\d+)?)(?![\d.]))?"
)
_RANK = re.compile(r"rank +(\d{1,9}): +(\d{1,15}(?:\.\d+)?)$")
_NAME = re.compile(r"(?:^|\s)([a-z][a-z0-9/_-]*):$")
_OF_ALL = re.compile(r"([a-z][a-z0-9/_-]*) \.+: +\((\d+\.\d+), (\d+\.\d+)\)")
_OLD = re.compile(r"([a-z][a-z0-9/_-]*): (\d+(?:\.\d+)?)")
_SIZE = re.compile(r"using world size: (\d{1,9})")
_SIZES = {
    "data": re.compile(r"\bdata-parallel[- ]size: (\d{1,9})"),
    "tensor": re.compile(r"\btensor-model-parallel[- ]size: (\d{1,9})"),
    "pipeline": re.compile(r"\bpipeline-model-parallel[- ]size: (\d{1,9})"),
    "context": re.compile(r"\bcontext-parallel[- ]size: (\d{1,9})"),
}
#: Timers of each phase. Exchanges include waiting for the partner.
_PHASES: Mapping[str, re.Pattern[str]] = {
    "data_loading_seconds": re.compile(r"batch-generator$"),
    "forward_seconds": re.compile(r"forward-compute$"),
    "backward_seconds": re.compile(r"backward-compute$"),
    "optimizer_seconds": re.compile(r"optimizer$"),
    "communication_seconds": re.compile(
        r"(?:forward|backward)-.*(?:send|recv)$|.*(?:all-reduce|reduce-scatter|all-gather)$|.*grads-sync$"
    ),
}
#: Timers that run while another one does: its phase is what remains.
_WITHIN = {
    "forward_seconds": ("batch-generator",),
    "optimizer_seconds": ("params-all-gather",),
}
_STOPPED = "the timers name no rank: the answer follows from the failures in the log"
_OPTION = "set --timing-log-option all and --timing-log-level 2"


@dataclass
class _Report:
    """The times of one iteration: seconds, by timer, of each rank."""

    end: float
    seconds: float
    timers: dict[str, dict[int, float]] = field(default_factory=dict)


@dataclass
class _Log:
    """All reports of a log, by iteration.

    Attributes
    ----------
    repeated : int
        Iterations that a restarted job reported again.
    spread : dict of str to list of float
        Largest over smallest value of each timer, where a log has only these.
    found_stragglers : bool
        The log has reports of the straggler detector.
    """

    job: JobLog = field(default_factory=JobLog)
    reports: dict[int, _Report] = field(default_factory=dict)
    repeated: int = 0
    dropped: int = 0
    of_one_rank: int = 0
    size_line: str = ""
    highest: int = -1
    spread: dict[str, list[float]] = field(default_factory=dict)
    values: int = 0
    found_stragglers: bool = False
    _files: dict[int, Path] = field(default_factory=dict)
    _current: _Report | None = None
    _timer: str = ""

    def add(self, line: TextLine) -> None:
        text = line.text
        iteration = _ITERATION.search(text)
        if iteration is not None:
            # Failures without a time follow it.
            self.job.clock.stamp(line)
            self._begin(iteration[1], iteration[2], line)
        elif "time across ranks (ms):" in text or "times across ranks (ms):" in text:
            self._timer = ""
        elif (rank := _RANK.search(text)) is not None:
            self._add_value(int(rank[1]), float(rank[2]))
        elif (both := _OF_ALL.search(text)) is not None:
            if self._current is not None and float(both[2]) > 0:
                self.spread.setdefault(both[1], []).append(float(both[3]) / float(both[2]))
        elif "time (ms) | " in text:
            self._add_old(text)
        elif (name := _NAME.search(text)) is not None:
            self._timer = name[1]
        elif "MnRtt/Rnk: " in text:
            self.found_stragglers = True
        else:
            if "using world size" in text:
                self.size_line = text
            self.job.add(line)

    def _begin(self, digits: str, elapsed: str | None, line: TextLine) -> None:
        self._current, self._timer = None, ""
        if elapsed is None:
            return
        if len(digits) > _MAX_NUMBER_LENGTH:
            raise InvalidInput(
                f"{line.path.name}: no job has so many iterations, in the line {cut(line.text.strip())!r}",
                hint="the line may be damaged: take it out of the log",
            )
        number = int(digits)
        before = self._files.setdefault(number, line.path)
        if before != line.path:
            raise mixed(before, line.path, f"iteration {number}")
        if number in self.reports:
            self.repeated += 1
            del self.reports[number]
        self._current = self.reports[number] = _Report(line.time, float(elapsed) / 1e3)
        while len(self.reports) > MAX_REPORTS or (self.values > MAX_VALUES and len(self.reports) > 1):
            oldest = self.reports.pop(next(iter(self.reports)))
            self.values -= sum(map(len, oldest.timers.values()))
            self.dropped += 1

    def _add_value(self, rank: int, value: float) -> None:
        if self._current is None or not self._timer:
            return
        if rank >= MAX_WORLD_SIZE:
            raise InvalidInput(f"Megatron's timers name rank {rank:,}, above {MAX_WORLD_SIZE - 1:,}")
        self.highest = max(self.highest, rank)
        self._current.timers.setdefault(self._timer, {})[rank] = value / 1e3
        self.values += 1

    def _add_old(self, text: str) -> None:
        if self._current is None:
            return
        self.of_one_rank += 1
        for name, value in _OLD.findall(text):
            self._current.timers[name] = {0: float(value) / 1e3}


def read(paths: Sequence[Path], job_id: str) -> Window:
    """Read the logs of one job into a window.

    Parameters
    ----------
    paths : sequence of Path
        Megatron writes on the last rank, or all ranks into one file.
    job_id : str
        Of the window; logs hold none.

    Returns
    -------
    Window
        With ``steps`` of every rank that is named, and ``events`` of failures in the logs. If no rank is
        named, it has one rank that stands for the job; its notes say so.

    Raises
    ------
    InvalidInput
        If no iteration has a time, or two files hold the same iteration: they are of two jobs or attempts.
    """
    log = _Log()
    latest_file = 0.0
    for path in paths:
        latest_file = max(latest_file, path.stat().st_mtime)
        for line in lines_of(path, _WANTED):
            log.add(line)
    names = ", ".join(path.name for path in paths[:3])
    if log.highest < 0 and log.job.tells_failure:
        stopped = watchdog.read(paths, job_id)
        return replace(stopped, notes=(*stopped.notes, _STOPPED))
    if log.highest < 0 and log.found_stragglers:
        return megatron_stragglers.read(paths, job_id)
    if not log.reports:
        raise InvalidInput(
            f"{names}: lines of Megatron's timers, but none of an iteration with its time",
            hint="set --log-interval, or the form of the lines has changed; "
            "`rca.collect` times steps without a log",
        )
    notes: list[str] = []
    log.job.place(notes)
    ends = _ends(log, latest_file, notes)
    world_size, parallelism = _sizes(log, notes)
    steps = _steps(log, ends, world_size)
    _note_gaps(log, steps, notes)
    start = float(np.min(steps["start_time"].to_numpy()))
    written = [*(each.time for each in log.job.messages), *(each.time for each in log.job.events.rows)]
    end = max([float(ends.max()), start + 1e-3, *(time for time in written if np.isfinite(time))])
    window = Window.from_tables(
        {
            "job_id": job_id,
            "framework": "megatron",
            "world_size": world_size,
            "start": start,
            "end": end,
            **({} if parallelism is None else {"parallelism": parallelism}),
        },
        steps,
        METRICS.empty(),
        events_of(log.job, world_size, end),
        OPS.empty(),
    )
    return replace(window, notes=(*window.notes, *notes))


def _ends(log: _Log, latest_file: float, notes: list[str]) -> np.ndarray:
    """When each report's iteration ended, Unix seconds, shape (n_reports,)."""
    reports = list(log.reports.values())
    ends = np.array([each.end for each in reports])
    if np.isfinite(ends).all():
        notes.append("times without a zone are taken for UTC")
        return ends
    notes.append("the iterations have no time: they are taken to end one after the other when the file does")
    seconds = np.array([each.seconds for each in reports])
    return latest_file - np.append(np.cumsum(seconds[:0:-1])[::-1], 0.0)


def _sizes(log: _Log, notes: list[str]) -> tuple[int, dict[str, int] | None]:
    """World size, and the parallel sizes if the log has them."""
    if log.highest < 0:
        return 1, None
    found = {name: int(size[1]) for name, each in _SIZES.items() if (size := each.search(log.size_line))}
    total = int(np.prod(list(found.values()), dtype=np.float64)) if found else 0
    written = _SIZE.search(log.size_line)
    world_size = max(log.highest + 1, total if written is None else int(written[1]))
    if world_size > MAX_WORLD_SIZE:
        raise InvalidInput(f"the log names a world size of {world_size:,}, above {MAX_WORLD_SIZE:,}")
    if total != world_size:
        notes.append(
            "the log does not name the parallel sizes: ranks are taken to hold the same part of the model"
        )
        return world_size, None
    return world_size, found


def _steps(log: _Log, ends: np.ndarray, world_size: int) -> pa.Table:
    """One row per report and rank that has a timer."""
    rows: dict[str, list[np.ndarray]] = {
        name: [] for name in ("rank", "step", "start_time", "step_seconds", *_PHASES)
    }
    for (number, report), end in zip(log.reports.items(), ends.tolist(), strict=True):
        timers = {name: _of_ranks(values, world_size) for name, values in report.timers.items()}
        phases = {phase: _phase(phase, pattern, timers, world_size) for phase, pattern in _PHASES.items()}
        timed = np.any([~np.isnan(values) for values in timers.values()], axis=0) if timers else None
        ranks = np.flatnonzero(timed) if timed is not None else np.arange(1)
        rows["rank"].append(ranks)
        rows["step"].append(np.full(ranks.size, number))
        rows["start_time"].append(np.full(ranks.size, end - report.seconds))
        rows["step_seconds"].append(np.full(ranks.size, report.seconds))
        for phase, values in phases.items():
            rows[phase].append(values[ranks])
    columns = {name: np.concatenate(values) for name, values in rows.items()}
    empty = [name for name in _PHASES if np.isnan(columns[name]).all()]
    return pa.table({name: pa.array(values) for name, values in columns.items() if name not in empty})


def _of_ranks(values: Mapping[int, float], world_size: int) -> np.ndarray:
    found = np.full(world_size, np.nan)
    found[list(values)] = list(values.values())
    return found


def _phase(
    phase: str, pattern: re.Pattern[str], timers: Mapping[str, np.ndarray], world_size: int
) -> np.ndarray:
    """Seconds of a phase, shape (world_size,): the sum of its timers without what ran within them."""
    own = [values for name, values in timers.items() if pattern.match(name)]
    if not own:
        return np.full(world_size, np.nan)
    total = np.where(np.isnan(own).all(axis=0), np.nan, np.nansum(own, axis=0))
    for name in _WITHIN.get(phase, ()):
        if name in timers:
            total = np.maximum(total - np.nan_to_num(timers[name]), 0.0)
    return total


def _note_gaps(log: _Log, steps: pa.Table, notes: list[str]) -> None:
    gaps = np.diff(list(log.reports))
    if gaps.size and (every := int(np.median(gaps))) > 1:
        notes.append(
            f"one report in {every} iterations: values are means over them (--log-interval 1 shows each)"
        )
    if log.repeated:
        notes.append(f"{log.repeated} iterations were repeated after a restart: the last report counts")
    if log.dropped:
        notes.append(f"{log.dropped} older reports are left out")
    if log.highest < 0 and log.of_one_rank:
        notes.append(f"the timers are of the last rank only, here rank 0: {_OPTION}")
    elif log.highest < 0:
        notes.append(f"the timers name no rank, and rank 0 stands for the job: {_OPTION}")
        widest = {name: float(np.median(values)) for name, values in log.spread.items() if "compute" in name}
        if widest:
            name = max(widest, key=lambda each: widest[each])
            notes.append(f"{name} takes the slowest rank {widest[name]:.2f} times as long as the fastest")
    elif "backward_seconds" not in steps.column_names and "forward_seconds" not in steps.column_names:
        notes.append("no timers of forward and backward: set --timing-log-level 2")


SOURCE = Source(
    name="megatron-timers",
    title="Megatron-LM job logs with timers (`--timing-log-option all --timing-log-level 2`)",
    tells="which ranks are slow, in which phase; a stop, if the watchdog's messages are in the log too",
    lacks="hardware and cause; who is slow, without `--timing-log-option all`; steps between two reports",
    recognises=lambda *_: False,
    read=read,
    marks=MARKS,
)
