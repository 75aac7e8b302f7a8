"""Read a window from a path, bytes or a file; its content decides the encoding."""

from __future__ import annotations

import codecs
from os import PathLike
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

import pyarrow as pa

from rca.errors import InvalidWindow, SourceError, TooLarge
from rca.files import read_file, refuse_outside
from rca.sources.source import HEAD_BYTES
from rca.window.encodings.directory import JOB_FILE
from rca.window.rows.conversion import TableLike
from rca.window.window import Window

#: Without `max_bytes`, compressed content may have so many bytes, and JSON ten times as many in memory.
MAX_UNPACKED_BYTES = 400 << 20
#: Job of a table that has no file.
TABLE_JOB = "table"
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


@runtime_checkable
class _Readable(Protocol):
    """A binary file, as far as it is used here."""

    def read(self) -> bytes:
        """All bytes."""


def read_window(
    source: str | PathLike[str] | bytes | bytearray | memoryview | BinaryIO | TableLike,
    *,
    max_bytes: int | None = None,
) -> Window:
    """Read and validate a telemetry window.

    Parameters
    ----------
    source : path, bytes-like, binary file or table
        A window's directory, or a JSON (plain, gzip or zstd) or Arrow multipart file, or its content. The
        content decides the encoding, not the name. A path may also be a file or a folder of a source in
        `rca.sources`. A table is a data frame, a pyarrow.Table or a list of rows: steps, metrics or events.
    max_bytes : int, optional
        Limit on the size after decompression. The memory to read JSON has a limit of ten times as much. By
        default `MAX_UNPACKED_BYTES`, and the size of a file that is not compressed.

    Raises
    ------
    SourceError
        If the path is empty, does not exist or cannot be read.
    InvalidWindow
        If the content is not a window, or breaks the format.
    TooLarge
        If the content exceeds `max_bytes`.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return _from_bytes(source, max_bytes)
    if isinstance(source, str) and not source:
        raise SourceError("the path is empty", hint="give the path of a window; . is the current folder")
    if isinstance(source, str | PathLike):
        return _from_path(Path(source), max_bytes)
    if isinstance(source, _Readable):
        return _from_bytes(source.read(), max_bytes)
    from rca.sources import table

    return table.read_tables([("the table", source)], TABLE_JOB)


_MISSING = "give the folder or file of a window; `rca sources` lists what can be read"


def _from_path(path: Path, max_bytes: int | None) -> Window:
    refuse_outside(path)
    try:
        exists, is_own = path.exists(), path.is_dir() and (path / JOB_FILE).exists()
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not exists:
        raise SourceError(f"{path}: no such file or directory", hint=_MISSING)
    if not is_own:
        # A window has no source; the imports of all of them take a tenth of a cold start.
        from rca.sources.registry import read_files

        window = read_files(path)
        if window is not None:
            return window
    try:
        return Window.from_directory(path) if path.is_dir() else _from_bytes(_content(path), max_bytes)
    except InvalidWindow as error:
        raise error.restated(error.message, path=str(path)) from error


def _content(path: Path) -> bytes:
    try:
        return read_file(path)
    except FileNotFoundError:
        raise SourceError(f"{path}: no such file or directory", hint=_MISSING) from None
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error


def _from_bytes(body: bytes | bytearray | memoryview, max_bytes: int | None) -> Window:
    for magic, name in _COMPRESSIONS.items():
        if body[: len(magic)] == magic:
            limit = MAX_UNPACKED_BYTES if max_bytes is None else max_bytes
            body = _decompressed(body, name, limit)
            if len(body) > limit:
                raise TooLarge(f"the window has more than {limit:,} bytes when it is unpacked")
            break
    if max_bytes is not None and len(body) > max_bytes:
        raise TooLarge(f"the window has {len(body):,} bytes, the limit is {max_bytes:,}")
    start = bytes(body[:64]).lstrip()
    if start.startswith(b"{"):
        limit = max(len(body), MAX_UNPACKED_BYTES) if max_bytes is None else max_bytes
        return Window.from_json(body, max_bytes=limit)
    if start.startswith(b"--"):
        return Window.from_arrow(body, max_bytes=max_bytes)
    from rca.sources import table

    if table.is_table(bytes(body[:HEAD_BYTES]), ""):
        return table.read_content(body, TABLE_JOB)
    if not body:
        message = "is empty"
    elif _is_text(start):
        message = f"begins with {bytes(body[:8])!r}, which is no known encoding"
    else:
        message = "is no text, and no window in a binary encoding"
    raise InvalidWindow(
        message,
        table="window",
        expected="a JSON object or a multipart body of Arrow streams",
        hint="this is one file of a window: give the path of its directory"
        if body[:4] == b"PAR1"
        else "`rca sources` lists what can be read",
    )


def _is_text(start: bytes) -> bool:
    """Whether bytes are text, apart from a letter that is cut at their end."""
    try:
        return "\0" not in codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False


def _decompressed(body: bytes | bytearray | memoryview, name: str, max_bytes: int) -> bytes:
    try:
        with pa.input_stream(pa.py_buffer(body), compression=name) as stream:
            content: bytes = stream.read(max_bytes + 1)
            return content
    except OSError as error:
        raise InvalidWindow(
            f"is damaged: the {name} data cannot be unpacked ({error})",
            table="window",
            expected="a complete file",
        ) from error
