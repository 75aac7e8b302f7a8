"""Files of the collector: numbered segments per rank, each a line of JSON and checked blocks.

A segment begins with a header line, so it can be read alone: ``{"rca_collect": {"format": 1, "rank": ..,
"world_size": .., "node": .., "steps": [..], "series": [[name, device], ..], ..}}``. Blocks follow: a marker
of four bytes, the kind (one letter), and as little-endian uint32 the length of the content and the CRC-32 of
kind and content. Then comes the content:

==== ==========================================================================
kind content
==== ==========================================================================
s    finished steps: rows of little-endian float64, with the columns `steps`
o    such a row for the step in progress
m    samples: rows of float64, Unix time and a value for each of `series`
e    an event, as JSON
==== ==========================================================================

A process that is killed leaves at most one cut block at the end, which the checksum reveals.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

FORMAT: Final = 1
#: Every header line begins with these bytes.
BEGIN: Final = b'{"rca_collect": '
SUFFIX: Final = ".rcac"
#: Kinds of blocks: finished steps, the step in progress, samples of metrics, and JSON objects.
STEPS, OPEN_STEP, SAMPLES, EVENT = b"s", b"o", b"m", b"e"
_MARKER = b"\xf5RCA"
_BLOCK = struct.Struct("<4scII")
_MAX_BLOCK_BYTES = 1 << 26


@dataclass
class TimedSegment:
    """Content of one file.

    Attributes
    ----------
    header : mapping
        Keys as in docs/how-to/collect.md.
    steps : ndarray of shape (n_steps, n_columns)
        Finished steps, in the order of the header's `steps`.
    open_step : ndarray of shape (n_columns,), or None
        The last report of a step in progress; NaN where a phase had not ended.
    samples : ndarray of shape (n_samples, 1 + n_series)
        Unix time, and a value for each of the header's `series`.
    damaged_bytes : int
        Bytes that were skipped because their checksum does not fit.
    """

    header: Mapping[str, Any]
    steps: Array
    open_step: Array | None
    samples: Array
    events: list[Mapping[str, Any]]
    damaged_bytes: int = 0


@dataclass
class SegmentWriter:
    """Appends blocks to the segments of one rank, and deletes the oldest beyond a limit.

    Attributes
    ----------
    stem : str
        Begin of the file names; the segment's number and `SUFFIX` follow.
    header : mapping
        Of each segment.
    max_bytes : int
        Limit on all segments of this writer together.
    """

    folder: Path
    stem: str
    header: Mapping[str, Any]
    max_bytes: int
    _kept: list[tuple[Path, int]] = field(default_factory=list)
    _number: int = 0
    _handle: int = -1

    def append(self, blocks: bytes) -> None:
        """Write whole blocks with one call to the system.

        Raises
        ------
        OSError
            If the file cannot be written. A part of the blocks may be in the file then.
        """
        if self._handle < 0 or self._kept[-1][1] + len(blocks) > self.max_bytes // 8:
            self._next_segment()
        path, size = self._kept[-1]
        self._kept[-1] = path, size + len(blocks)
        if os.write(self._handle, blocks) != len(blocks):
            raise OSError(f"{path} took a part of the data only; the disk may be full")
        self._delete_oldest()

    def close(self) -> None:
        """Close the current segment."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _next_segment(self) -> None:
        self.close()
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{self.stem}-{self._number:06}{SUFFIX}"
        line = (
            BEGIN + json.dumps({"format": FORMAT, **self.header, "segment": self._number}).encode() + b"}\n"
        )
        # A name without the suffix until the header is complete: readers see whole headers only.
        hidden = self.folder / f".{path.name}"
        handle = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.write(handle, line)
            hidden.rename(path)
        except OSError:
            os.close(handle)
            raise
        self._handle = handle
        self._number += 1
        self._kept.append((path, len(line)))

    def _delete_oldest(self) -> None:
        while len(self._kept) > 1 and sum(size for _, size in self._kept) > self.max_bytes:
            path, _ = self._kept.pop(0)
            path.unlink(missing_ok=True)


def table_block(kind: bytes, rows: Array) -> bytes:
    """A block with rows of float64; empty if there are none."""
    return _block(kind, rows.astype("<f8").tobytes()) if rows.size else b""


def event_block(event: Mapping[str, Any]) -> bytes:
    """A block with a JSON object."""
    return _block(EVENT, json.dumps(event).encode())


def _block(kind: bytes, content: bytes) -> bytes:
    return _BLOCK.pack(_MARKER, kind, len(content), zlib.crc32(kind + content)) + content


def read_segment(body: bytes) -> TimedSegment:
    """Decode one file; blocks that are damaged or cut are skipped and counted.

    Raises
    ------
    ValueError
        If the header is damaged or of another format.
    """
    line, _, _ = body.partition(b"\n")
    header = _header(line)
    width = {STEPS: len(header["steps"]), OPEN_STEP: len(header["steps"]), SAMPLES: 1 + len(header["series"])}
    found: dict[bytes, list[Array]] = {STEPS: [], OPEN_STEP: [], SAMPLES: []}
    events: list[Mapping[str, Any]] = []
    place, damaged = min(len(line) + 1, len(body)), 0
    while place < len(body):
        block = _block_at(body, place)
        if block is None:
            following = body.find(_MARKER, place + 1)
            following = len(body) if following < 0 else following
            damaged += following - place
            place = following
            continue
        kind, content = block
        place += _BLOCK.size + len(content)
        if kind == EVENT:
            events.append(json.loads(content))
        elif kind in width and len(content) % (8 * width[kind]) == 0:
            found[kind].append(np.frombuffer(content, "<f8").reshape(-1, width[kind]))
        else:
            damaged += _BLOCK.size + len(content)
    tables = {
        kind: np.concatenate(parts) if parts else np.empty((0, width[kind])) for kind, parts in found.items()
    }
    last_open = tables[OPEN_STEP][-1] if len(tables[OPEN_STEP]) else None
    return TimedSegment(header, tables[STEPS], last_open, tables[SAMPLES], events, damaged)


def _header(line: bytes) -> Mapping[str, Any]:
    try:
        header = json.loads(line)["rca_collect"]
        known = header["format"] == FORMAT
        complete = isinstance(header["steps"], list) and isinstance(header["series"], list)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError("its first line is damaged") from error
    if not (known and complete):
        raise ValueError(f"it has format {header['format']!r}, and this version reads format {FORMAT}")
    return dict(header)


def _block_at(body: bytes, place: int) -> tuple[bytes, bytes] | None:
    """Kind and content of the block at a place; None if there is no whole one."""
    if place + _BLOCK.size > len(body):
        return None
    marker, kind, length, checksum = _BLOCK.unpack_from(body, place)
    if marker != _MARKER or length > _MAX_BLOCK_BYTES:
        return None
    content = body[place + _BLOCK.size : place + _BLOCK.size + length]
    if len(content) != length or zlib.crc32(kind + content) != checksum:
        return None
    return kind, content
