"""Failures that job and kernel logs report: exits, device errors, kills and errors of CUDA and NCCL."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rca.telemetry.schema import EVENTS
from rca.telemetry.sources.text_lines import Line

#: More events of one kind are counted only: a failing link may write a line every millisecond.
MOST_OF_A_KIND = 5000
LONGEST_MESSAGE = 300
#: Finds every line that `LogEvents.add` may use.
PATTERN = re.compile(
    rb"NVRM: Xid|Out of memory: Kill|oom-kill:|NCCL WARN|CUDA error|CUDA out of memory|Segmentation fault"
    rb"|Heartbeat monitor timed out|^[ \t]*(?:\S+ +)?(?:time|host|rank|exitcode|traceback) +: ",
    re.MULTILINE,
)
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([^)]+)\): (\d+)")
#: The host of a kernel line, as syslog and journalctl write it.
_HOST = re.compile(r"(?:\d\d:\d\d:\d\d\S*) (\S+) kernel:")
_NAMED_KINDS = {"oom_kill": ("Out of memory: Kill", "oom-kill:"), "heartbeat_missed": ("Heartbeat monitor",)}
#: A line of the table that torchrun prints for each failed process.
_FAILED = re.compile(r"(?:^|\s)(time|host|rank|exitcode|traceback) +: (.+)$")
_NUMBER = re.compile(r"-?\d+")
_PG_RANK = re.compile(r"\[PG [^\]]* Rank (\d+)\]")


class _Event(NamedTuple):
    time: float
    node: str | None
    rank: int | None
    kind: str
    code: str | None
    message: str


@dataclass
class LogEvents:
    """Events of several logs, in the order of their lines.

    Attributes
    ----------
    left_out : Counter of str
        Events beyond `MOST_OF_A_KIND`, by kind.
    """

    rows: list[_Event] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    _seen: Counter[str] = field(default_factory=Counter)
    _exits: set[tuple[float, int]] = field(default_factory=set)
    _failed: dict[str, str] = field(default_factory=dict)
    _failed_at: float = np.nan

    def add(self, line: Line) -> None:
        """Add the event of a line, if it has one."""
        text = line.text
        part = _FAILED.search(text)
        if part is not None:
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
        if self._seen[kind] > MOST_OF_A_KIND:
            self.left_out[kind] += 1
            return
        self.rows.append(_Event(time, node, rank, kind, code, one_line(message)))

    def _add_failed(self, name: str, value: str, line: Line) -> None:
        """A line of torchrun's table: its rows begin with the time and end with the traceback."""
        if name == "time":
            self._failed, self._failed_at = {}, line.time
        self._failed[name] = value
        if name != "traceback" or not {"rank", "exitcode"} <= self._failed.keys():
            return
        rank, code = _NUMBER.match(self._failed["rank"]), _NUMBER.match(self._failed["exitcode"])
        if rank is not None and code is not None and (self._failed_at, int(rank[0])) not in self._exits:
            # Every node's agent prints the table.
            self._exits.add((self._failed_at, int(rank[0])))
            node = one_line(self._failed.get("host", "")) or None
            self.append(self._failed_at, "process_exit", value, code=code[0], rank=int(rank[0]), node=node)
        self._failed = {}

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


def one_line(text: str, most: int = LONGEST_MESSAGE) -> str:
    """A text on one line, without control characters, cut at `most` characters."""
    printable = text[: 2 * most]
    if not printable.isprintable():
        printable = "".join(each if each.isprintable() else " " for each in printable)
    return " ".join(printable.split())[:most]


def _host(text: str) -> str | None:
    found = _HOST.search(text)
    return None if found is None else one_line(found[1])
