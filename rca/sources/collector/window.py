"""Files of `rca.collect`: step timers and kernel counters that a job's ranks wrote while they trained."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rca.arrays import FloatArray, IntArray
from rca.collect.exits import WITHIN_STEP
from rca.collect.segments import BEGIN, SUFFIX, TimedSegment, read_segment
from rca.errors import InvalidInput, SourceError
from rca.files import open_file, read_file
from rca.sources.collector.ends import END, RankEnd, found_at_the_end
from rca.sources.source import Source
from rca.window.rows.validation import MAX_WORLD_SIZE
from rca.window.schema import EVENTS, METRICS, STEPS, TEXT
from rca.window.window import Window

#: A window holds the newest steps of a job.
WINDOW_STEPS = 2000
#: Samples from so long before the first step give the counters their first differences.
LEAD_SECONDS = 2.0
#: Samples of all ranks together; of more, every second, third, ... is kept.
MAX_SAMPLES = 4_000_000
#: A segment has an eighth of the collector's limit.
MAX_SEGMENT_BYTES = 1 << 28
#: Columns of steps that are no column of a segment.
_NOT_TIMED = ("rank", "step", "attempt", "received_time")
_SHOWN = 5


class _CollectorFile(NamedTuple):
    path: Path
    header: Mapping[str, Any]

    @property
    def session(self) -> tuple[float, int, int]:
        """One process of one rank: when it started, its rank, its process number."""
        return float(self.header["started"]), int(self.header["rank"]), int(self.header["pid"])


@dataclass
class _CollectedRank:
    """What one rank wrote: its header, and tables as in a `Segment`."""

    header: Mapping[str, Any]
    steps: FloatArray
    samples: FloatArray
    events: list[Mapping[str, Any]] = field(default_factory=list)
    damaged_bytes: int = 0

    @property
    def last_sign(self) -> float:
        """Unix seconds of the last sample, step or event."""
        finished = self.steps[:, 1] + np.nan_to_num(self.steps[:, _column(self.header, "step_seconds")])
        signs = [*self.samples[-1:, 0], *finished[-1:], *(event["time"] for event in self.events)]
        return float(max(signs, default=self.header["started"]))

    @property
    def end(self) -> RankEnd:
        """What its files say about its end."""
        last = self.steps[-1:]
        begun = float(last[0, 1]) if len(last) else float(self.header["started"])
        unfinished = bool(np.isnan(last[:, _column(self.header, "step_seconds")]).any())
        left = any((event["message"] or "").endswith(WITHIN_STEP) for event in self.events)
        return RankEnd(self.events, self.last_sign, begun, unfinished or left)


def is_segment(head: bytes, _: str) -> bool:
    """Whether a file is a segment of the collector, by its first bytes."""
    return head.startswith(BEGIN)


def read(paths: Sequence[Path], job_id: str) -> Window:
    """Read the segments of one run, all ranks, into a window.

    Parameters
    ----------
    paths : sequence of Path
        All files of a folder; or one, which stands for all files of its run in the same folder.
    job_id : str
        Of the window, if the collector found none.

    Raises
    ------
    InvalidInput
        If there are files of several runs, or none is complete.
    """
    notes: list[str] = []
    chosen = paths[0] if len(paths) == 1 and paths[0].is_file() else None
    files = list(_files(sorted(paths[0].parent.glob(f"*{SUFFIX}")) if chosen else paths, notes))
    runs = _runs(files)
    if chosen is not None:
        runs = [run for run in runs if any(file.path == chosen for file in run)]
        job_id = chosen.resolve().parent.name
    if not runs:
        raise InvalidInput(
            "no collector file is complete: " + "; ".join(notes[:_SHOWN]),
            hint="copy the files again, or wait until the job has finished a step",
        )
    if len(runs) > 1:
        raise _several(runs)
    ranks = {number: _rank(held, notes) for number, held in _by_rank(runs[0]).items()}
    return _window(ranks, job_id, notes)


def _files(paths: Sequence[Path], notes: list[str]) -> Iterator[_CollectorFile]:
    """The files with whole headers; the others are noted."""
    for path in paths:
        try:
            with open_file(path) as file:
                header = read_segment(file.readline(1 << 20)).header
            place = _CollectorFile(path, header)
            if not 0 <= place.session[1] < min(int(header["world_size"]), MAX_WORLD_SIZE):
                raise ValueError(f"it has rank {place.session[1]} of {header['world_size']}")
        except OSError as error:
            raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError) as error:
            notes.append(f"{path.name} was skipped: {str(error)[:200]}")
            continue
        yield place


def _runs(files: Sequence[_CollectorFile]) -> list[list[_CollectorFile]]:
    """The files by run: a rank that starts again begins a new run, and so does another run's name."""
    runs: list[list[_CollectorFile]] = []
    names: dict[str | None, list[list[_CollectorFile]]] = {}
    sessions: dict[tuple[float, int, int], list[_CollectorFile]] = {}
    for file in files:
        sessions.setdefault(file.session, []).append(file)
    for session in sorted(sessions):
        held = sessions[session]
        of_name = names.setdefault(held[0].header.get("run"), [])
        same = of_name[-1] if of_name else None
        if same is None or any(other.session[1] == session[1] for other in same):
            same = []
            of_name.append(same)
            runs.append(same)
        same += held
    return runs


def _several(runs: Sequence[Sequence[_CollectorFile]]) -> InvalidInput:
    shown = []
    for run in runs[:_SHOWN]:
        began = min(file.session[0] for file in run)
        ranks = {file.session[1] for file in run}
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(began))
        shown.append(f"{len(ranks)} ranks from {stamp} UTC on, such as {run[0].path.name}")
    return InvalidInput(
        f"the folder holds files of {len(runs)} runs: {'; '.join(shown)}",
        hint="give one file of a run: it stands for all files of its run",
    )


def _by_rank(run: Sequence[_CollectorFile]) -> dict[int, list[_CollectorFile]]:
    ranks: dict[int, list[_CollectorFile]] = {}
    for file in sorted(run, key=lambda each: (each.session[1], int(each.header["segment"]))):
        ranks.setdefault(file.session[1], []).append(file)
    return ranks


def _rank(files: Sequence[_CollectorFile], notes: list[str]) -> _CollectedRank:
    """Read a rank's newest segments, until they hold the steps of a window."""
    segments: list[TimedSegment] = []
    n_steps = 0
    for file in reversed(files):
        if file.path.stat().st_size > MAX_SEGMENT_BYTES:
            notes.append(f"{file.path.name} was skipped: it has more than {MAX_SEGMENT_BYTES:,} bytes")
            continue
        segments.insert(0, read_segment(read_file(file.path)))
        n_steps += len(segments[0].steps)
        if n_steps > WINDOW_STEPS:
            break
    header = files[-1].header
    steps = np.concatenate([each.steps for each in segments] or [np.empty((0, len(header["steps"])))])
    opened = [each.open_step for each in segments if each.open_step is not None]
    if opened and not opened[-1][0] <= np.nanmax(steps[:, 0], initial=-1.0) and np.isfinite(opened[-1][0]):
        steps = np.vstack([steps, opened[-1]])
    samples = np.concatenate(
        [each.samples for each in segments] or [np.empty((0, 1 + len(header["series"])))]
    )
    events = [event for each in segments for event in each.events]
    return _CollectedRank(header, _once(steps), samples, events, sum(each.damaged_bytes for each in segments))


def _once(steps: FloatArray) -> FloatArray:
    """The last row of each step."""
    _, first = np.unique(steps[::-1, 0], return_index=True)
    return steps[np.sort(len(steps) - 1 - first)]


def _window(ranks: Mapping[int, _CollectedRank], job_id: str, notes: list[str]) -> Window:
    header = next(iter(ranks.values())).header
    last = max((float(rank.steps[-1, 0]) for rank in ranks.values() if len(rank.steps)), default=0.0)
    if any(len(rank.steps) and rank.steps[0, 0] <= last - WINDOW_STEPS for rank in ranks.values()):
        notes.append(f"the newest {WINDOW_STEPS:,} steps were used, up to step {last:.0f}")
    for rank in ranks.values():
        rank.steps = rank.steps[rank.steps[:, 0] > last - WINDOW_STEPS]
    started = [rank.steps[0, 1] for rank in ranks.values() if len(rank.steps)]
    begin = began = float(min(started, default=min(rank.header["started"] for rank in ranks.values())))
    end = max(rank.last_sign for rank in ranks.values())
    for rank in ranks.values():
        rank.samples = rank.samples[rank.samples[:, 0] >= began - LEAD_SECONDS]
        begin = float(min([begin, *rank.samples[:1, 0]]))
    notes += _gaps(ranks, int(header["world_size"]))
    job = {
        "job_id": str(header.get("job_id") or job_id),
        "framework": header.get("framework"),
        "world_size": int(header["world_size"]),
        "parallelism": header.get("parallelism"),
        "ranks": [
            {"rank": rank, "node": held.header["node"], "gpu": held.header["gpu"]}
            for rank, held in ranks.items()
        ],
        "start": begin,
        "end": float(np.nextafter(max(end, begin + 1e-3), np.inf)),
    }
    window = Window.from_tables(
        job, _steps(ranks), _metrics(ranks, notes), _events(ranks, begin, int(header["world_size"]))
    )
    return replace(window, notes=(*notes, *window.notes))


def _gaps(ranks: Mapping[int, _CollectedRank], world_size: int) -> list[str]:
    """What is missing, for the quality report."""
    notes = []
    missing = [rank for rank in range(world_size) if rank not in ranks]
    if missing:
        shown = ", ".join(map(str, missing[:_SHOWN])) + (", ..." if len(missing) > _SHOWN else "")
        notes.append(f"{len(missing)} of {world_size} ranks have no collector files: {shown}")
    for number, rank in ranks.items():
        if rank.damaged_bytes:
            notes.append(f"rank {number}: {rank.damaged_bytes:,} damaged bytes were skipped")
        lost = sum(int(event.get("lost_rows", 0)) for event in rank.events if event["kind"] == END)
        if lost:
            notes.append(f"rank {number}: {lost:,} steps were lost because they could not be written in time")
    return notes


def _steps(ranks: Mapping[int, _CollectedRank]) -> pa.Table:
    """The rows of all ranks; columns that no rank measured are left out."""
    names = [column.name for column in STEPS.columns if column.name not in _NOT_TIMED]
    columns = {name: np.concatenate([_values(rank, name) for rank in ranks.values()]) for name in names}
    numbers = np.concatenate([rank.steps[:, 0] for rank in ranks.values()]).astype(np.int64)
    of_rank = np.repeat(list(ranks), [len(rank.steps) for rank in ranks.values()]).astype(np.int32)
    kept = {"start_time", "step_seconds"}
    held = {name: values for name, values in columns.items() if name in kept or np.isfinite(values).any()}
    attempts = [_attempt(rank.header) for rank in ranks.values()]
    if any(attempt is not None for attempt in attempts):
        rows = np.repeat(np.arange(len(attempts)), [len(rank.steps) for rank in ranks.values()])
        held["attempt"] = pa.array(attempts, pa.int64()).take(pa.array(rows))
    return pa.table({"rank": of_rank, "step": numbers, **held})


def _attempt(header: Mapping[str, Any]) -> int | None:
    """Number of the restart; older collectors write none."""
    attempt = header.get("attempt")
    return attempt if isinstance(attempt, int) and 0 <= attempt < 1 << 62 else None


def _values(rank: _CollectedRank, name: str) -> FloatArray:
    if name not in rank.header["steps"]:
        return np.full(len(rank.steps), np.nan)
    return rank.steps[:, _column(rank.header, name)]


def _column(header: Mapping[str, Any], name: str) -> int:
    return int(header["steps"].index(name))


def _metrics(ranks: Mapping[int, _CollectedRank], notes: list[str]) -> pa.Table:
    """The samples in long form, without values that the kernel did not have."""
    total = sum(rank.samples.size for rank in ranks.values())
    stride = max(1, -(-total // MAX_SAMPLES))
    if stride > 1:
        notes.append(f"one of {stride} samples of the counters was used: there are {total:,} values")
    parts: list[tuple[FloatArray, IntArray, FloatArray]] = []
    series: dict[tuple[str, str | None, str, int], int] = {}
    for number, rank in ranks.items():
        samples = rank.samples[::stride]
        keys = [(name, device, rank.header["node"], number) for name, device in rank.header["series"]]
        codes = np.array([series.setdefault(key, len(series)) for key in keys], dtype=np.int64)
        values = samples[:, 1:].T
        known = np.isfinite(values)
        times = np.broadcast_to(samples[:, 0], values.shape)[known]
        parts.append((times, np.broadcast_to(codes[:, None], values.shape)[known], values[known]))
    if not sum(len(values) for _, _, values in parts):
        return METRICS.empty()
    code = np.concatenate([part[1] for part in parts])
    keys = list(series)
    return pa.table(
        {
            "time": np.concatenate([part[0] for part in parts]),
            "node": _texts([key[2] for key in keys], code),
            "rank": np.array([key[3] for key in keys], dtype=np.int32)[code],
            "device": _texts([key[1] for key in keys], code),
            "name": _texts([key[0] for key in keys], code),
            "value": np.concatenate([part[2] for part in parts]),
        }
    )


def _texts(of_series: Sequence[str | None], code: IntArray) -> pa.Array:
    """A text per series, for each sample."""
    return pa.array(of_series, type=pa.string()).dictionary_encode().cast(TEXT).take(pa.array(code))


def _events(ranks: Mapping[int, _CollectedRank], begin: float, world_size: int) -> pa.Table:
    """The ranks' own events, and those that ranks without a record of their end cannot have written."""
    rows: list[tuple[float, int | None, str, str | None, str | None]] = [
        (float(event["time"]), number, event["kind"], event["code"], event["message"])
        for number, rank in ranks.items()
        for event in rank.events
        if event["kind"] != END and event["time"] >= begin
    ]
    found = found_at_the_end({number: rank.end for number, rank in ranks.items()}, world_size)
    rows += [(each.time, each.rank, each.kind, None, each.message) for each in found]
    if not rows:
        return EVENTS.empty()
    names = ("time", "rank", "kind", "code", "message", "node")
    types = {column.name: column.type for column in EVENTS.columns}
    placed = [(*row, None if row[1] is None else ranks[row[1]].header["node"]) for row in rows]
    columns = zip(names, zip(*sorted(placed, key=lambda row: row[0]), strict=True), strict=True)
    return pa.table({name: pa.array(values, type=types[name]) for name, values in columns})


SOURCE = Source(
    name="collector",
    title="folder of rca.collect: timers and kernel counters of each rank, from the training code",
    tells="which ranks are slow, in which phase and why; which rank fell silent",
    lacks="GPU, network and storage devices, which exporters report",
    recognises=is_segment,
    read=read,
)
