"""Dumps of ``py-spy dump`` of several ranks of a stopped job: who stands elsewhere.

Ranks that wait for others stand in a call of a collective. Of these the largest group at one place is taken
for those that wait; a rank that stands elsewhere has not joined them.

References
----------
py-spy 0.3 and 0.4, ``py-spy dump --pid PID``, also with ``--native``, ``--locals`` or ``--json``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from rca.errors import InvalidInput
from rca.sources.event_windows import small_text
from rca.sources.logs.failure_tables import one_line
from rca.sources.logs.file_names import writers_of_files
from rca.sources.logs.text_lines import mixed
from rca.sources.source import Source
from rca.window.rows.validation import MAX_WORLD_SIZE
from rca.window.schema import COLLECTIVES, EVENTS, METRICS, OPS, STEPS
from rca.window.window import Window

_ADVICE = "write one file per rank, such as rank3.txt, with `py-spy dump --pid PID`"
#: The begin of a dump, after what a shell printed before it.
_MARKS = re.compile(
    rb"^Process \d+: [^\n]*\n(?:Python v[^\n]*\n|[^\n]*\n)?\s*(?:Thread |Python v)", re.MULTILINE
)
_JSON = re.compile(rb'^\s*\[\s*\{[^{}\[\]]{0,2000}"(?:thread_id|os_thread_id|thread_name)"\s*:')
_PROCESS = re.compile(r"^Process (\d{1,9}): (.*)$")
_THREAD = re.compile(r"^Thread \S{1,40} \([^)]{0,40}\)(?:: \"([^\"]{0,200})\")?")
_FRAME = re.compile(r"^\s{2,}(\S.{0,200}?) \(([^()]{0,500}?)(?::(\d{1,9}))?\)$")
_RANK_ARGUMENT = re.compile(r"--(?:local[_-])?rank[= ](\d{1,6})\b")
#: Frames in which a rank waits for others: of libraries of collectives, and of a wait for the device.
_WAITS = re.compile(
    r"distributed_c10d\.py|c10d_logger\.py|deepspeed/comm/|horovod/|mpi4py|multihost_utils\.py"
    r"|^synchronize \(\S{0,200}torch/cuda/"
)
_OPERATION = re.compile(
    r"^_?(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|reduce|gather|scatter|barrier|i?recv"
    r"|i?send|monitored_barrier|batch_isend_irecv|synchronize)\w*$"
)
#: The share of the ranks that stand at one place, above which the others stand elsewhere.
MIN_TOGETHER = 0.5
#: Files whose numbers a note shows.
MAX_SHOWN = 64


class _Frame(NamedTuple):
    function: str
    file: str
    line: int


class _Stack(NamedTuple):
    """The main thread of one process, innermost frame first."""

    command: str
    frames: tuple[_Frame, ...]


class _Place(NamedTuple):
    """Where a rank stands; `operation` is empty if it waits for no other rank."""

    operation: str
    caller: str


def is_dump(head: bytes, _: str) -> bool:
    """Whether a file is a dump, by its first bytes."""
    return _MARKS.search(head) is not None or _JSON.match(head) is not None


def read(paths: Sequence[Path], job_id: str) -> Window:
    """Read the dumps of one job into a window without steps.

    Returns
    -------
    Window
        With the table ``collectives``. Its notes say where each rank stands that is not with the others.

    Raises
    ------
    InvalidInput
        If a file is damaged, two files are of one rank, or there is one process only.
    """
    notes: list[str] = []
    stacks = _by_rank(paths, notes)
    if len(stacks) < 2:
        raise InvalidInput(
            f"{paths[0].name}: dumps of two ranks or more show who stands elsewhere, this is one",
            hint=_ADVICE,
        )
    places = {rank: _place(stack) for rank, stack in stacks.items()}
    waiting = Counter(place for place in places.values() if place.operation)
    together, count = waiting.most_common(1)[0] if waiting else (None, 0)
    if together is None or (len(places) > 2 and count <= MIN_TOGETHER * len(places)):
        together = None
        notes.append("no half of the ranks waits at one place: the dumps do not show who is missing")
    for rank, place in places.items():
        if together is not None and place != together:
            notes.append(f"rank {rank} stands in {place.operation or place.caller}")
    notes.append("dumps of one moment show no standstill: a rank may be slow, and not stopped")
    end = max(path.stat().st_mtime for path in paths)
    states = [
        "waiting" if place == together or (together is None and place.operation) else "finished"
        for place in places.values()
    ]
    rows = {
        "rank": list(places),
        "group": ["ranks of the dumps"] * len(places),
        "state": states,
        "sequence": [int(together is None or place == together) for place in places.values()],
        "waiting_since": [None] * len(places),
        "operation": [place.operation or None for place in places.values()],
    }
    types = {column.name: column.type for column in COLLECTIVES.columns}
    window = Window.from_tables(
        {"job_id": job_id, "world_size": max(places) + 1, "start": end - 1.0, "end": end},
        STEPS.empty(),
        METRICS.empty(),
        EVENTS.empty(),
        OPS.empty(),
        pa.table({name: pa.array(values, type=types[name]) for name, values in rows.items()}),
    )
    return replace(window, notes=(*window.notes, *notes))


def _place(stack: _Stack) -> _Place:
    """The collective in which a rank waits and the code that calls it; else the innermost frame."""
    waits = [number for number, frame in enumerate(stack.frames) if _WAITS.search(_named(frame))]
    if not waits:
        return _Place("", _shown(stack.frames[0]))
    names = (stack.frames[number].function for number in reversed(waits))
    operation = next((name for name in names if _OPERATION.match(name)), "a collective")
    return _Place(one_line(operation), _shown(next(iter(stack.frames[waits[-1] + 1 :]), None)))


def _named(frame: _Frame) -> str:
    return f"{frame.function} ({frame.file})"


def _shown(frame: _Frame | None) -> str:
    return "an unknown place" if frame is None else one_line(f"{frame.function} ({frame.file}:{frame.line})")


def _by_rank(paths: Sequence[Path], notes: list[str]) -> dict[int, _Stack]:
    """The stack of each rank: by the name of its file, else by the command of its process, else in order."""
    found = [(path, stack) for path in paths for stack in _stacks(path)]
    files = writers_of_files(paths)
    named = [files[path].task if files[path].rank is None else files[path].rank for path, _ in found]
    arguments = [_RANK_ARGUMENT.search(stack.command) for _, stack in found]
    ranks = [int(each[1]) for each in arguments if each is not None]
    nodes = {files[path].node for path in paths} - {None}
    if len(nodes) > 1 and len(set(named)) < len(found):
        # Each node numbers its processes from 0 on.
        places = [f"{path.parent.name}/{path.name}" for path, _ in found]
        shown = ", ".join(f"{rank} is {place}" for rank, place in enumerate(places[:MAX_SHOWN]))
        notes.append(f"ranks are numbered in the order of the folders and files: {shown}")
        ranks = list(range(len(found)))
    elif len(found) == len(paths) and None not in named:
        ranks = [rank for rank in named if rank is not None]
    elif len(set(ranks)) < len(found):
        notes.append(f"ranks are numbered in the order of the dumps: {_ADVICE}")
        ranks = list(range(len(found)))
    held: dict[int, tuple[Path, _Stack]] = {}
    for rank, (path, stack) in zip(ranks, found, strict=True):
        if rank >= MAX_WORLD_SIZE:
            raise InvalidInput(f"{path.name}: rank {rank:,} is above {MAX_WORLD_SIZE - 1:,}")
        if rank in held:
            raise mixed(held[rank][0], path, f"a dump of rank {rank}")
        held[rank] = path, stack
    return {rank: held[rank][1] for rank in sorted(held)}


def _stacks(path: Path) -> Iterator[_Stack]:
    """The main threads of the processes in a file."""
    text = small_text(path)
    n_found = 0
    for command, threads in _json(path, text) if text.lstrip().startswith("[") else _plain(text):
        frames = threads.get("MainThread", next(iter(threads.values()), ()))
        if frames:
            n_found += 1
            yield _Stack(command, frames)
    if not n_found:
        raise InvalidInput(f"{path.name} has no stack of a main thread", hint=_ADVICE)


_Threads = dict[str, tuple[_Frame, ...]]


def _plain(text: str) -> Iterator[tuple[str, _Threads]]:
    command: str | None = None
    threads: dict[str, list[_Frame]] = {}
    thread: list[_Frame] = []
    for line in text.splitlines():
        if (process := _PROCESS.match(line)) is not None:
            if command is not None:
                yield command, {name: tuple(frames) for name, frames in threads.items()}
            command, threads, thread = process[2], {}, []
        elif (begun := _THREAD.match(line)) is not None:
            thread = threads.setdefault(begun[1] or f"thread {len(threads)}", [])
        elif (frame := _FRAME.match(line)) is not None:
            thread.append(_Frame(frame[1], frame[2], int(frame[3] or 0)))
    if command is not None:
        yield command, {name: tuple(frames) for name, frames in threads.items()}


def _json(path: Path, text: str) -> Iterator[tuple[str, _Threads]]:
    try:
        content: list[Mapping[str, Any]] = orjson.loads(text)
        threads = {
            str(each.get("thread_name")): tuple(
                _Frame(str(frame["name"]), str(frame["filename"]), int(frame.get("line") or 0))
                for frame in each["frames"]
            )
            for each in content
        }
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"{path.name} is no complete dump: {str(error)[:200]}", hint=_ADVICE) from None
    yield "", threads


SOURCE = Source(
    name="py-spy",
    title="stacks of several ranks (`py-spy dump --pid PID`), one file per rank or one after another",
    tells="for a stopped job: which ranks stand elsewhere than those that wait in a collective",
    lacks="speed, hardware and cause; whether the job stands still, from dumps of one moment",
    recognises=is_dump,
    read=read,
)
