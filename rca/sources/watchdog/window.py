"""PyTorch's NCCL watchdog in job logs: the collective in which each rank waited until its timeout.

A rank whose watchdog fired waits in a collective that it enqueued. Later numbers are only enqueued ahead, so
the number of that collective is the rank's progress. A rank that reports less has not joined it.

References
----------
PyTorch 2.1 to 2.9, ``torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rca.errors import InvalidInput
from rca.sources.event_windows import with_events
from rca.sources.logs.failure_tables import ONE_STOP, one_line
from rca.sources.logs.log_events import LogEvents
from rca.sources.source import NothingFound, Source
from rca.sources.watchdog.messages import (
    DEFAULT_GROUP,
    MARKS,
    UNNAMED_GROUP,
    JobLog,
    Message,
    add_timeouts,
    last_stop,
    refuse_two_jobs,
    scan,
    with_ranks,
)
from rca.window.rows.validation import MAX_WORLD_SIZE
from rca.window.schema import COLLECTIVES, METRICS, OPS, STEPS
from rca.window.window import Window

#: Members without a log count as silent if so many others wrote a message, and at most this share did not.
MIN_REPORTS, MAX_UNSEEN_SHARE = 3, 1 / 8


class _WatchdogMember(NamedTuple):
    state: str
    sequence: int | None
    since: float
    operation: str | None


def read(paths: Sequence[Path], job_id: str) -> Window:
    """Read the logs of one job, in one file or in several, into a window without steps.

    Parameters
    ----------
    job_id : str
        Of the window; logs hold none.

    Returns
    -------
    Window
        With the tables ``collectives`` and ``events``; without a message of the watchdog, with ``events``
        only. Its notes say what the logs lack.

    Raises
    ------
    NothingFound
        If no message and no failure is complete.
    InvalidInput
        If no line names a rank. If two files hold different
        messages of one rank: they are of two jobs or of two attempts.
    """
    log = scan(paths)
    notes: list[str] = []
    log.place(notes)
    refuse_two_jobs(log.messages)
    names = ", ".join(path.name for path in paths[:3])
    if log.unreadable and not log.messages and not log.events.rows:
        raise InvalidInput(
            f"{names}: {log.unreadable} lines of the NCCL watchdog, all of an unknown form",
            hint="they may be cut, or of a version that is not supported: PyTorch 2.1 to 2.9 are",
        )
    before = log.events.keep_last_attempt(notes)
    messages = last_stop([each for each in log.messages if not each.time <= before], notes)
    ranked = with_ranks(messages, notes)
    exited = {event.rank for event in log.events.rows if event.rank is not None}
    highest = max([*(rank for rank, _ in ranked), *exited, *log.logged], default=-1)
    world_size = max(log.world_size, highest + 1, 1)
    if world_size > MAX_WORLD_SIZE:
        raise InvalidInput(f"{names}: rank {highest:,} is above {MAX_WORLD_SIZE - 1:,}")
    members = _members(ranked, log, world_size, notes)
    if not members:
        if not log.events.rows:
            raise NothingFound(
                f"{names}: no message of the NCCL watchdog and no failure is complete",
                hint="the logs may be cut: torchrun's table of failed ranks ends with the root cause",
            )
        notes.append("no message of the NCCL watchdog: the logs do not show which rank waits")
        if highest < 0:
            notes.append("no line names a rank: add the job's logs, and each node gets its ranks")
    begin, end = _bounds(members, messages, log)
    add_timeouts(ranked, log.events)
    _note_gaps(log, ranked, world_size, notes)
    nodes = log.places.nodes() if log.places.size == world_size else {}
    places = [{"rank": rank, "node": one_line(node)} for rank, node in nodes.items() if rank < world_size]
    window = Window.from_tables(
        {
            "job_id": job_id,
            "framework": "pytorch",
            "world_size": world_size,
            "start": begin,
            "end": end,
            **({"ranks": places} if places else {}),
        },
        STEPS.empty(),
        METRICS.empty(),
        log.events.table(world_size, end),
        OPS.empty(),
        _table(members, begin, end),
    )
    return replace(window, notes=(*window.notes, *notes))


def with_events_of(window: Window, paths: Sequence[Path]) -> Window:
    """A window with the failures that logs of its job report.

    The logs may be of another time than the window: then they are left out, with a note.
    """
    if not scan(paths).tells_failure:
        return window
    told = read(paths, window.job.job_id)
    return with_events(window, told, ", ".join(path.name for path in paths[:3]))


def _members(
    ranked: Sequence[tuple[int, Message]], log: JobLog, world_size: int, notes: list[str]
) -> dict[tuple[str, int], _WatchdogMember]:
    """State of each member of each group, by group and rank."""
    found: dict[tuple[str, int], _WatchdogMember] = {}
    caught: dict[int, dict[int, Message]] = {}
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
    alone = next(iter(waited_in)) if len(waited_in) == 1 else UNNAMED_GROUP
    for rank, works in caught.items():
        if rank not in with_wait:
            first = works[min(works)]
            of_group.setdefault(alone, {})[rank] = -1 if first.group_rank is None else first.group_rank
            _advance(found, (alone, rank), first, first)
    if UNNAMED_GROUP in of_group:
        notes.append("lines without a process group count as one group of all ranks")
    for group, ranks in of_group.items():
        _add_silent(found, group, ranks, log, world_size, notes)
    return found


def _advance(
    found: dict[tuple[str, int], _WatchdogMember], key: tuple[str, int], each: Message, caught: Message | None
) -> None:
    """Add what a message says about a member: the first collective that it waits in decides."""
    before = found.get(key)
    if each.waits_at >= 0:
        since = np.nan if caught is None else caught.since
        operation = None if caught is None else caught.operation
        earlier = before is not None and before.state == "waiting" and before.sequence is not None
        if before is None or not earlier or each.waits_at < (before.sequence or 0):
            found[key] = _WatchdogMember("waiting", each.waits_at, since, operation)
    elif before is None or (before.state != "waiting" and (before.sequence or -1) < each.enqueued):
        idle = each.enqueued < 0
        found[key] = _WatchdogMember(
            "idle" if idle else "finished", None if idle else each.enqueued, np.nan, None
        )


def _add_silent(
    found: dict[tuple[str, int], _WatchdogMember],
    group: str,
    ranks: Mapping[int, int],
    log: JobLog,
    world_size: int,
    notes: list[str],
) -> None:
    """Add members without a message to a group whose members are known by their numbers in it.

    A process may end before its watchdog writes. So if a member reports that it is behind, the silence of
    others does not count. Nor does it if a line of a watchdog is cut: it may be of a silent rank. A rank
    without a log here is silent only if nearly all others wrote a message: else logs are missing.
    """
    if any(place not in (-1, rank) for rank, place in ranks.items()):
        return
    held = {rank: found[group, rank] for rank in ranks}
    last = max((member.sequence or -1 for member in held.values()), default=-1)
    is_world = group == "0" or group.startswith(DEFAULT_GROUP) or group == UNNAMED_GROUP
    size = world_size if is_world else max(ranks) + 1
    silent = sorted(set(range(size)) - ranks.keys())
    absent = [rank for rank in silent if rank not in log.logged]
    if len(absent) > max(1.0, MAX_UNSEEN_SHARE * size) or (absent and len(ranks) < MIN_REPORTS):
        notes.append(f"{len(absent)} members of {group} have no log here: their silence shows nothing")
        silent = [rank for rank in silent if rank in log.logged]
    if not silent or not any(member.state == "waiting" for member in held.values()):
        return
    if any((member.sequence or -1) < last for member in held.values()):
        notes.append(f"{len(silent)} members of {group} logged nothing about it; others report to be behind")
        return
    if log.unreadable:
        notes.append(f"{len(silent)} members of {group} have no whole message: lines of the watchdog are cut")
        return
    for rank in silent:
        found[group, rank] = _WatchdogMember(
            "idle" if rank in log.logged else "unrecorded", None, np.nan, None
        )


def _bounds(
    members: Mapping[tuple[str, int], _WatchdogMember], messages: Sequence[Message], log: JobLog
) -> tuple[float, float]:
    """From the first failure or wait to the last message; without times, the files' time stands for it."""
    times = [each.time for each in messages if np.isfinite(each.time)]
    if not messages:
        times = [event.time for event in log.events.rows if np.isfinite(event.time)]
    end = max(times, default=log.latest_file)
    begins = [member.since for member in members.values() if np.isfinite(member.since)]
    begin = min([*begins, *times], default=end - 1.0)
    # What the ranks wait for failed before they began to wait.
    causes = [each.time for each in log.events.rows if begin - ONE_STOP <= each.time < begin]
    begin = min([begin, *causes])
    return min(begin, end - 1.0), end


def _note_gaps(log: JobLog, ranked: Sequence[tuple[int, Message]], world_size: int, notes: list[str]) -> None:
    if ranked:
        heard = {rank for rank, _ in ranked}
        notes.append(f"the watchdog of {len(heard)} of {world_size} ranks wrote a message")
    if not log.clock.first:
        notes.append("the lines have no time: the time of the file stands for it")
    elif ranked:
        notes.append("times without a zone are taken for UTC")
    written = {rank for rank, _ in ranked} | log.logged
    if len(written) == 1 and log.world_size != 1:
        notes.append(f"the logs are of rank {min(written)} only: the logs of the other ranks are needed")
    if log.world_size == 0 and written:
        notes.append("the logs do not name the world size: it is taken from the highest rank")
    if log.unreadable:
        notes.append(f"{log.unreadable} lines of the watchdog have an unknown form")
    _note_events(log.events, notes)


def _note_events(events: LogEvents, notes: list[str]) -> None:
    kinds = Counter(event.kind for event in events.rows)
    if kinds:
        notes.append("events: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    for kind, count in events.left_out.items():
        notes.append(f"{count} further events of kind {kind} are left out")
    if events.survived:
        notes.append(f"{events.survived} errors are left out: the job went on after them")
    if events.flood.left_out:
        notes.append(f"{events.flood.left_out} more lines of these kinds are left out")


def _table(members: Mapping[tuple[str, int], _WatchdogMember], begin: float, end: float) -> pa.Table:
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
    title="logs of jobs, launchers, schedulers and kernels with known lines; one file or several",
    tells="for a stopped job: what failed first, or which ranks did not join a collective, since when",
    lacks="speed; ranks whose log ends before their watchdog writes; the year and zone of times",
    recognises=lambda *_: False,
    read=read,
    marks=MARKS,
)
