"""Failures that job and kernel logs report: exits, device errors, kills and errors of CUDA and NCCL."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from rca.errors import InvalidInput
from rca.sources.logs.failure_tables import (
    CUT_TABLE,
    FailureTables,
    LogEvent,
    one_line,
    pid_in,
)
from rca.sources.logs.line_kinds import Said, marks_pattern, said_by
from rca.sources.logs.line_labels import NOBODY, Writer, without_prefix, writer_of
from rca.sources.logs.line_search import Flood
from rca.sources.logs.text_lines import LineClock, Stamp, TextLine
from rca.window.schema import EVENTS
from rca.window.topology.hostlist import expanded

#: More events of one kind are counted only: a failing link may write a line every millisecond.
MAX_OF_A_KIND = 5000
#: Finds every line that `LogEvents.add` may use.
PATTERN = re.compile(
    marks_pattern()
    + rb"|Traceback \(most recent call last\)|Missing ranks:"
    + rb"|imed out task names:|stopped sending heartbeats\):|\d: \[[A-Za-z]|/job:[\w-]+/"
    + rb"|The actor died unexpectedly|^[^\n]{0,120}\bip: \d+\.\d+\.\d+\.\d+[ \t]*$"
    + rb"|(?:^|[ \t])Failures:[ \t]*$|Root Cause \(first observed failure\)"
    + rb"|^[ \t]*(?:\S+ +)?(?:time|host|rank|exitcode|traceback) +: ",
    re.MULTILINE,
)
#: Lists of ranks that others miss: the header, and a line of it. Of Horovod with the tensors that a rank
#: did not submit, and of JAX's coordination service.
_TASK_LINE = re.compile(r"\s*+/job:[\w-]{1,60}+/(?:replica:\d{1,6}+/)?task:(\d{1,6})\s*$")
_LISTS = {
    "Missing ranks:": re.compile(r"(\d{1,6}): \[[A-Za-z]"),
    "imed out task names:": _TASK_LINE,
    "(stopped sending heartbeats):": _TASK_LINE,
}
#: A line of Ray's report of a dead actor that names its node.
_ACTOR_DIED = "The actor died unexpectedly before finishing this task"
_ACTOR_NODE = re.compile(r"\s*+ip: (\d{1,3}(?:\.\d{1,3}){3})\s*$")
#: Exit codes of Slurm's words for the end of a task.
_WORDS = {
    "Killed": "-9",
    "Terminated": "-15",
    "Aborted": "-6",
    "Bus error": "-7",
    "Segmentation fault": "-11",
    "Floating point exception": "-8",
}
#: Kinds of events that tell of no failure of their own.
NO_FAILURES = frozenset({"log", "restart", "peer_lost"})
#: Kinds of events in which a process reports another one, or a node.
ABOUT_OTHERS = frozenset({"process_exit", "oom_kill", "did_not_join", "node_down", "job_ended", "restart"})
#: Other failures of torchrun's table come at least so long after its root cause, seconds.
AFTER_ROOT = 1.001
#: Nodes of one line that become events of their own.
MAX_NODES = 512
#: Progress so long after an error shows that the job survived it, seconds.
MIN_SURVIVED = 60.0
#: The begin of a Python error, whose last line may have no label of its own.
_TRACEBACK = "Traceback (most recent call last)"


#: Columns of the events table.
_COLUMNS = ("time", "node", "rank", "kind", "code", "message")


@dataclass
class LogEvents:
    """Events of several logs, in the order of their lines.

    Attributes
    ----------
    weak : list of LogEvent
        Events that count only if no other one tells of a failure.
    survived : int
        Errors after which the job went on.
    left_out : Counter of str
        Events beyond `MAX_OF_A_KIND`, by kind.
    flood : Flood
        Lines of kinds of which there are too many.
    """

    rows: list[LogEvent] = field(default_factory=list)
    weak: list[LogEvent] = field(default_factory=list)
    survived: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    flood: Flood = field(default_factory=Flood)
    _seen: Counter[str] = field(default_factory=Counter)
    tables: FailureTables = field(default_factory=FailureTables)
    _named: set[tuple[str, str | None, int | None, str | None]] = field(default_factory=set)
    _actor_of: Path | None = None
    _raiser: tuple[Path, Writer] | None = None
    _list: tuple[Path, re.Pattern[str]] | None = None

    def add(self, line: TextLine, stamp: Stamp) -> bool:
        """Add the events of a line; whether it has any, or is part of one."""
        text = line.text
        if self.tables.begin(line):
            return True
        if "Root Cause (first" in text or "Failures:" in text:
            return True
        of_table, ended = self.tables.add(line)
        if ended is not None:
            self.rows.append(ended)
        if of_table:
            return True
        if (missing := self._listed(line)) is not None:
            self._append_once("did_not_join", stamp, text, code="list", rank=missing)
        elif _ACTOR_DIED in text:
            self._actor_of = line.path
        elif self._actor_of == line.path and (node := _ACTOR_NODE.match(without_prefix(text))) is not None:
            self._actor_of = None
            self.append(stamp, "process_exit", f"{_ACTOR_DIED}, {text.strip()}", node=node[1])
        elif _TRACEBACK in text:
            self._raiser = line.path, self._writer(line, of_error=True)
        elif (said := said_by(text)) is not None:
            self._add_said(said, line, stamp)
        else:
            self._raiser = None
            return False
        return True

    def _writer(self, line: TextLine, *, of_error: bool) -> Writer:
        """The process that wrote a line; of an error without a label, the one that began the traceback."""
        label, file = writer_of(line.text), line.file
        raiser, self._raiser = self._raiser, None
        if label == NOBODY and of_error and raiser is not None and raiser[0] == line.path:
            label = raiser[1]
        elif of_error:
            self._raiser = line.path, label
        if label.rank is None and label.task is None and label.local is None:
            label = label._replace(rank=file.rank, task=file.task, local=file.local)
        return label._replace(node=label.node or file.node)

    def _listed(self, line: TextLine) -> int | None:
        """The rank of a line in a list of missing ranks; None if it is no such line."""
        header = next((each for each in _LISTS if each in line.text), None)
        if header is not None:
            self._list = line.path, _LISTS[header]
        if header is not None or self._list is None or self._list[0] != line.path:
            return None
        found = self._list[1].match(without_prefix(line.text))
        return None if found is None else int(found[1])

    def _add_said(self, said: Said, line: TextLine, stamp: Stamp) -> None:
        """The events of one line: of the places that it names, else of the process that wrote it."""
        text, kind = line.text, said.kind
        writer = self._writer(line, of_error=kind.event == "process_error")
        if self._seen[kind.event] >= MAX_OF_A_KIND:
            self._seen[kind.event] += 1
            self.left_out[kind.event] += 1
            if not kind.generic:
                self.flood.marks.update(kind.marks)
            return
        code = None if said.code is None else _WORDS.get(said.code, said.code.rpartition("exit code ")[2])
        nodes = _nodes(said.node or writer.node)
        if kind.event == "did_not_join":
            for named in said.ranks:
                self._append_once(kind.event, stamp, text, code=said.code, rank=named)
        elif len(nodes) > 1 and not said.tasks:
            for node in nodes:
                self.append(stamp, kind.event, text, code=code, node=node)
        else:
            self._add_places(said, _place_of(said, writer), nodes, stamp, text, code)

    def _add_places(
        self,
        said: Said,
        writer: Writer,
        nodes: Sequence[str | None],
        stamp: Stamp,
        text: str,
        code: str | None,
    ) -> None:
        """One event for each rank that a line names, or for the process that it is about."""
        kind, node = said.kind, nodes[0] if len(nodes) == 1 else None
        for rank in said.ranks or said.tasks or (writer.task if writer.rank is None else writer.rank,):
            nowhere = rank is None and writer.local is None and node is None
            if kind.generic and kind.event == "log" and nowhere:
                continue
            self.append(
                stamp,
                kind.event,
                text,
                code=code,
                rank=rank,
                node=node,
                pid=said.pid or pid_in(text),
                local=writer.local,
                is_task=bool(said.tasks) or (not said.ranks and writer.rank is None and rank is not None),
                device=said.device,
                weak=kind.weak or (kind.generic and nowhere),
            )

    def _append_once(self, kind: str, stamp: Stamp, message: str, *, code: str | None, rank: int) -> None:
        """Add an event that every rank, or every minute, may report again: the first one counts."""
        if (place := (kind, code, rank, None)) not in self._named:
            self._named.add(place)
            self.append(stamp, kind, message, code=code, rank=rank)

    def append(
        self,
        stamp: Stamp,
        kind: str,
        message: str,
        *,
        code: str | None = None,
        rank: int | None = None,
        node: str | None = None,
        pid: str | None = None,
        local: int | None = None,
        is_task: bool = False,
        device: str | None = None,
        weak: bool = False,
    ) -> None:
        """Add one event; NaN as its time is allowed."""
        self._seen[kind] += 1
        if self._seen[kind] > MAX_OF_A_KIND:
            self.left_out[kind] += 1
            return
        row = LogEvent(
            stamp.time,
            None if node is None else one_line(node),
            rank,
            kind,
            code,
            one_line(message),
            stamp,
            pid=pid,
            local=local,
            is_task=is_task,
            device=device,
        )
        (self.weak if weak else self.rows).append(row)

    @property
    def tell_failure(self) -> bool:
        """Whether an event is more than a sign of a victim."""
        return any(each.kind not in NO_FAILURES for each in self.rows)

    def go_on(self, stamp: Stamp, clock: LineClock) -> None:
        """Drop errors that the job survived: their file shows progress long after them."""
        now = clock.time_of(stamp)
        for rows in (self.rows, self.weak):
            kept = [row for row in rows if not self._survived(row, stamp, now, clock)]
            self.survived += len(rows) - len(kept)
            rows[:] = kept

    @staticmethod
    def _survived(row: LogEvent, stamp: Stamp, now: float, clock: LineClock) -> bool:
        own = row.kind == "process_error" and row.stamp.path == stamp.path
        return own and now > clock.time_of(row.stamp) + MIN_SURVIVED

    def keep_last_attempt(self, notes: list[str]) -> float:
        """Drop the failures of earlier attempts, and add what tables and process numbers show.

        A kill of a process in the table gets its rank. A table without its root cause gives one more exit
        of an unknown rank.

        Returns
        -------
        float, Unix seconds
            End of the attempt before; -inf without one.
        """
        earlier, last = self.tables.attempts()
        ended = max((time for each in earlier for time in each.times), default=-np.inf)
        kept = {(row.time, row.rank) for each in last for row in each.rows}
        gone = {(row.time, row.rank) for each in earlier for row in each.rows} - kept
        rows = [
            row
            for row in self.rows
            if (row.time, row.rank) not in gone
            and (not row.time <= ended or (row.kind == "process_exit" and (row.time, row.rank) in kept))
        ]
        if len(rows) < len(self.rows):
            notes.append(f"{len(self.rows) - len(rows)} events of earlier stops are left out")
        # Times are whole seconds, but torchrun compares exact ones.
        roots = {(row.time, row.rank): each.begin for each in last if each.rooted for row in each.rows[:-1]}
        after_root = ((row, roots.get((row.time, row.rank), -np.inf) + AFTER_ROOT) for row in rows)
        self.rows = [self.tables.with_rank(row._replace(time=max(row.time, at))) for row, at in after_root]
        whole = {(row.time, row.rank) for each in last if each.rooted for row in each.rows}
        for each in last:
            if not each.rooted and not {(row.time, row.rank) for row in each.rows} <= whole:
                notes.append(CUT_TABLE)
                time = min(each.times, default=np.nan)
                self.append(Stamp(time, 0, True), "process_exit", CUT_TABLE)
        self.tables.tables = last
        return ended

    def table(self, world_size: int, otherwise: float) -> pa.Table:
        """The events as the window's table, by time.

        Parameters
        ----------
        world_size : int
            Events of other ranks lose their rank.
        otherwise : float, Unix seconds
            The time of events without one.
        """
        rows = [
            each._replace(
                time=each.time if np.isfinite(each.time) else otherwise,
                rank=each.rank if each.rank is None or each.rank < world_size else None,
            )
            for each in self.rows
        ]
        rows.sort(key=lambda each: each.time)
        types = {column.name: column.type for column in EVENTS.columns}
        return pa.table(
            {name: pa.array([getattr(row, name) for row in rows], type=types[name]) for name in _COLUMNS}
        )


def _nodes(expression: str | None) -> list[str | None]:
    """The nodes of Slurm's list, such as ``gpu[03-04]``; an unreadable or long one is no node."""
    if expression is None or "[" not in expression:
        return [expression]
    try:
        found = expanded(expression)
    except InvalidInput:
        return [None]
    return [*found] if len(found) <= MAX_NODES else [None]


def _place_of(said: Said, writer: Writer) -> Writer:
    """The process that a line without ranks is about: the one that wrote it, or its number on a node."""
    own = Writer() if said.kind.event in ABOUT_OTHERS else writer
    if said.local is not None:
        return own._replace(local=said.local)
    if own.local is None and said.kind.name == "cuda_out_of_memory" and said.device is not None:
        return own._replace(local=int(said.device))
    return own
