"""NCCL's RAS status as JSON: how many collectives each rank of each communicator has enqueued.

One status shows a moment, and ranks of a running job differ for a moment too. Two statuses of one job, a
minute apart, show which communicators stand still. Ranks are numbered within each communicator; the largest
one gives the ranks of the job.

References
----------
NVIDIA, "NCCL User Guide: RAS", NCCL 2.28.7 and later (``ncclras -f json``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from rca.errors import InvalidInput, SourceError, TooLarge
from rca.files import read_file
from rca.sources.logs.failure_tables import one_line
from rca.sources.logs.text_lines import time_of
from rca.sources.nccl_processes import NcclProcess, ranks_of_job
from rca.sources.source import Source
from rca.window.schema import COLLECTIVES, EVENTS, METRICS, OPS, STEPS
from rca.window.window import Window

MAX_BYTES = 256 * 1024**2
#: NCCL 2.28.9 leaves out the comma before the status of a missing rank.
_LOST_COMMA = re.compile(rb'("nvml_dev":\s*-?\d+)(\s+"status")')
_ADVICE = "write it with `ncclras -f json`, NCCL 2.28.7 or later"


@dataclass(frozen=True)
class _Member:
    """One rank of a communicator; `counts` is None for a rank that does not answer."""

    rank: int
    counts: Mapping[str, int] | None

    @property
    def total(self) -> int:
        return -1 if self.counts is None else sum(self.counts.values())


@dataclass(frozen=True)
class _Status:
    """One status: its time in Unix seconds, and the members of each communicator by name and process."""

    time: float
    communicators: Mapping[str, Mapping[NcclProcess, _Member]]


def is_status(head: bytes, _: str) -> bool:
    """Whether a file is a status, by its first bytes."""
    return b'"communicators_count"' in head or (b'"nccl_version"' in head and b'"communicators"' in head)


def read(paths: Sequence[Path], job_id: str) -> Window:
    """Read the statuses of one job, one per file, into a window without steps.

    Parameters
    ----------
    paths : sequence of Path
        The last one decides; earlier ones show since when nothing moved.
    job_id : str
        Of the window; a status holds none.

    Returns
    -------
    Window
        With the table ``collectives``. Its notes say what is missing.

    Raises
    ------
    InvalidInput
        If a file is damaged, or no communicator has a rank.
    """
    statuses = sorted((_status(path) for path in paths), key=lambda each: each.time)
    last = statuses[-1]
    if not any(last.communicators.values()):
        raise InvalidInput(f"{paths[-1].name}: no communicator has a rank", hint=_ADVICE)
    notes = ["times without a zone are taken for UTC"]
    communicators = {
        name: {process: member.rank for process, member in members.items()}
        for name, members in last.communicators.items()
    }
    sizes = {name: len(members) for name, members in communicators.items()}
    ranks, world_size = ranks_of_job(communicators, sizes, notes)
    if len(statuses) < 2:
        notes.append("one status shows no standstill: take a second one after a minute, into the same folder")
    rows = [
        row
        for name, members in last.communicators.items()
        for row in _rows(name, members, _still_since(name, statuses), ranks, len(statuses) > 1)
    ]
    types = {column.name: column.type for column in COLLECTIVES.columns}
    columns = {
        name: pa.array([row[place] for row in rows], type=types[name])
        for place, name in enumerate(("rank", "group", "state", "sequence", "waiting_since", "operation"))
    }
    places = [{"rank": rank, "node": process.host} for process, rank in ranks.items() if process.host]
    window = Window.from_tables(
        {
            "job_id": job_id,
            "framework": "pytorch",
            "world_size": world_size,
            "start": min(statuses[0].time, last.time - 1.0),
            "end": last.time,
            **({"ranks": places} if len(places) == world_size else {}),
        },
        STEPS.empty(),
        METRICS.empty(),
        EVENTS.empty(),
        OPS.empty(),
        pa.table(columns),
    )
    return replace(window, notes=(*window.notes, *notes))


def _rows(
    name: str,
    members: Mapping[NcclProcess, _Member],
    since: float,
    ranks: Mapping[NcclProcess, int],
    several: bool,
) -> list[tuple[int, str, str, int | None, float | None, str | None]]:
    """Rows of one communicator: who has enqueued most waits if it stands still and others lack."""
    most = max(member.total for member in members.values())
    lacking = any(member.total < most for member in members.values())
    still = np.isfinite(since) or not several
    rows: list[tuple[int, str, str, int | None, float | None, str | None]] = []
    for process, member in members.items():
        waits = lacking and still and member.total == most
        state = "unrecorded" if member.counts is None else "waiting" if waits else "finished"
        rows.append(
            (
                ranks[process],
                name,
                state,
                None if member.counts is None else member.total,
                since if waits and np.isfinite(since) else None,
                _differing(members) if waits else None,
            )
        )
    return rows


def _differing(members: Mapping[NcclProcess, _Member]) -> str | None:
    """The operation in whose counts the members differ most."""
    known = [member.counts for member in members.values() if member.counts is not None]
    kinds = sorted({kind for counts in known for kind in counts})
    spread = {kind: np.ptp([counts.get(kind, 0) for counts in known]) for kind in kinds}
    found = max(spread, key=lambda each: spread[each], default=None)
    return found if found is not None and spread[found] > 0 else None


def _still_since(name: str, statuses: Sequence[_Status]) -> float:
    """The time of the earliest status since which a communicator did not move; NaN if it did, or with one."""
    last = statuses[-1].communicators[name]
    since = np.nan
    for status in statuses[-2::-1]:
        before = status.communicators.get(name)
        if before is None or any(
            process not in before or (before[process].counts or {}) != (member.counts or {})
            for process, member in last.items()
            if member.counts is not None
        ):
            break
        since = status.time
    return since


def _status(path: Path) -> _Status:
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise TooLarge(f"{path.name} has {size:,} bytes; the limit of a status is {MAX_BYTES:,} bytes")
        body = read_file(path)
        written = path.stat().st_mtime
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error
    # A status that was read from the socket begins with lines of the protocol.
    body = _LOST_COMMA.sub(rb"\1,\2", body[max(0, body.find(b"{")) :])
    try:
        content = orjson.loads(body)
        communicators = content["communicators"]
        parsed = {_name(each): _members(each) for each in communicators}
    except orjson.JSONDecodeError as error:
        raise _damaged(path, str(error)) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from None
    time = time_of(str(content.get("timestamp", "")), written)
    return _Status(time if np.isfinite(time) else written, parsed)


def _name(communicator: Mapping[str, Any]) -> str:
    names = (str(communicator.get("hash", "")), str(communicator.get("secondary_hash", "")))
    return one_line(" ".join(names)) or "communicator"


def _members(communicator: Mapping[str, Any]) -> dict[NcclProcess, _Member]:
    found: dict[NcclProcess, _Member] = {}
    for each in communicator.get("ranks", []):
        counts = {str(kind): int(count) for kind, count in each["collective_counts"].items()}
        if any(not 0 <= count < 2**56 for count in counts.values()):
            raise ValueError("a count of collectives is negative or too large")
        found[_process(each)] = _Member(int(each["rank"]), counts)
    for each in communicator.get("missing_ranks", []):
        found.setdefault(_process(each), _Member(int(each["rank"]), None))
    return found


def _process(member: Mapping[str, Any]) -> NcclProcess:
    return NcclProcess(
        one_line(str(member.get("host", ""))), int(member["pid"]), int(member.get("cuda_dev", 0))
    )


def _damaged(path: Path, reason: str) -> InvalidInput:
    return InvalidInput(f"{path.name} is no complete RAS status: {reason[:200]}", hint=_ADVICE)


SOURCE = Source(
    name="nccl-ras",
    title="NCCL RAS statuses as JSON (`ncclras -f json`, NCCL 2.28.7 or later), one or several of one job",
    tells="for a stopped job: which ranks have enqueued fewer collectives, or do not answer",
    lacks="speed, hardware and cause; whether the job stands still, from one status alone",
    recognises=is_status,
    read=read,
)
