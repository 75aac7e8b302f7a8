"""PyTorch profiler (Kineto) traces: one file per rank, JSON, plain or gzip.

A file is read in blocks, and only events of interest are decoded: steps, GPU kernels, copies and a few host
annotations. Times in a trace are microseconds, whatever ``displayTimeUnit`` says.

References
----------
pytorch/kineto, ``libkineto/src/output_json.cpp``.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, cast

import orjson

from rca.errors import InvalidInput, SourceError, TooLarge
from rca.files import open_file

BLOCK_BYTES = 1 << 24
#: A member before the first event, such as the process groups of a large job, or one event.
MAX_BYTES_AT_ONCE = 1 << 28
_SECONDS = 1e-6
_GZIP = b"\x1f\x8b"
_EVENT = re.compile(rb'\{\s*"ph"\s*:\s*"(?:X"\s*,\s*"cat"\s*:\s*"([^"]*))?')
#: The begin of the events, in a document and in a file that holds nothing else.
ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE = re.compile(rb'\s*\[\s*\{\s*"(?:ph|name|cat|pid|ts)"\s*:')
_STEP = re.compile(r"ProfilerStep#(\d+)$")
_COLLECTIVE = re.compile(r"^nccl(?:Dev)?Kernel_([A-Za-z]+)")
#: A collective of the host, of PyTorch's gloo back end.
_OF_HOST = re.compile(r"gloo:(all_reduce|all_gather|reduce_scatter|broadcast|barrier|all_to_all|reduce)\b")
_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_]?(\d+)(?!\d)", re.IGNORECASE)
_MEMBERS = (b'"schemaVersion"', b'"traceEvents"', b'"distributedInfo"', b'"deviceProperties"')
_LOADING = "enumerate(DataLoader)"
_OPTIMIZER = "Optimizer.step"


@dataclass
class RankTrace:
    """What one rank's trace holds, in Unix seconds if the trace has them.

    Attributes
    ----------
    rank, world_size : int or None
        None if the trace does not name them.
    steps, device_steps : dict of int to (float, float)
        Start and duration by step number: on the host, and of the step's work on the GPU if it is annotated.
    collectives, host_collectives : list of (str, float, float, str)
        Kind, start, duration and process group of each NCCL kernel, by start; of each collective of gloo.
        Without NCCL kernels (`has_nccl`), those of gloo are the collectives.
    kernels, copies, host_to_device, data_loading, optimizer : list of (float, float)
        Start and duration; `kernels` are those on the GPU but collectives, `copies` all of them.
    group_sizes : dict of str to int
        Ranks of each process group that a kernel names.
    """

    path: Path
    rank: int | None = None
    world_size: int | None = None
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)
    device_steps: dict[int, tuple[float, float]] = field(default_factory=dict)
    collectives: list[tuple[str, float, float, str]] = field(default_factory=list)
    host_collectives: list[tuple[str, float, float, str]] = field(default_factory=list)
    has_nccl: bool = False
    kernels: list[tuple[float, float]] = field(default_factory=list)
    copies: list[tuple[float, float]] = field(default_factory=list)
    host_to_device: list[tuple[float, float]] = field(default_factory=list)
    data_loading: list[tuple[float, float]] = field(default_factory=list)
    optimizer: list[tuple[float, float]] = field(default_factory=list)
    group_sizes: dict[str, int] = field(default_factory=dict)


def is_trace(head: bytes, name: str) -> bool:
    """Whether a file is a profiler trace, by its first bytes and its name."""
    del name
    if head[:2] == _GZIP:
        try:
            head = zlib.decompressobj(31).decompress(head, len(head))
        except zlib.error:
            return False
    head = head.lstrip()
    if _BARE.match(head) is not None:
        return True
    return head[:1] == b"{" and sum(member in head for member in _MEMBERS) >= (1 if b'"ph"' in head else 2)


def read_trace_file(path: Path) -> RankTrace:
    """Read one rank's trace.

    Raises
    ------
    InvalidInput
        If the file is cut, is no trace, or holds no step.
    SourceError
        If it cannot be read.
    """
    trace = RankTrace(path)
    offset = 0.0
    try:
        with _opened(path) as file:
            for event in _events(file, path):
                if isinstance(event, _Header):
                    offset = _take_header(trace, event.members)
                    # Events whose members have another order, as other tools write them.
                    for other in event.members.get("traceEvents", ()):
                        if isinstance(other, dict):
                            _take(trace, other)
                else:
                    _take(trace, event)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{path}: cannot be read: {error}", hint="is the file complete?") from error
    if trace.rank is None:
        named = _RANK_IN_NAME.search(path.name)
        trace.rank = int(named[1]) if named else None
    if not trace.steps:
        raise InvalidInput(
            f"{path}: the profiler trace has no ProfilerStep",
            hint="call profiler.step() once per training step, with a schedule of at least two active steps",
        )
    return _shifted(trace, offset)


class _Header:
    """Members of the trace outside its events."""

    def __init__(self, members: dict[str, Any]) -> None:
        self.members = members


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with open_file(path) as raw:
        packed = raw.read(2) == _GZIP
        raw.seek(0)
        yield cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if packed else raw


def _events(file: IO[bytes], path: Path) -> Iterator[dict[str, Any] | _Header]:
    """Events of the categories of interest, and at last the members around them."""
    head, rest = _before_events(file, path)
    while True:
        block = file.read(BLOCK_BYTES)
        rest += block
        marks = [(found.start(), found[1]) for found in _EVENT.finditer(rest)]
        # Without the next mark an event may go on in the next block.
        for (start, category), (end, _) in pairwise(marks):
            if category in _CATEGORIES:
                yield _decoded(rest[start:end], path)
        last, category = marks[-1] if marks else (0, None)
        if not block:
            if category in _CATEGORIES:
                yield _decoded(rest[last:], path)
            yield _Header(_members(head, rest[last:], path))
            return
        rest = rest[last:]
        if len(rest) > MAX_BYTES_AT_ONCE:
            raise TooLarge(f"{path}: one event has more than {MAX_BYTES_AT_ONCE:,} bytes")


def _before_events(file: IO[bytes], path: Path) -> tuple[bytes, bytes]:
    """What comes before the first event, and what was read of the events."""
    held = file.read(BLOCK_BYTES)
    bare = _BARE.match(held)
    if bare is not None:
        begin = held.index(b"[") + 1
        return held[:begin], held[begin:]
    while (found := ARRAY.search(held)) is None:
        block = file.read(BLOCK_BYTES)
        held += block
        if not block:
            raise InvalidInput(f"{path}: the profiler trace has no traceEvents", hint="is the file complete?")
        if len(held) > MAX_BYTES_AT_ONCE:
            raise TooLarge(f"{path}: no event in the first {MAX_BYTES_AT_ONCE:,} bytes")
    return held[: found.end()], held[found.end() :]


def _decoded(text: bytes, path: Path) -> dict[str, Any]:
    """An event; what follows it, up to the next event, is cut off."""
    try:
        event = orjson.loads(text[: text.rindex(b"}") + 1])
    except ValueError:
        event = _first_object(text, path)
    return cast("dict[str, Any]", event)


def _first_object(text: bytes, path: Path) -> Any:
    try:
        return json.JSONDecoder().raw_decode(text.decode("utf-8", "replace"))[0]
    except (ValueError, RecursionError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: ValueError | RecursionError) -> InvalidInput:
    return InvalidInput(
        f"{path}: the profiler trace is cut or damaged: {error}", hint="is the file complete?"
    )


def _members(head: bytes, last: bytes, path: Path) -> dict[str, Any]:
    """Members before and after the events; the text of the last event is removed from `last`."""
    text = last.decode("utf-8", "replace")
    decoder = json.JSONDecoder()
    try:
        end = decoder.raw_decode(text)[1] if text.lstrip()[:1] == "{" else 0
        # Events whose members have another order may follow.
        tail = text[end:].lstrip().removeprefix(",")
        document = decoder.decode(head.decode("utf-8", "replace") + tail)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, error) from error
    return {"traceEvents": document} if isinstance(document, list) else cast("dict[str, Any]", document)


def _take_header(trace: RankTrace, members: dict[str, Any]) -> float:
    """Take the rank and the world size; return the offset of all times, seconds."""
    info = members.get("distributedInfo")
    if isinstance(info, dict):
        rank, size = info.get("rank"), info.get("world_size")
        trace.rank = rank if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 else None
        trace.world_size = size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None
    base = members.get("baseTimeNanoseconds")
    return float(base) * 1e-9 if isinstance(base, (int, float)) else 0.0


Span = tuple[float, float]


def _take(trace: RankTrace, event: dict[str, Any]) -> None:
    """Add one event; events without a name, a start or a duration are ignored."""
    take = _TAKERS.get(str(event.get("cat")))
    name, start, duration = event.get("name"), event.get("ts"), event.get("dur")
    if take is None or not isinstance(name, str) or not isinstance(start, (int, float)):
        return
    if isinstance(duration, (int, float)) and duration >= 0:
        take(trace, name, (start * _SECONDS, duration * _SECONDS), event.get("args"))


def _take_annotation(trace: RankTrace, name: str, span: Span, _args: object) -> None:
    step = _STEP.search(name)
    if step:
        trace.steps[int(step[1])] = span
    elif name.startswith(_LOADING):
        trace.data_loading.append(span)
    elif (kind := _OF_HOST.match(name)) is not None:
        trace.host_collectives.append((kind[1], *span, ""))


def _take_device_annotation(trace: RankTrace, name: str, span: Span, _args: object) -> None:
    step = _STEP.search(name)
    if step:
        trace.device_steps[int(step[1])] = span
    elif name.startswith(_OPTIMIZER):
        trace.optimizer.append(span)


def _take_copy(trace: RankTrace, name: str, span: Span, _args: object) -> None:
    trace.copies.append(span)
    if "HtoD" in name:
        trace.host_to_device.append(span)


def _take_kernel(trace: RankTrace, name: str, span: Span, args: object) -> None:
    kind = _COLLECTIVE.match(name)
    if kind is None:
        trace.kernels.append(span)
        return
    group = ""
    if isinstance(args, dict):
        group = str(args.get("Process Group Name", ""))
        size = args.get("Group size")
        if isinstance(size, int):
            trace.group_sizes[group] = size
    trace.collectives.append((kind[1], *span, group))


_TAKERS: dict[str, Callable[[RankTrace, str, Span, object], None]] = {
    "kernel": _take_kernel,
    "gpu_memcpy": _take_copy,
    "gpu_memset": _take_copy,
    "user_annotation": _take_annotation,
    "gpu_user_annotation": _take_device_annotation,
}
_CATEGORIES = frozenset(name.encode() for name in _TAKERS)


def _shifted(trace: RankTrace, offset: float) -> RankTrace:
    """The trace with all times in Unix seconds, sorted by start."""
    for name in ("steps", "device_steps"):
        spans = {step: (start + offset, length) for step, (start, length) in getattr(trace, name).items()}
        setattr(trace, name, dict(sorted(spans.items())))
    trace.has_nccl = bool(trace.collectives)
    trace.collectives = sorted(
        (
            (kind, start + offset, length, group)
            for kind, start, length, group in trace.collectives or trace.host_collectives
        ),
        key=lambda one: one[1],
    )
    for name in ("kernels", "copies", "host_to_device", "data_loading", "optimizer"):
        setattr(trace, name, sorted((start + offset, length) for start, length in getattr(trace, name)))
    return trace
