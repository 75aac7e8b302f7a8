"""PyTorch flight recorder: one dump per rank with the last collectives that the rank enqueued.

The file name ends with the rank; nothing in the file holds it. A dump is a pickle or a JSON document. The
pickle is read without any global, so it cannot run code.

References
----------
PyTorch, "Flight Recorder for Debugging Stuck Jobs".
"""

from __future__ import annotations

import io
import json
import operator
import pickle
import pickletools
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from rca.errors import InvalidInput, SourceError, TooLarge
from rca.files import open_file, read_file
from rca.sources.plain_pickles import MAX_MEMORY_BYTES, PlainUnpickler, too_large
from rca.sources.source import Source
from rca.window.rows.clock_units import LATEST_SECOND
from rca.window.rows.validation import MAX_WORLD_SIZE
from rca.window.schema import COLLECTIVES, EVENTS, METRICS, OPS, STEPS
from rca.window.window import Window

#: The recorder keeps 2,000 entries by default, with stacks about 5 MB.
MAX_DUMP_BYTES = 256 * 1024**2
#: The numbers of values of a pickle up to this size are checked; a larger one is read in a process of its own
#: first, with a limit on its memory.
MAX_CHECKED_BYTES = 1 << 20
_PICKLE = b"\x80"
_NUMBERS_A_VALUE = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_RANK = re.compile(r"(\d+)(\.(json|pkl|pickle|pt))?$")
_NANOSECONDS = 1e9
_MILLISECONDS = 1e3
#: Names are cut here.
MAX_TEXT_LENGTH = 200
#: Members that every dump has, in all versions from 2.0 on.
_MEMBERS = frozenset({"version", "entries"})
_TRACE_MEMBERS = ("schemaVersion", "traceEvents", "distributedInfo", "deviceProperties")


class _Group(NamedTuple):
    name: str
    description: str
    members: tuple[int, ...]


class _Progress(NamedTuple):
    """What one rank recorded in one group."""

    sequence: int
    waiting_since: float
    operation: str


@dataclass
class _Dumps:
    """All dumps of a job: its groups, and the progress of each rank in them.

    `numbers` has the number of a group by its name, description and ranks as written, and `of_rank` by its
    name and one of its ranks: ranks may number their own groups. `progress` goes by group number and rank.
    """

    groups: list[_Group] = field(default_factory=list)
    numbers: dict[tuple[str, str, str], int] = field(default_factory=dict)
    of_rank: dict[tuple[str, int], int] = field(default_factory=dict)
    progress: dict[tuple[int, int], _Progress] = field(default_factory=dict)
    ranks: set[int] = field(default_factory=set)
    last_created: float = 0.0
    first_created: float = np.inf
    longest_timeout: float = 0.0


def is_dump(head: bytes, name: str) -> bool:
    """Whether a file may be a dump, by its first bytes (at least 200) and its name."""
    pickled = head[:1] == _PICKLE and any(
        member.encode() in head for member in ("version", "entries", "pg_config")
    )
    written = head.lstrip()[:1] == b"{" and any(
        f'"{member}"'.encode() in head for member in ("pg_config", "pg_status", "nccl_version", "entries")
    )
    # A profiler trace has the process groups, too.
    is_trace = any(f'"{member}"'.encode() in head for member in _TRACE_MEMBERS)
    return _RANK.search(name) is not None and (pickled or (written and not is_trace))


def read(paths: Sequence[Path], job_id: str) -> Window:
    """Read the dumps of one job, one file per rank, into a window without steps.

    Parameters
    ----------
    paths : sequence of Path
        Dumps of one moment. Ranks without a dump are allowed: they may be the ones that died.
    job_id : str
        Of the window; dumps hold none.

    Returns
    -------
    Window
        With the table ``collectives``. It ends when the dumps were taken, by the time of their files, or when
        the longest wait ran out.

    Raises
    ------
    InvalidInput
        If a dump cannot be decoded, or two dumps are of one rank.
    """
    dumps = _Dumps()
    _check_memory(paths)
    for path in sorted(paths):
        _add(dumps, _rank_of(path, dumps), _decoded(path), path)
    if not dumps.groups:
        raise InvalidInput(
            "the flight recorder dumps name no process group",
            hint="set TORCH_FR_BUFFER_SIZE above 0 (TORCH_NCCL_TRACE_BUFFER_SIZE in older versions)",
        )
    if not np.isfinite(dumps.first_created):
        raise InvalidInput(
            "the flight recorder dumps hold no collective with a time",
            hint="take the dumps while the job waits, before its processes end",
        )
    world_size = 1 + max(max(dumps.ranks), *(max(group.members) for group in dumps.groups))
    begin = dumps.first_created
    # Files that were copied are newer than the dumps. By then the waits have run out.
    taken = max(path.stat().st_mtime for path in paths)
    end = max(min(taken, dumps.last_created + dumps.longest_timeout), dumps.last_created, begin + 1.0)
    return Window.from_tables(
        {"job_id": job_id, "framework": "pytorch", "world_size": world_size, "start": begin, "end": end},
        STEPS.empty(),
        METRICS.empty(),
        EVENTS.empty(),
        OPS.empty(),
        _table(dumps),
    )


def _table(dumps: _Dumps) -> pa.Table:
    """One row per group and member."""
    names = _distinct_names(dumps.groups)
    rows = [(number, rank) for number, group in enumerate(dumps.groups) for rank in group.members]
    known = [dumps.progress.get(row) for row in rows]
    columns = {
        "rank": [rank for _, rank in rows],
        "group": [names[number] for number, _ in rows],
        "state": [_state(rank, each, dumps) for (_, rank), each in zip(rows, known, strict=True)],
        "sequence": [None if each is None else each.sequence for each in known],
        "waiting_since": [None if each is None else each.waiting_since for each in known],
        "operation": [None if each is None else each.operation or None for each in known],
    }
    types = {column.name: column.type for column in COLLECTIVES.columns}
    return pa.table({name: pa.array(values, type=types[name]) for name, values in columns.items()})


def _state(rank: int, progress: _Progress | None, dumps: _Dumps) -> str:
    if progress is not None:
        return "waiting" if np.isfinite(progress.waiting_since) else "finished"
    return "idle" if rank in dumps.ranks else "unrecorded"


def _distinct_names(groups: Sequence[_Group]) -> list[str]:
    """A name for each group; groups of different ranks may have one name."""
    names: list[str] = []
    taken: set[str] = set()
    for number, (name, description, members) in enumerate(groups):
        label = f"{description} ({name})" if description and description != name else name
        if label in taken:
            label = f"{label} of rank {members[0]}"
        if label in taken:
            label = f"{label}, group {number}"
        taken.add(label)
        names.append(label)
    return names


def _rank_of(path: Path, dumps: _Dumps) -> int:
    found = _RANK.search(path.name)
    if found is None:
        raise InvalidInput(
            f"{path.name}: the name of a flight recorder dump ends with its rank",
            hint="keep the names that PyTorch gave, such as nccl_trace_rank_7",
        )
    rank = int(found[1])
    if rank in dumps.ranks:
        raise InvalidInput(
            f"{path.name}: there is another dump of rank {rank}", hint="give the dumps of one moment"
        )
    dumps.ranks.add(rank)
    return rank


def _check_memory(paths: Sequence[Path]) -> None:
    """Refuse a large pickle whose values take too much memory.

    Raises
    ------
    SourceError, TooLarge
    """
    try:
        pickles = [path for path in paths if _is_large_pickle(path)]
        refused = too_large(pickles)
    except OSError as error:
        raise SourceError(f"{paths[0]}: cannot be read: {error.strerror or error}") from error
    for path in sorted(refused):
        raise TooLarge(
            f"{path.name} is refused: its values take more than {MAX_MEMORY_BYTES >> 20} MiB of memory",
            hint="a smaller TORCH_FR_BUFFER_SIZE gives smaller dumps",
        )


def _is_large_pickle(path: Path) -> bool:
    if path.stat().st_size <= MAX_CHECKED_BYTES:
        return False
    with open_file(path) as file:
        return file.read(1) == _PICKLE


def _decoded(path: Path) -> Mapping[str, Any]:
    """The content of one dump.

    Raises
    ------
    SourceError, InvalidInput, TooLarge
    """
    try:
        if (size := path.stat().st_size) > MAX_DUMP_BYTES:
            raise TooLarge(f"{path.name} has {size:,} bytes; the limit of a dump is {MAX_DUMP_BYTES:,} bytes")
        body = read_file(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        content = _unpickled(body) if body[:1] == _PICKLE else orjson.loads(body)
    except (orjson.JSONDecodeError, pickle.UnpicklingError) as error:
        raise _damaged(path, str(error)) from None
    except (EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from None
    except (MemoryError, RecursionError) as error:
        raise _damaged(path, type(error).__name__) from None
    if not isinstance(content, Mapping) or not content.keys() >= _MEMBERS:
        raise _damaged(path, "it lacks the members version and entries")
    return content


def _unpickled(body: bytes) -> Any:
    """The value of a pickle; a small one that numbers more values than it can have is refused.

    Python makes room for all numbers up to the largest one.
    """
    if len(body) <= MAX_CHECKED_BYTES:
        for code, number, _ in pickletools.genops(body):
            if code.name in _NUMBERS_A_VALUE and isinstance(number, int) and number > len(body):
                raise pickle.UnpicklingError("it numbers more values than it has")
    return PlainUnpickler(io.BytesIO(body)).load()


def _damaged(path: Path, reason: str) -> InvalidInput:
    return InvalidInput(
        f"{path.name} is no complete flight recorder dump: {reason[:200]}",
        hint="copy the dump again; the rank may have ended while it was written",
    )


def _add(dumps: _Dumps, rank: int, content: Mapping[str, Any], path: Path) -> None:
    """Add the groups and the entries of one rank."""
    configured = content.get("pg_config") or {}
    if not isinstance(configured, Mapping) or not isinstance(content["entries"], list):
        raise _damaged(path, "pg_config is no object, or entries is no list")
    for key, group in configured.items():
        if not isinstance(group, Mapping):
            raise _damaged(path, "a process group is no object")
        name, description, ranks = (
            _text(group.get("name", key)) or "group",
            _text(group.get("desc")),
            group.get("ranks"),
        )
        # As text, because a group of all ranks is in every dump.
        written = (name, description, ranks if isinstance(ranks, str) else str(_members(ranks, path)))
        number = dumps.numbers.get(written)
        if number is None:
            if not (members := _members(ranks, path)):
                continue
            number = dumps.numbers[written] = len(dumps.groups)
            dumps.groups.append(_Group(name, description, members))
        dumps.of_rank[name, rank] = number
    for entry in _entries(content["entries"], path):
        _add_entry(dumps, rank, entry, path)


def _entries(entries: Iterable[Any], path: Path) -> Iterator[Mapping[str, Any]]:
    for entry in entries:
        if not isinstance(entry, Mapping):
            raise _damaged(path, "an entry is no object")
        yield entry


def _members(ranks: Any, path: Path) -> tuple[int, ...]:
    """Ranks of a group, which the recorder writes as text."""
    try:
        found = json.loads(ranks) if isinstance(ranks, str) else list(ranks or ())
        members = tuple(sorted({operator.index(rank) for rank in found}))
    except (ValueError, TypeError, RecursionError):
        raise _damaged(path, f"the ranks of a group are {reprlib.repr(ranks)}") from None
    if members and not 0 <= members[0] <= members[-1] < MAX_WORLD_SIZE:
        raise _damaged(path, f"a group has rank {members[0] if members[0] < 0 else members[-1]}")
    return members


def _add_entry(dumps: _Dumps, rank: int, entry: Mapping[str, Any], path: Path) -> None:
    created = _seconds(entry.get("time_created_ns"), _NANOSECONDS)
    if np.isfinite(created):
        dumps.first_created = min(dumps.first_created, created)
        dumps.last_created = max(dumps.last_created, created)
    named = entry.get("process_group")
    name = (_text(named[0]) or "group") if isinstance(named, list | tuple) and named else None
    sequence = entry.get("collective_seq_id", entry.get("seq_id"))
    # Sends and receives have numbers of their own.
    if entry.get("is_p2p") or type(sequence) is not int or name is None:
        return
    if not 0 <= sequence < 2**63:
        raise _damaged(path, f"a collective has the number {reprlib.repr(sequence)}")
    group = dumps.of_rank.get((name, rank))
    if group is None:
        return
    waits = entry.get("state") != "completed" and not entry.get("retired")
    timeout = _seconds(entry.get("timeout_ms"), _MILLISECONDS)
    if waits and np.isfinite(timeout):
        dumps.longest_timeout = max(dumps.longest_timeout, timeout)
    before = dumps.progress.get((group, rank), _Progress(-1, np.nan, ""))
    since = float(np.fmin(before.waiting_since, created)) if waits else before.waiting_since
    newer = sequence > before.sequence
    operation = _text(entry.get("profiling_name")) if newer else before.operation
    dumps.progress[group, rank] = _Progress(max(sequence, before.sequence), since, operation)


def _seconds(value: Any, unit: float) -> float:
    """A positive time or duration in seconds; NaN for anything else."""
    try:
        seconds = float(value) / unit if type(value) in (int, float) else np.nan
    except OverflowError:
        return np.nan
    return seconds if 0 < seconds < LATEST_SECOND else np.nan


def _text(value: Any) -> str:
    """A text on one line, without control characters."""
    # Other values may be lists that hold one list many times: their text has no limit.
    text = str(value)[:MAX_TEXT_LENGTH] if isinstance(value, str | int | float) else ""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


SOURCE = Source(
    name="flight-recorder",
    title="PyTorch flight recorder dumps, one file per rank (pickle or JSON)",
    tells="for a stopped job: which ranks did not join a collective, and since when the others wait",
    lacks="speed, hardware and cause; a slow job; ranks that only send and receive",
    recognises=is_dump,
    read=read,
)
