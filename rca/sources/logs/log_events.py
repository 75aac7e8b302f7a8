"""Failures that job and kernel logs report: exits, device errors, kills and errors of CUDA and NCCL."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from rca.sources.logs.failure_tables import (
    CUT_TABLE,
    FailureTables,
    LogEvent,
    error_of_table,
    one_line,
    pid_in,
)
from rca.sources.logs.line_kinds import Said, marks_pattern, said_by
from rca.sources.logs.line_search import Flood
from rca.sources.logs.nccl_places import NcclPlaces
from rca.sources.logs.text_lines import LineClock, Stamp, TextLine
from rca.window.schema import EVENTS

#: More events of one kind are counted only: a failing link may write a line every millisecond.
MAX_OF_A_KIND = 5000
#: Finds every line that `LogEvents.add` may use.
PATTERN = re.compile(
    marks_pattern()
    + rb"|Missing ranks:|imed out task names:|^\d{1,6}: \[[A-Za-z]|^[ \t]*/job:[\w-]+/"
    + rb"|The actor died unexpectedly|^[^\n]{0,120}\bip: \d+\.\d+\.\d+\.\d+[ \t]*$"
    + rb"|(?:^|[ \t])Failures:[ \t]*$|Root Cause \(first observed failure\)"
    + rb"|^[ \t]*(?:\S+ +)?(?:time|host|rank|exitcode|traceback) +: ",
    re.MULTILINE,
)
#: The host of a kernel line, as syslog and journalctl write it; of a line of NCCL; of a worker of Ray.
_HOSTS = (
    re.compile(r"\d\d:\d\d:\d\d\S{0,40}+ (\S{1,120}+) kernel:"),
    re.compile(r"^(?:\S{1,40} )?([A-Za-z][\w.-]{0,120}+):\d{1,9}+:\d{1,9}+ \[\d{1,3}+\] "),
    re.compile(r"^\(\w{1,80}+ pid=\d{1,9}+, ip=([\w.:-]{1,60}+)\)"),
)
_PG_RANK = re.compile(
    r"\[PG (?:ID 0 PG GUID )?+0? ?\(?(?:default_pg)?\)? ?Rank (\d{1,6})\]|\] \[Rank (\d{1,6})\] "
)
#: Lists of ranks that others miss: the header, and a line of it. Of Horovod with the tensors that a rank
#: did not submit, and of JAX's coordination service.
_LISTS = {
    "Missing ranks:": re.compile(r"^(\d{1,6}): \[[A-Za-z]"),
    "imed out task names:": re.compile(r"^\s*+/job:[\w-]{1,60}+/(?:replica:\d{1,6}+/)?task:(\d{1,6})\s*$"),
}
#: A line of Ray's report of a dead actor that names its node.
_ACTOR_DIED = "The actor died unexpectedly before finishing this task"
_ACTOR_NODE = re.compile(r"^(?:\(.{1,120}?\))?\s*+ip: (\d{1,3}(?:\.\d{1,3}){3})\s*$")
#: Exit codes of Slurm's words for the end of a task.
_WORDS = {
    "Killed": "-9",
    "Terminated": "-15",
    "Aborted": "-6",
    "Bus error": "-7",
    "Segmentation fault": "-11",
    "Floating point exception": "-8",
}
#: The largest local rank that may stand for a rank where nothing shows a second node.
MAX_LOCAL_RANK = 7


#: Columns of the events table.
_COLUMNS = ("time", "node", "rank", "kind", "code", "message")


@dataclass
class LogEvents:
    """Events of several logs, in the order of their lines.

    Attributes
    ----------
    left_out : Counter of str
        Events beyond `MAX_OF_A_KIND`, by kind.
    flood : Flood
        Lines of kinds of which there are too many.
    """

    rows: list[LogEvent] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    flood: Flood = field(default_factory=Flood)
    _seen: Counter[str] = field(default_factory=Counter)
    tables: FailureTables = field(default_factory=FailureTables)
    _named: set[tuple[str, str | None, int | None, str | None]] = field(default_factory=set)
    _actor_of: Path | None = None
    _list: tuple[Path, re.Pattern[str]] | None = None

    def add(self, line: TextLine, stamp: Stamp) -> None:
        """Add the events of a line, if it has any."""
        text = line.text
        if self.tables.begin(line):
            return
        if "Root Cause (first" in text or "Failures:" in text:
            return
        of_table, ended = self.tables.add(line)
        if ended is not None:
            self.rows.append(ended)
        if of_table:
            return
        if (missing := self._listed(line)) is not None:
            self._append_once("did_not_join", stamp, text, code="list", rank=missing)
        elif _ACTOR_DIED in text:
            self._actor_of = line.path
        elif self._actor_of == line.path and (node := _ACTOR_NODE.match(text)) is not None:
            self._actor_of = None
            self.append(stamp, "process_exit", f"{_ACTOR_DIED}, {text.strip()}", node=node[1])
        elif (said := said_by(text)) is not None:
            self._add_said(said, line, stamp)

    def _listed(self, line: TextLine) -> int | None:
        """The rank of a line in a list of missing ranks; None if it is no such line."""
        header = next((each for each in _LISTS if each in line.text), None)
        if header is not None:
            self._list = line.path, _LISTS[header]
        if header is not None or self._list is None or self._list[0] != line.path:
            return None
        found = self._list[1].match(line.text)
        return None if found is None else int(found[1])

    def _add_said(self, said: Said, line: TextLine, stamp: Stamp) -> None:
        """The events of one line: of the ranks that it names, else of the rank that wrote it."""
        text, kind = line.text, said.kind
        if self._seen[kind.event] >= MAX_OF_A_KIND:
            self._seen[kind.event] += 1
            self.left_out[kind.event] += 1
            self.flood.marks.update(kind.marks)
            return
        node = said.node or _host(text)
        own: int | None = line.rank
        if own is None and (of_group := _PG_RANK.search(text)) is not None:
            own = int(of_group[1] or of_group[2])
        if own is None and kind.event == "process_error":
            own = line.named
        local = said.local
        if kind.name == "cuda_out_of_memory" and said.device is not None:
            local = int(said.device)
        code = None if said.code is None else _WORDS.get(said.code, said.code.rpartition("exit code ")[2])
        if kind.event == "did_not_join":
            for named in said.ranks:
                self._append_once(kind.event, stamp, text, code=said.code, rank=named)
            return
        places: tuple[int | None, ...] = said.ranks or said.tasks or (own,)
        for rank in places:
            self.append(
                stamp,
                kind.event,
                text,
                code=code,
                rank=rank,
                node=node,
                pid=said.pid or pid_in(text),
                local=local,
                is_task=bool(said.tasks),
                device=said.device,
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
    ) -> None:
        """Add one event; NaN as its time is allowed."""
        self._seen[kind] += 1
        if self._seen[kind] > MAX_OF_A_KIND:
            self.left_out[kind] += 1
            return
        node = None if node is None else one_line(node)
        row = LogEvent(
            stamp.time,
            node,
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
        self.rows.append(row)

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
        # Times are whole seconds, but torchrun compares exact ones: the root cause came first.
        roots = {(row.time, row.rank): each.begin for each in last if each.rooted for row in each.rows[:-1]}
        after_root = ((row, roots.get((row.time, row.rank), -np.inf) + 1e-3) for row in rows)
        self.rows = [self.tables.with_rank(row._replace(time=max(row.time, at))) for row, at in after_root]
        whole = {(row.time, row.rank) for each in last if each.rooted for row in each.rows}
        for each in last:
            if not each.rooted and not {(row.time, row.rank) for row in each.rows} <= whole:
                notes.append(CUT_TABLE)
                time = min(each.times, default=np.nan)
                self.append(Stamp(time, 0, True), "process_exit", CUT_TABLE)
        self.tables.tables = last
        return ended

    def place(
        self,
        clock: LineClock,
        ranks: Collection[int],
        world_size: int,
        notes: list[str],
        *,
        tasks_are_ranks: bool = False,
        places: NcclPlaces | None = None,
    ) -> None:
        """Set the times of all events, and the ranks that follow from other lines.

        Parameters
        ----------
        clock : LineClock
            It has seen all lines.
        ranks : collection of int
            Ranks that lines name.
        world_size : int
            As the logs state it; 0 if they do not.
        tasks_are_ranks : bool
            Numbers of a launcher's tasks are ranks. Without other ranks they are taken for such.
        places : NcclPlaces, optional
            The ranks of GPUs that kernels name.
        """
        roots = [each.rows[-1] for each in self.tables.tables if each.rooted]
        known = {row.pid for rows in self.tables.by_pid.values() for row in rows}
        one_node = max([world_size - 1, *ranks, *(row.rank or 0 for row in roots)]) <= MAX_LOCAL_RANK
        one_node = one_node and len({row.node for row in self.rows if row.node is not None}) <= 1
        of_tasks = tasks_are_ranks or (not ranks and not roots)
        placed: list[LogEvent] = []
        guessed = 0
        for row in self.rows:
            event = row._replace(time=clock.time_of(row.stamp))
            if event.kind == "process_exit" and event.local is not None and event.rank is None:
                if event.pid in known:
                    continue  # The table says more about it.
                if one_node and event.local <= MAX_LOCAL_RANK:
                    event, guessed = event._replace(rank=event.local), guessed + 1
                    if event.pid is not None:
                        self.tables.by_pid.setdefault(event.pid, []).append(event)
            elif event.kind == "process_error" and event.rank is None:
                event = error_of_table(event, self.tables.tables)
            elif event.is_task and not of_tasks:
                event = event._replace(rank=None)
            elif event.rank is None and places is not None:
                event = event._replace(rank=places.rank_of(event))
            placed.append(event)
        if guessed:
            notes.append("a launcher names the local rank of a process only; it is taken for the rank")
        self.rows = placed

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


def _host(text: str) -> str | None:
    found = next((each for each in (host.search(text) for host in _HOSTS) if each is not None), None)
    return None if found is None else one_line(found[1])
