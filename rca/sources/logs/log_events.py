"""Failures that job and kernel logs report: exits, device errors, kills and errors of CUDA and NCCL."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rca.sources.logs.line_kinds import Said, marks_pattern, said_by
from rca.sources.logs.line_search import Flood
from rca.sources.logs.text_lines import LineClock, Stamp, TextLine
from rca.window.node_names import same_nodes
from rca.window.schema import EVENTS

#: Failures further apart are of two attempts, seconds.
ONE_STOP = 1800.0
#: A table of the same host and file that begins so much later is of the next attempt, seconds.
NEXT_ATTEMPT = 10.0
_CUT_TABLE = "torchrun's table is cut before its root cause: which rank failed first is unknown"
#: More events of one kind are counted only: a failing link may write a line every millisecond.
MAX_OF_A_KIND = 5000
MAX_MESSAGE_LENGTH = 300
#: Finds every line that `LogEvents.add` may use.
PATTERN = re.compile(
    marks_pattern()
    + rb"|Missing ranks:|imed out task names:|^\d{1,6}: \[[A-Za-z]|^[ \t]*/job:[\w-]+/"
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
#: A line of the table that torchrun prints for each failed process.
_FAILED = re.compile(r"^(?:.{0,200}?\s)?(time|host|rank|exitcode|traceback) +: (.+)$")
#: The two parts of the table: other failures, then the process that failed first.
_PART = re.compile(r"(?:^|\s)(Failures:|Root Cause \(first observed failure\):)$")
_NUMBER = re.compile(r"-?\d{1,9}(?!\d)")
_LOCAL = re.compile(r"\(local_rank: (\d{1,4})\)")
_PID = re.compile(r"\(pid: (\d{1,9})\)|Killed? process (\d{1,9})|\bpid=(\d{1,9})")
_PG_RANK = re.compile(
    r"\[PG (?:ID 0 PG GUID )?+0? ?\(?(?:default_pg)?\)? ?Rank (\d{1,6})\]|\] \[Rank (\d{1,6})\] "
)
#: Lists of ranks that others miss: the header, and a line of it. Of Horovod with the tensors that a rank
#: did not submit, and of JAX's coordination service.
_LISTS = {
    "Missing ranks:": re.compile(r"^(\d{1,6}): \[[A-Za-z]"),
    "imed out task names:": re.compile(r"^\s*+/job:[\w-]{1,60}+/(?:replica:\d{1,6}+/)?task:(\d{1,6})\s*$"),
}
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


class _Event(NamedTuple):
    """A row of the events table, with what helps to place it.

    `stamp` is where the time comes from; `pid` and `local` name the process on its node. `is_task` is true if
    the rank is the number of a launcher's task, which may be a node.
    """

    time: float
    node: str | None
    rank: int | None
    kind: str
    code: str | None
    message: str
    stamp: Stamp
    pid: str | None = None
    local: int | None = None
    is_task: bool = False


#: Columns of the events table.
_COLUMNS = ("time", "node", "rank", "kind", "code", "message")


@dataclass
class _Table:
    """One table of torchrun: its rows, and whether its root cause is complete."""

    path: Path
    rows: list[_Event] = field(default_factory=list)
    in_root: bool = False
    rooted: bool = False

    @property
    def times(self) -> list[float]:
        return [each.time for each in self.rows if np.isfinite(each.time)]

    @property
    def begin(self) -> float:
        """Time of the root cause, the last row; of the earliest row without one."""
        return self.rows[-1].time if self.rooted else min(self.times, default=np.nan)


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

    rows: list[_Event] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    flood: Flood = field(default_factory=Flood)
    _seen: Counter[str] = field(default_factory=Counter)
    _exits: set[tuple[float, int]] = field(default_factory=set)
    _failed: dict[str, str] = field(default_factory=dict)
    _failed_at: float = np.nan
    _tables: list[_Table] = field(default_factory=list)
    _pids: dict[str, list[_Event]] = field(default_factory=dict)
    _named: set[tuple[str, str | None, int | None, str | None]] = field(default_factory=set)
    _list: tuple[Path, re.Pattern[str]] | None = None

    def add(self, line: TextLine, stamp: Stamp) -> None:
        """Add the events of a line, if it has any."""
        text = line.text
        part = _FAILED.search(text) if " : " in text else None
        if text.endswith(":") and (header := _PART.search(text)) is not None:
            self._begin_part(header[1], line)
        elif "Root Cause (first" in text or "Failures:" in text:
            return
        elif part is not None:
            self._add_failed(part[1], part[2].strip(), line)
        elif (missing := self._listed(line)) is not None:
            self._append_once("did_not_join", stamp, text, code="list", rank=missing)
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
                pid=said.pid or _pid(text),
                local=local,
                is_task=bool(said.tasks),
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
    ) -> None:
        """Add one event; NaN as its time is allowed."""
        self._seen[kind] += 1
        if self._seen[kind] > MAX_OF_A_KIND:
            self.left_out[kind] += 1
            return
        node = None if node is None else one_line(node)
        row = _Event(
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
        )
        self.rows.append(row)

    def _add_failed(self, name: str, value: str, line: TextLine) -> None:
        """A line of torchrun's table: its rows begin with the time and end with the traceback."""
        if name == "time":
            self._failed, self._failed_at = {}, line.time
        self._failed[name] = value
        if name != "traceback" or not {"rank", "exitcode"} <= self._failed.keys():
            return
        rank, code = _NUMBER.match(self._failed["rank"]), _NUMBER.match(self._failed["exitcode"])
        if rank is not None and code is not None:
            node = one_line(self._failed.get("host", "")) or None
            local = _LOCAL.search(self._failed["rank"])
            row = _Event(
                self._failed_at,
                node,
                int(rank[0]),
                "process_exit",
                code[0],
                one_line(value),
                Stamp(self._failed_at, 0, True),
                pid=_pid(self._failed["exitcode"]),
                local=None if local is None else int(local[1]),
            )
            table = self._table_of(line)
            table.rows.append(row)
            table.rooted = table.in_root
            if row.pid is not None:
                self._pids.setdefault(row.pid, []).append(row)
            if (row.time, int(rank[0])) not in self._exits:
                # Every node's agent prints the table.
                self._exits.add((row.time, int(rank[0])))
                self.rows.append(row)
        self._failed = {}

    def _begin_part(self, header: str, line: TextLine) -> None:
        if header == "Failures:":
            self._tables.append(_Table(line.path))
        else:
            self._table_of(line).in_root = True

    def _table_of(self, line: TextLine) -> _Table:
        """The table to which a line belongs: the last one, unless it is complete or of another file."""
        if not self._tables or self._tables[-1].rooted or self._tables[-1].path != line.path:
            self._tables.append(_Table(line.path))
        return self._tables[-1]

    @property
    def last_exit(self) -> float:
        """Time of the last row of torchrun's tables, Unix seconds; -inf without one."""
        return max((time for table in self._tables for time in table.times), default=-np.inf)

    def keep_last_attempt(self, notes: list[str]) -> float:
        """Drop the failures of earlier attempts, and add what tables and process numbers show.

        A kill of a process in the table gets its rank. A table without its root cause gives one more exit
        of an unknown rank.

        Returns
        -------
        float, Unix seconds
            End of the attempt before; -inf without one.
        """
        tables = [each for each in self._tables if each.rows]
        if all(each.times for each in tables):
            tables.sort(key=lambda each: each.begin)
        earlier: list[_Table] = []
        last: list[_Table] = []
        for each in tables:
            if any(_is_next(before, each) for before in last):
                earlier, last = earlier + last, []
            last.append(each)
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
        self.rows = [
            self._with_rank(row._replace(time=max(row.time, roots.get((row.time, row.rank), -np.inf) + 1e-3)))
            for row in rows
        ]
        whole = {(row.time, row.rank) for each in last if each.rooted for row in each.rows}
        for each in last:
            if not each.rooted and not {(row.time, row.rank) for row in each.rows} <= whole:
                notes.append(_CUT_TABLE)
                time = min(each.times, default=np.nan)
                self.append(Stamp(time, 0, True), "process_exit", _CUT_TABLE)
        self._tables = last
        return ended

    def _with_rank(self, row: _Event) -> _Event:
        """The event with the rank of the process that it names, if that is in the table."""
        if row.rank is not None:
            return row
        for ended in self._pids.get(row.pid or "", []):
            one_host = not row.node or not ended.node or same_nodes([row.node], [ended.node])[0] == 0
            if one_host and not abs(row.time - ended.time) > ONE_STOP:
                return row._replace(rank=ended.rank, node=row.node or ended.node)
        return row

    def place(
        self,
        clock: LineClock,
        ranks: Collection[int],
        world_size: int,
        notes: list[str],
        *,
        tasks_are_ranks: bool = False,
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
        """
        roots = [each.rows[-1] for each in self._tables if each.rooted]
        known = {row.pid for rows in self._pids.values() for row in rows}
        one_node = max([world_size - 1, *ranks, *(row.rank or 0 for row in roots)]) <= MAX_LOCAL_RANK
        of_tasks = tasks_are_ranks or (not ranks and not roots)
        placed: list[_Event] = []
        guessed = 0
        for row in self.rows:
            event = row._replace(time=clock.time_of(row.stamp))
            if event.kind == "process_exit" and event.local is not None and event.rank is None:
                if event.pid in known:
                    continue  # The table says more about it.
                if one_node and event.local <= MAX_LOCAL_RANK:
                    event, guessed = event._replace(rank=event.local), guessed + 1
                    self._pids.setdefault(event.pid or "", []).append(event)
            elif event.kind == "process_error" and event.rank is None:
                event = _of_table(event, self._tables)
            elif event.is_task and not of_tasks:
                event = event._replace(rank=None)
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


def one_line(text: str, most: int = MAX_MESSAGE_LENGTH) -> str:
    """A text on one line, without control characters, cut at `most` characters."""
    printable = text[: 2 * most]
    if not printable.isprintable():
        printable = "".join(each if each.isprintable() else " " for each in printable)
    return " ".join(printable.split())[:most]


def _of_table(error: _Event, tables: Sequence[_Table]) -> _Event:
    """An error of an unknown process with the rank of the one that the table of its file says failed first.

    If the error names a device, only the process with this number on its node can have written it.
    """
    for each in tables:
        if each.rooted and each.path == error.stamp.path:
            rows = [row for row in each.rows if error.local in (None, row.local)]
            if rows and (error.local is not None or len(each.rows) == 1):
                return error._replace(rank=rows[-1].rank, node=error.node or rows[-1].node)
    return error


def _is_next(before: _Table, table: _Table) -> bool:
    """Whether a later table is of another attempt than `before`."""
    ended = {row.rank: row.time for row in before.rows}
    if any(row.rank in ended and abs(ended[row.rank] - row.time) > 0 for row in table.rows):
        return True
    if not before.times or not table.times:
        return False
    gap = table.begin - max(before.times)
    one_host = bool({row.node for row in before.rows} & {row.node for row in table.rows})
    return gap > ONE_STOP or (gap > NEXT_ATTEMPT and one_host and before.path == table.path)


def _pid(text: str) -> str | None:
    found = _PID.search(text)
    return None if found is None else next(each for each in found.groups() if each)


def _host(text: str) -> str | None:
    found = next((each for each in (host.search(text) for host in _HOSTS) if each is not None), None)
    return None if found is None else one_line(found[1])
