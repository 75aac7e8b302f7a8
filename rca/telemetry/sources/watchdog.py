"""PyTorch's NCCL watchdog in job logs: the collective in which each rank waited until its timeout.

A rank whose watchdog fired waits in a collective that it enqueued. Later numbers are only enqueued ahead, so
the number of that collective is the rank's progress. A rank that reports less has not joined it.

References
----------
PyTorch 2.1 to 2.9, ``torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rca.errors import InvalidInput
from rca.telemetry.schema import COLLECTIVES, METRICS, OPS, STEPS
from rca.telemetry.sources.log_events import PATTERN as EVENT_PATTERN
from rca.telemetry.sources.log_events import LogEvents, one_line
from rca.telemetry.sources.source import Source
from rca.telemetry.sources.text_lines import Line, lines_of, mixed, task_in_name
from rca.telemetry.validation import MAX_WORLD_SIZE
from rca.telemetry.window import Window

#: A file with such a line is a log of a stopped job.
MARKS = re.compile(
    rb"Watchdog caught collective operation timeout|[Ll]ast enqueued (?:NCCL )?work: -?\d|ChildFailedError"
    rb"|NVRM: Xid|NCCL WARN"
)
_SIZES = rb"nranks \d|dist_world_size=|using world size: |global_world_sizes=\["
#: Finds every line that `JobLog.add` may use.
WANTED = re.compile(
    rb"Watchdog caught collective|[Ll]ast enqueued (?:NCCL )?work|" + _SIZES + rb"|" + EVENT_PATTERN.pattern,
    re.MULTILINE,
)
_CAUGHT = re.compile(
    r"(?:\[Rank (\d{1,9})\] )?Watchdog caught collective operation timeout: Work\w*\((?:SeqNum=(\d{1,19}), )?"
    r"OpType=(\w+).*?\) ran for (\d+) milliseconds"
)
_GROUP = re.compile(r"\[PG (?:ID \d+ PG GUID )?([^\s(\]]+) ?(?:\(([^)\]]*)\))? ?Rank (\d{1,9})\]")
_STATUS = re.compile(
    r"[Ll]ast enqueued(?: NCCL)? work: (-?\d{1,19}), last completed(?: NCCL)?(?: work)?: (-?\d{1,19})"
)
_FAILED_WORK = re.compile(r"\bat (?:NCCL )?work(?: sequence id)?: (\d{1,19})")
#: The exception quotes the first message again, without the label of the rank.
_REPEATED = "watchdog thread terminated with exception"
_WORLD = re.compile(
    r"\bnranks (\d{1,9})|dist_world_size=(\d{1,9})|using world size: (\d{1,9})|global_world_sizes=\[(\d{1,9})"
)
_DEFAULT = "default_pg"
_UNNAMED = "process group"
#: Timeouts of one stop fire within minutes; earlier ones are of an earlier attempt, seconds.
ONE_STOP = 1800.0
#: Messages of one log; beyond, the log is not of one job.
MOST_MESSAGES = 2_000_000
_LARGEST = 2**62


class _Message(NamedTuple):
    """What one line says about one rank.

    `group` is empty if the line names none; `waits_at` is -1 if the rank does not wait.
    """

    rank: int | None
    task: int | None
    group_rank: int | None
    group: str
    waits_at: int
    enqueued: int
    completed: int
    operation: str
    since: float
    time: float
    text: str
    path: Path


@dataclass
class JobLog:
    """Messages of all logs of a job.

    Attributes
    ----------
    logged : set of int
        Ranks that have a log of their own, or a line with their label.
    """

    messages: list[_Message] = field(default_factory=list)
    events: LogEvents = field(default_factory=LogEvents)
    logged: set[int] = field(default_factory=set)
    world_size: int = 0
    latest_file: float = 0.0
    unreadable: int = 0

    def add(self, line: Line) -> None:
        """Add a line that `WANTED` finds."""
        text = line.text
        if line.rank is not None:
            self.logged.add(line.rank)
        if _REPEATED in text:
            return
        caught = _CAUGHT.search(text)
        status = _STATUS.search(text)
        group = _GROUP.search(text)
        if caught is not None and (caught[2] or (status and group)):
            self._add_caught(line, caught)
        elif status is not None and group is not None:
            self._add_status(line, status, group)
        elif (size := _WORLD.search(text)) is not None:
            self.world_size = max(self.world_size, *(int(each) for each in size.groups() if each))
        elif "Watchdog caught" in text or "ast enqueued" in text:
            self.unreadable += 1
        else:
            self.events.add(line)
        if len(self.messages) > MOST_MESSAGES:
            raise InvalidInput(f"the logs hold more than {MOST_MESSAGES:,} watchdog messages")

    def _add_caught(self, line: Line, caught: re.Match[str]) -> None:
        waits_at = min(int(caught[2]), _LARGEST)
        since = line.time - float(caught[4]) / 1e3
        group_rank = None if caught[1] is None else int(caught[1])
        self.messages.append(
            _Message(
                line.rank, line.task, group_rank, "", waits_at, waits_at, waits_at - 1, caught[3], since,
                line.time, one_line(line.text[caught.start() :]), line.path,
            )
        )  # fmt: skip

    def _add_status(self, line: Line, status: re.Match[str], group: re.Match[str]) -> None:
        enqueued, completed = (min(int(status[part]), _LARGEST) for part in (1, 2))
        failed = _FAILED_WORK.search(line.text)
        waits_at = int(failed[1]) if failed else completed + 1 if completed < enqueued else -1
        name = f"{group[2]} ({group[1]})" if group[2] and group[2] != "undefined" else group[1]
        self.messages.append(
            _Message(
                line.rank, line.task, int(group[3]), one_line(name) or _UNNAMED, min(waits_at, _LARGEST),
                enqueued, completed, "", np.nan, line.time, one_line(line.text[group.start() :]),
                line.path,
            )
        )  # fmt: skip


class _Member(NamedTuple):
    state: str
    sequence: int | None
    since: float
    operation: str | None


def read(paths: Sequence[Path], job_id: str) -> Window:
    """Read the logs of one job, in one file or in several, into a window without steps.

    Parameters
    ----------
    paths : sequence of Path
    job_id : str
        Of the window; logs hold none.

    Returns
    -------
    Window
        With the tables ``collectives`` and ``events``; without a message of the watchdog, with ``events``
        only. Its notes say what the logs lack.

    Raises
    ------
    InvalidInput
        If no line names a rank, or no message and no failure is complete. If two files hold different
        messages of one rank: they are of two jobs or of two attempts.
    """
    log = scan(paths)
    _refuse_two_jobs(log.messages)
    names = ", ".join(path.name for path in paths[:3])
    if log.unreadable and not log.messages:
        raise InvalidInput(
            f"{names}: {log.unreadable} lines of the NCCL watchdog, all of an unknown form",
            hint="they may be cut, or of a version that is not supported: PyTorch 2.1 to 2.9 are",
        )
    notes: list[str] = []
    messages = _last_stop(log.messages, notes)
    ranked = _with_ranks(messages, notes)
    exited = {event.rank for event in log.events.rows if event.rank is not None}
    highest = max([*(rank for rank, _ in ranked), *exited, *log.logged], default=-1)
    if highest < 0:
        raise InvalidInput(
            f"{names}: errors of devices or of NCCL, but no line names a rank",
            hint="put the job's logs with the watchdog's messages or torchrun's table into the same folder",
        )
    world_size = max(log.world_size, highest + 1)
    if world_size > MAX_WORLD_SIZE:
        raise InvalidInput(f"{names}: rank {highest:,} is above {MAX_WORLD_SIZE - 1:,}")
    members = _members(ranked, log.logged, world_size, notes)
    if not members:
        if not log.events.rows:
            raise InvalidInput(
                f"{names}: no message of the NCCL watchdog and no failure is complete",
                hint="the logs may be cut: torchrun's table of failed ranks ends with the root cause",
            )
        notes.append("no message of the NCCL watchdog: the logs do not show which rank waits")
    begin, end = _bounds(members, messages, log)
    _add_timeouts(ranked, log.events)
    _note_gaps(log, ranked, world_size, notes)
    window = Window.from_tables(
        {"job_id": job_id, "framework": "pytorch", "world_size": world_size, "start": begin, "end": end},
        STEPS.empty(),
        METRICS.empty(),
        log.events.table(world_size, end),
        OPS.empty(),
        _table(members, begin, end),
    )
    return replace(window, notes=(*window.notes, *notes))


def events_of(log: JobLog, world_size: int, otherwise: float) -> pa.Table:
    """Events of logs, with one for each rank whose watchdog fired; events without a time get `otherwise`.

    Raises
    ------
    InvalidInput
        If two files hold different messages of one rank.
    """
    _refuse_two_jobs(log.messages)
    _add_timeouts(_with_ranks(_last_stop(log.messages, []), []), log.events)
    return log.events.table(world_size, otherwise)


def scan(paths: Iterable[Path]) -> JobLog:
    """Collect the messages and events of all logs."""
    log = JobLog()
    for path in paths:
        log.latest_file = max(log.latest_file, path.stat().st_mtime)
        named = task_in_name(path)
        if named is not None:
            log.logged.add(named)
        for line in lines_of(path, WANTED):
            log.add(line)
    return log


def _last_stop(messages: list[_Message], notes: list[str]) -> list[_Message]:
    """Messages of the last stop; a job that was started again has earlier ones."""
    latest = max((each.time for each in messages if np.isfinite(each.time)), default=np.nan)
    kept = [each for each in messages if not each.time < latest - ONE_STOP]
    if len(kept) < len(messages):
        notes.append(f"{len(messages) - len(kept)} messages of earlier stops are left out")
    return kept


def _refuse_two_jobs(messages: Sequence[_Message]) -> None:
    """Refuse files that say different things about one rank.

    A file may repeat another one: torchrun copies what a rank writes. Ranks that are taken from a group are
    compared within it.
    """
    said: dict[tuple[int, str | None], dict[Path, set[tuple[str, float | None]]]] = {}
    for rank, guessed, each in _ranks(messages):
        when = each.time if np.isfinite(each.time) else None
        files = said.setdefault((rank, each.group if guessed else None), {})
        files.setdefault(each.path, set()).add((each.text, when))
    for (rank, _), files in said.items():
        fullest = max(files, key=lambda path: len(files[path]))
        for path, texts in files.items():
            if not texts <= files[fullest]:
                one, other = sorted((path, fullest))
                raise mixed(one, other, f"messages of rank {rank}")


def _ranks(messages: Sequence[_Message]) -> Iterator[tuple[int, bool, _Message]]:
    """Each message that names a rank, with it, and whether it is only known from a group."""
    of_task: dict[tuple[int, str], set[int]] = {}
    for each in messages:
        if each.task is not None and each.group_rank is not None:
            of_task.setdefault((each.task, each.group), set()).add(each.group_rank)
    tasks_are_ranks = all(len(ranks) == 1 for ranks in of_task.values())
    for each in messages:
        is_default = each.group == "0" or each.group.startswith(_DEFAULT)
        if each.rank is not None:
            yield each.rank, False, each
        elif is_default or each.task is None or not tasks_are_ranks:
            if each.group_rank is not None:
                yield each.group_rank, not is_default, each
        else:
            yield each.task, False, each


def _with_ranks(messages: Sequence[_Message], notes: list[str]) -> list[tuple[int, _Message]]:
    """Each message with the rank that wrote it.

    Without a label of its own, a rank of the default group is the job's rank. Labels of tasks are ranks if
    each of them has lines of one rank only; else they are nodes.
    """
    found: list[tuple[int, _Message]] = []
    guesses = 0
    for rank, guessed, each in _ranks(messages):
        guesses += guessed
        found.append((rank, each))
    if guesses:
        notes.append(
            f"{guesses} lines name the rank in its group only; it is taken for the rank of the job "
            "(keep the labels [rankN]: of PyTorch, or use one file per rank)"
        )
    if len(found) < len(messages):
        notes.append(f"{len(messages) - len(found)} lines of the watchdog name no rank")
    return found


def _members(
    ranked: Sequence[tuple[int, _Message]], logged: set[int], world_size: int, notes: list[str]
) -> dict[tuple[str, int], _Member]:
    """State of each member of each group, by group and rank."""
    found: dict[tuple[str, int], _Member] = {}
    caught: dict[int, dict[int, _Message]] = {}
    for rank, each in ranked:
        if not each.group:
            caught.setdefault(rank, {}).setdefault(each.waits_at, each)
    of_group: dict[str, dict[int, int]] = {}
    for rank, each in ranked:
        if each.group:
            of_group.setdefault(each.group, {})[rank] = -1 if each.group_rank is None else each.group_rank
            known = caught.get(rank, {}).get(each.waits_at)
            _advance(found, (each.group, rank), each, known)
    waited_in = {group for (group, _), member in found.items() if member.state == "waiting"}
    with_wait = {rank for (_, rank), member in found.items() if member.state == "waiting"}
    alone = next(iter(waited_in)) if len(waited_in) == 1 else _UNNAMED
    for rank, works in caught.items():
        if rank not in with_wait:
            first = works[min(works)]
            of_group.setdefault(alone, {})[rank] = -1 if first.group_rank is None else first.group_rank
            _advance(found, (alone, rank), first, first)
    if _UNNAMED in of_group:
        notes.append("lines without a process group count as one group of all ranks")
    for group, ranks in of_group.items():
        _add_silent(found, group, ranks, logged, world_size, notes)
    return found


def _advance(
    found: dict[tuple[str, int], _Member], key: tuple[str, int], each: _Message, caught: _Message | None
) -> None:
    """Add what a message says about a member: the first collective that it waits in decides."""
    before = found.get(key)
    if each.waits_at >= 0:
        since = np.nan if caught is None else caught.since
        operation = None if caught is None else caught.operation
        earlier = before is not None and before.state == "waiting" and before.sequence is not None
        if before is None or not earlier or each.waits_at < (before.sequence or 0):
            found[key] = _Member("waiting", each.waits_at, since, operation)
    elif before is None or (before.state != "waiting" and (before.sequence or -1) < each.enqueued):
        idle = each.enqueued < 0
        found[key] = _Member("idle" if idle else "finished", None if idle else each.enqueued, np.nan, None)


def _add_silent(
    found: dict[tuple[str, int], _Member],
    group: str,
    ranks: Mapping[int, int],
    logged: set[int],
    world_size: int,
    notes: list[str],
) -> None:
    """Add members without a message to a group whose members are known by their numbers in it.

    A process may end before its watchdog writes. So if a member reports that it is behind, the silence of
    others does not count.
    """
    if any(place not in (-1, rank) for rank, place in ranks.items()):
        return
    held = {rank: found[group, rank] for rank in ranks}
    last = max((member.sequence or -1 for member in held.values()), default=-1)
    is_world = group == "0" or group.startswith(_DEFAULT) or group == _UNNAMED
    silent = sorted(set(range(world_size if is_world else max(ranks) + 1)) - ranks.keys())
    if not silent or not any(member.state == "waiting" for member in held.values()):
        return
    if any((member.sequence or -1) < last for member in held.values()):
        notes.append(f"{len(silent)} members of {group} logged nothing about it; others report to be behind")
        return
    for rank in silent:
        found[group, rank] = _Member("idle" if rank in logged else "unrecorded", None, np.nan, None)


def _bounds(
    members: Mapping[tuple[str, int], _Member], messages: Sequence[_Message], log: JobLog
) -> tuple[float, float]:
    """From the first wait to the last message; without times, the files' time stands for the last."""
    times = [each.time for each in messages if np.isfinite(each.time)]
    if not messages:
        times = [event.time for event in log.events.rows if np.isfinite(event.time)]
    end = max(times, default=log.latest_file)
    begins = [member.since for member in members.values() if np.isfinite(member.since)]
    begin = min([*begins, *times], default=end - 1.0)
    return min(begin, end - 1.0), end


def _add_timeouts(ranked: Sequence[tuple[int, _Message]], events: LogEvents) -> None:
    """One event for each rank whose watchdog fired, with the message that says most."""
    fired: dict[int, _Message] = {}
    for rank, each in ranked:
        before = fired.get(rank)
        by_itself = "Received a dump signal due to a collective timeout from rank" not in each.text
        if each.waits_at >= 0 and by_itself and (before is None or (each.group and not before.group)):
            fired[rank] = each if before is None else each._replace(time=before.time)
    for rank, each in fired.items():
        events.append(each.time, "nccl_timeout", each.text, code=each.operation or None, rank=rank)


def _note_gaps(
    log: JobLog, ranked: Sequence[tuple[int, _Message]], world_size: int, notes: list[str]
) -> None:
    if ranked:
        heard = {rank for rank, _ in ranked}
        notes.append(f"the watchdog of {len(heard)} of {world_size} ranks wrote a message")
        if not any(np.isfinite(each.time) for _, each in ranked):
            notes.append("the watchdog's lines have no time: the time of the file stands for it")
        else:
            notes.append("times without a zone are taken for UTC")
    written = {rank for rank, _ in ranked} | log.logged
    if len(written) == 1 and log.world_size != 1:
        notes.append(f"the logs are of rank {min(written)} only: the logs of the other ranks are needed")
    if log.world_size == 0:
        notes.append("the logs do not name the world size: it is taken from the highest rank")
    if log.unreadable:
        notes.append(f"{log.unreadable} lines of the watchdog have an unknown form")
    kinds = Counter(event.kind for event in log.events.rows)
    if kinds:
        notes.append("events: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    for kind, count in log.events.left_out.items():
        notes.append(f"{count} further events of kind {kind} are left out")


def _table(members: Mapping[tuple[str, int], _Member], begin: float, end: float) -> pa.Table:
    """One row per group and member. Without a time, a wait begins at the window's start."""
    rows = sorted(members)
    known = [members[row] for row in rows]
    columns = {
        "rank": [rank for _, rank in rows],
        "group": [group for group, _ in rows],
        "state": [each.state for each in known],
        "sequence": [each.sequence for each in known],
        "waiting_since": [each.since if begin <= each.since <= end else None for each in known],
        "operation": [each.operation for each in known],
    }
    types = {column.name: column.type for column in COLLECTIVES.columns}
    return pa.table({name: pa.array(values, type=types[name]) for name, values in columns.items()})


SOURCE = Source(
    name="watchdog",
    title="job logs with messages of PyTorch's NCCL watchdog, torchrun or the kernel; one file or several",
    tells="for a stopped job: which ranks did not join a collective, and since when the others wait",
    lacks="speed and cause; ranks whose log ends before their watchdog writes; the year and zone of times",
    recognises=lambda *_: False,
    read=read,
    marks=MARKS,
)
