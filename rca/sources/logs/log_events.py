"""Failures that job and kernel logs report: exits, device errors, kills and errors of CUDA and NCCL."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rca.sources.logs.text_lines import TextLine
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
    rb"NVRM: Xid|Out of memory: Kill|oom-kill:|NCCL WARN|CUDA error|CUDA out of memory|Segmentation fault"
    rb"|Heartbeat monitor timed out|(?:^|[ \t])Failures:[ \t]*$|Root Cause \(first observed failure\)"
    rb"|^[ \t]*(?:\S+ +)?(?:time|host|rank|exitcode|traceback) +: ",
    re.MULTILINE,
)
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([^)]+)\): (\d+)")
#: The host of a kernel line, as syslog and journalctl write it.
_HOST = re.compile(r"(?:\d\d:\d\d:\d\d\S*) (\S+) kernel:")
_NAMED_KINDS = {"oom_kill": ("Out of memory: Kill", "oom-kill:"), "heartbeat_missed": ("Heartbeat monitor",)}
#: A line of the table that torchrun prints for each failed process.
_FAILED = re.compile(r"(?:^|\s)(time|host|rank|exitcode|traceback) +: (.+)$")
#: The two parts of the table: other failures, then the process that failed first.
_PART = re.compile(r"(?:^|\s)(Failures:|Root Cause \(first observed failure\):)\s*$")
_NUMBER = re.compile(r"-?\d+")
_PID = re.compile(r"\(pid: (\d+)\)|Killed? process (\d+)|\bpid=(\d+)")
_PG_RANK = re.compile(r"\[PG [^\]]* Rank (\d+)\]")


class _Event(NamedTuple):
    time: float
    node: str | None
    rank: int | None
    kind: str
    code: str | None
    message: str


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
    """

    rows: list[_Event] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    _seen: Counter[str] = field(default_factory=Counter)
    _exits: set[tuple[float, int]] = field(default_factory=set)
    _failed: dict[str, str] = field(default_factory=dict)
    _failed_at: float = np.nan
    _tables: list[_Table] = field(default_factory=list)
    _pids: dict[str, list[_Event]] = field(default_factory=dict)

    def add(self, line: TextLine) -> None:
        """Add the event of a line, if it has one."""
        text = line.text
        part = _FAILED.search(text)
        if (header := _PART.search(text)) is not None:
            self._begin_part(header[1], line)
        elif "Root Cause (first" in text or "Failures:" in text:
            return
        elif part is not None:
            self._add_failed(part[1], part[2].strip(), line)
        elif (xid := _XID.search(text)) is not None:
            self.append(line.time, "xid", text, code=xid[2], node=_host(text))
        else:
            known = [kind for kind, marks in _NAMED_KINDS.items() if any(mark in text for mark in marks)]
            kind = known[0] if known else "log"
            rank = line.rank
            if rank is None and (of_group := _PG_RANK.search(text)) is not None:
                rank = int(of_group[1])
            node = _host(text)
            self.append(line.time, kind, text, rank=rank, node=node)

    def append(
        self,
        time: float,
        kind: str,
        message: str,
        *,
        code: str | None = None,
        rank: int | None = None,
        node: str | None = None,
    ) -> None:
        """Add one event; NaN as its time is allowed."""
        self._seen[kind] += 1
        if self._seen[kind] > MAX_OF_A_KIND:
            self.left_out[kind] += 1
            return
        self.rows.append(_Event(time, node, rank, kind, code, one_line(message)))

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
            row = _Event(self._failed_at, node, int(rank[0]), "process_exit", code[0], one_line(value))
            table = self._table_of(line)
            table.rows.append(row)
            table.rooted = table.in_root
            if (pid := _pid(self._failed["exitcode"])) is not None:
                self._pids.setdefault(pid, []).append(row)
            if (row.time, int(rank[0])) not in self._exits:
                # Every node's agent prints the table.
                self._exits.add((row.time, int(rank[0])))
                self.append(row.time, row.kind, value, code=row.code, rank=row.rank, node=node)
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
                self.append(time, "process_exit", _CUT_TABLE)
        self._tables = last
        return ended

    def _with_rank(self, row: _Event) -> _Event:
        """The event with the rank of the process that it names, if that is in the table."""
        pid = _pid(row.message) if row.kind in {"oom_kill", "xid"} and row.rank is None else None
        for ended in self._pids.get(pid or "", []):
            one_host = not row.node or not ended.node or same_nodes([row.node], [ended.node])[0] == 0
            if one_host and not abs(row.time - ended.time) > ONE_STOP:
                return row._replace(rank=ended.rank, node=row.node or ended.node)
        return row

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
            {
                name: pa.array([getattr(row, name) for row in rows], type=types[name])
                for name in _Event._fields
            }
        )


def one_line(text: str, most: int = MAX_MESSAGE_LENGTH) -> str:
    """A text on one line, without control characters, cut at `most` characters."""
    printable = text[: 2 * most]
    if not printable.isprintable():
        printable = "".join(each if each.isprintable() else " " for each in printable)
    return " ".join(printable.split())[:most]


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
    found = _HOST.search(text)
    return None if found is None else one_line(found[1])
