"""Events of logs, and the tables of failed processes that torchrun prints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rca.sources.logs.text_lines import Stamp, TextLine
from rca.window.node_names import same_nodes

#: Failures further apart are of two attempts: longer than the longest usual timeout, half an hour; seconds.
ONE_STOP = 2100.0
#: A table of the same host and file that begins so much later is of the next attempt, seconds.
NEXT_ATTEMPT = 10.0
CUT_TABLE = "torchrun's table is cut before its root cause: which rank failed first is unknown"
MAX_MESSAGE_LENGTH = 300
#: A line of the table that torchrun prints for each failed process.
_FAILED = re.compile(r"^(?:.{0,200}?\s)?(time|host|rank|exitcode|traceback) +: (.+)$")
#: The two parts of the table: other failures, then the process that failed first.
_PART = re.compile(r"(?:^|\s)(Failures:|Root Cause \(first observed failure\):)$")
_NUMBER = re.compile(r"-?\d{1,9}(?!\d)")
_LOCAL = re.compile(r"\(local_rank: (\d{1,4})\)")
_PID = re.compile(r"\(pid: (\d{1,9})\)|Killed? process (\d{1,9})|\bpid=(\d{1,9})")


class LogEvent(NamedTuple):
    """A row of the events table, with what helps to place it.

    `stamp` is where the time comes from; `pid` and `local` name the process on its node. `is_task` is true if
    the rank is the number of a launcher's task, which may be a node. `device` is a PCI address.
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
    device: str | None = None


@dataclass
class FailureTable:
    """One table of torchrun: its rows, and whether its root cause is complete."""

    path: Path
    rows: list[LogEvent] = field(default_factory=list)
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
class FailureTables:
    """Tables of failed processes, of several logs.

    Attributes
    ----------
    by_pid : dict of str to list of LogEvent
        The rows by process number, with processes that launchers name elsewhere.
    """

    tables: list[FailureTable] = field(default_factory=list)
    by_pid: dict[str, list[LogEvent]] = field(default_factory=dict)
    _seen: set[tuple[float, int]] = field(default_factory=set)
    _failed: dict[str, str] = field(default_factory=dict)
    _failed_at: float = np.nan

    def begin(self, line: TextLine) -> bool:
        """Begin a part of a table; whether the line is the header of one."""
        header = _PART.search(line.text) if line.text.endswith(":") else None
        if header is None:
            return False
        if header[1] == "Failures:":
            self.tables.append(FailureTable(line.path))
        else:
            self._table_of(line).in_root = True
        return True

    def add(self, line: TextLine) -> tuple[bool, LogEvent | None]:
        """Whether the line is of a table; the event of a row that it ends and that is new."""
        part = _FAILED.search(line.text) if " : " in line.text else None
        return (False, None) if part is None else (True, self._add(part[1], part[2].strip(), line))

    def _add(self, name: str, value: str, line: TextLine) -> LogEvent | None:
        """A line of torchrun's table: its rows begin with the time and end with the traceback."""
        if name == "time":
            self._failed, self._failed_at = {}, line.time
        self._failed[name] = value
        if name != "traceback" or not {"rank", "exitcode"} <= self._failed.keys():
            return None
        failed, self._failed = self._failed, {}
        rank, code = _NUMBER.match(failed["rank"]), _NUMBER.match(failed["exitcode"])
        if rank is None or code is None:
            return None
        local = _LOCAL.search(failed["rank"])
        row = LogEvent(
            self._failed_at,
            one_line(failed.get("host", "")) or None,
            int(rank[0]),
            "process_exit",
            code[0],
            one_line(value),
            Stamp(self._failed_at, 0, True),
            pid=pid_in(failed["exitcode"]),
            local=None if local is None else int(local[1]),
        )
        table = self._table_of(line)
        table.rows.append(row)
        table.rooted = table.in_root
        if row.pid is not None:
            self.by_pid.setdefault(row.pid, []).append(row)
        # Every node's agent prints the table.
        place = row.time, int(rank[0])
        known = place in self._seen
        self._seen.add(place)
        return None if known else row

    def _table_of(self, line: TextLine) -> FailureTable:
        """The table to which a line belongs: the last one, unless it is complete or of another file."""
        if not self.tables or self.tables[-1].rooted or self.tables[-1].path != line.path:
            self.tables.append(FailureTable(line.path))
        return self.tables[-1]

    @property
    def last_exit(self) -> float:
        """Time of the last row of torchrun's tables, Unix seconds; -inf without one."""
        return max((time for table in self.tables for time in table.times), default=-np.inf)

    def attempts(self) -> tuple[list[FailureTable], list[FailureTable]]:
        """The tables with rows: those of earlier attempts, and those of the last one."""
        tables = [each for each in self.tables if each.rows]
        if all(each.times for each in tables):
            tables.sort(key=lambda each: each.begin)
        earlier: list[FailureTable] = []
        last: list[FailureTable] = []
        for each in tables:
            if any(_is_next(before, each) for before in last):
                earlier, last = earlier + last, []
            last.append(each)
        return earlier, last

    def with_rank(self, row: LogEvent) -> LogEvent:
        """The event with the rank of the process that it names, if that is in a table."""
        if row.rank is not None:
            return row
        for ended in self.by_pid.get(row.pid or "", []):
            one_host = not row.node or not ended.node or same_nodes([row.node], [ended.node])[0] == 0
            if one_host and not abs(row.time - ended.time) > ONE_STOP:
                return row._replace(rank=ended.rank, node=row.node or ended.node)
        return row


def one_line(text: str, most: int = MAX_MESSAGE_LENGTH) -> str:
    """A text on one line, without control characters, cut at `most` characters."""
    printable = text[: 2 * most]
    if not printable.isprintable():
        printable = "".join(each if each.isprintable() else " " for each in printable)
    return " ".join(printable.split())[:most]


def error_of_table(error: LogEvent, tables: Sequence[FailureTable]) -> LogEvent:
    """An error of an unknown process with the rank of one that the table of its file lists.

    The process that failed first has written it, unless the error names the device of another one. Processes
    that see one device each call it 0.
    """
    for each in tables:
        if each.rooted and each.path == error.stamp.path:
            root = each.rows[-1]
            others = [row for row in each.rows[:-1] if error.local and row.local == error.local]
            rows = others if others and root.local != error.local else [root]
            if error.local is not None or len(each.rows) == 1:
                return error._replace(rank=rows[-1].rank, node=error.node or rows[-1].node)
    return error


def _is_next(before: FailureTable, table: FailureTable) -> bool:
    """Whether a later table is of another attempt than `before`."""
    ended = {row.rank: row.time for row in before.rows}
    if any(row.rank in ended and abs(ended[row.rank] - row.time) > 0 for row in table.rows):
        return True
    if not before.times or not table.times:
        return False
    gap = table.begin - max(before.times)
    one_host = bool({row.node for row in before.rows} & {row.node for row in table.rows})
    return gap > ONE_STOP or (gap > NEXT_ATTEMPT and one_host and before.path == table.path)


def pid_in(text: str) -> str | None:
    found = _PID.search(text)
    return None if found is None else next(each for each in found.groups() if each)
