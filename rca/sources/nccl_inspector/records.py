"""Files of NCCL Inspector: one JSON line for each finished collective of one process.

References
----------
NVIDIA/nccl, ``plugins/profiler/inspector``, output format v4.0 (NCCL 2.28 and later).
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import orjson

from rca.arrays import FloatArray, IntArray
from rca.errors import InvalidInput, SourceError, TooLarge
from rca.files import open_file
from rca.sources.logs.failure_tables import one_line
from rca.sources.logs.text_lines import unpacked
from rca.sources.nccl_processes import NcclProcess
from rca.window.rows.clock_units import LATEST_SECOND
from rca.window.rows.validation import MAX_WORLD_SIZE

#: Records that are read of one file, and of all files together: the newest ones.
MAX_OF_A_FILE, MAX_RECORDS = 200_000, 8_000_000
#: So many bytes at the end of a file hold the newest records.
BYTES_OF_A_RECORD = 1024
#: A longer line is no record; a gzip file with more bytes is refused.
MAX_LINE_LENGTH, MAX_UNPACKED = 1 << 20, 1 << 32
#: Unix seconds of the year 2001: an earlier time is in a larger unit than microseconds.
_EARLIEST_SECOND = 1e9
#: A time that was measured when the host enqueued the work shows nothing about the device.
_ON_HOST = "collective_cpu"
_GZIP = b"\x1f\x8b"
_MAX_US = 10**12


@dataclass
class InspectorLog:
    """Collectives of all processes of a job.

    Attributes
    ----------
    processes, communicators, kinds : dict
        Each process, communicator and kind of collective, with its number in the arrays.
    sizes : list of int
        Ranks of each communicator.
    members : dict of (communicator, process) to int
        Rank of a process in a communicator.
    process, communicator, kind, sequence, size : ndarray of shape (n_records,), int
        Of each record, in the order of the files. A sequence counts the collectives of one kind in one
        communicator; a size is bytes.
    seconds : ndarray of shape (n_records,), seconds
        How long the collective ran on the device, from the arrival of this process until its end.
    time : ndarray of shape (n_records,), Unix seconds
        When it ended, or when it was written, which is later.
    skipped : Counter of str
        Records that are not used, by the reason.
    """

    processes: dict[NcclProcess, int] = field(default_factory=dict)
    communicators: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    members: dict[tuple[int, int], int] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    _parts: list[IntArray] = field(default_factory=list)

    @property
    def n_records(self) -> int:
        return sum(len(part) for part in self._parts)

    def finish(self) -> None:
        """Put the records of all files into arrays."""
        rows = np.concatenate(self._parts)
        self._parts = [rows]
        self.process, self.communicator, self.kind, self.sequence, self.size = rows[:, :5].T
        self.seconds: FloatArray = rows[:, 5] / 1e6
        self.time: FloatArray = rows[:, 6] / 1e6

    def add_file(self, path: Path, most: int) -> None:
        """Read the newest `most` records of a file."""
        rows: deque[tuple[int, ...]] = deque(maxlen=most)
        n_rows = 0
        for line in _lines(path, most * BYTES_OF_A_RECORD):
            if len(line) >= MAX_LINE_LENGTH:
                self.skipped["with too long a line"] += 1
                continue
            try:
                row = self._row(orjson.loads(line))
            except orjson.JSONDecodeError:
                self.skipped["damaged"] += 1
                continue
            except KeyError as error:
                self.skipped[f"without {one_line(str(error.args[0]))}"] += 1
                continue
            except (TypeError, ValueError, AttributeError):
                self.skipped["with values of another type"] += 1
                continue
            if row is not None:
                rows.append(row)
                n_rows += 1
        if n_rows > len(rows):
            self.skipped["older"] += n_rows - len(rows)
        if rows:
            self._parts.append(np.array(rows, dtype=np.int64))

    def _row(self, record: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Process, communicator, kind, sequence, bytes, microseconds and time of a record."""
        if "coll_perf" not in record and "p2p_perf" in record:
            self.skipped["of sends and receives"] += 1
            return None
        header, metadata, collective = record["header"], record["metadata"], record["coll_perf"]
        if collective.get("coll_timing_source") == _ON_HOST:
            self.skipped["timed on the host only"] += 1
            return None
        kind, sequence = str(collective["coll"]), int(collective["coll_sn"])
        microseconds = int(collective["coll_exec_time_us"])
        size = int(collective.get("coll_msg_size_bytes", 0))
        written = int(metadata["dump_timestamp_us"])
        rank, n_ranks = int(header["rank"]), int(header["n_ranks"])
        if not (0 <= microseconds < _MAX_US and 0 <= rank < n_ranks and 0 <= sequence < 2**62):
            raise ValueError("a number is out of its range")
        if n_ranks > MAX_WORLD_SIZE or not 0 <= size < 2**62:
            raise ValueError("a size is out of its range")
        host = one_line(str(metadata.get("hostname", "")))
        process = NcclProcess(host, int(metadata["pid"]))
        of_process = self.processes.setdefault(process, len(self.processes))
        of_group = self._communicator(str(header["id"]), n_ranks)
        self.members[of_group, of_process] = rank
        ended = _kernels_ended(collective.get("event_trace_ts"))
        of_kind = self.kinds.setdefault(one_line(kind, 40), len(self.kinds))
        return of_process, of_group, of_kind, sequence, size, microseconds, ended or _checked(written)

    def _communicator(self, name: str, n_ranks: int) -> int:
        found = self.communicators.get(name)
        if found is None:
            found = self.communicators[name] = len(self.communicators)
            self.sizes.append(n_ranks)
        return found


def is_inspector(head: bytes, _: str) -> bool:
    """Whether a file is of NCCL Inspector, by its first bytes."""
    head = unpacked(head)
    return b'"inspector_output_format_version"' in head or (
        b'"header"' in head and (b'"coll_perf"' in head or b'"p2p_perf"' in head)
    )


def read_records(paths: Sequence[Path]) -> InspectorLog:
    """Read the newest records of all files.

    Raises
    ------
    InvalidInput
        If no line is a record of a collective, or times are not microseconds.
    SourceError
        If a file cannot be read.
    """
    log = InspectorLog()
    most = max(1, min(MAX_OF_A_FILE, MAX_RECORDS // len(paths)))
    for path in paths:
        try:
            log.add_file(path, most)
        except _UnitError as error:
            raise InvalidInput(
                f"{path.name}: {error}", hint="times in files of NCCL Inspector end with _us and are so"
            ) from None
    if not log.n_records:
        names = ", ".join(path.name for path in paths[:3])
        why = ", ".join(f"{count:,} {reason}" for reason, count in log.skipped.most_common(4))
        raise InvalidInput(
            f"{names}: files of NCCL Inspector without a usable collective ({why or 'no record'})",
            hint="v4.0 of NCCL 2.28 and later is read: the lines are damaged, or fields have other names",
        )
    log.finish()
    return log


class _UnitError(Exception):
    """A time is in another unit than its name says."""


def _checked(microseconds: int) -> int:
    if not _EARLIEST_SECOND < microseconds / 1e6 < LATEST_SECOND:
        raise _UnitError(f"dump_timestamp_us {microseconds} is no time in microseconds since 1970")
    return microseconds


def _kernels_ended(trace: object) -> int:
    """When the last kernel of a collective ended, microseconds; 0 without a trace of its events."""
    if not isinstance(trace, dict):
        return 0
    ends = [int(each["kernel_stop_ts"]) for each in trace.get("kernel_events", ())]
    latest = max(ends, default=0)
    return _checked(latest) if latest else 0


def _lines(path: Path, most: int) -> Iterator[bytes]:
    """Lines of a file, plain or gzip; of a plain one those within its last `most` bytes.

    Of a long line only the first `MAX_LINE_LENGTH` bytes are given.
    """
    try:
        with open_file(path) as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            if not packed and path.stat().st_size > most:
                raw.seek(-most, 2)
                raw.readline()
            file = cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if packed else raw
            cut, n_bytes = False, 0
            while line := file.readline(MAX_LINE_LENGTH):
                n_bytes += len(line)
                if n_bytes > MAX_UNPACKED and packed:
                    raise TooLarge(f"{path.name}: unpacks to more than {MAX_UNPACKED:,} bytes")
                if not cut and not line.isspace():
                    yield line
                cut = not line.endswith(b"\n")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidInput(f"{path.name}: the gzip data is damaged ({error})") from None
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error
