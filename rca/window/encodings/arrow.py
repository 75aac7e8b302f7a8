r"""A window as a multipart body with one Arrow IPC stream per table, for large jobs.

The body is ``multipart/form-data`` with these parts:

- ``job`` (``application/json``);
- ``steps``, ``metrics``, ``events``, ``ops``, ``collectives`` (``application/vnd.apache.arrow.stream``).
  Their buffers may be LZ4 or zstd compressed. Arrow files are accepted as well.

The ``name`` in a part's ``Content-Disposition`` identifies it, so a shell can send a window::

    curl -F job=@window.json -F steps=@steps.arrow -F metrics=@metrics.arrow URL

``multipart/mixed`` with the same dispositions is accepted as well.

References
----------
RFC 7578 (multipart/form-data); Apache Arrow columnar format, "IPC Streaming Format".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import RawIOBase
from itertools import chain
from typing import Any

import orjson
import pyarrow as pa

from rca.errors import InvalidWindow, TooLarge
from rca.window.encodings.document import Decoded, job_fields, parsed_job
from rca.window.encodings.ipc_size import decoded_size
from rca.window.encodings.multipart import boundary_of, split_parts
from rca.window.job import Job
from rca.window.rows.texts import text_lengths
from rca.window.schema import SPECS, SUFFICIENT

BOUNDARY = "straggler-rca-window-6f1d3a52c84e4b0b9d7e"
CONTENT_TYPE = f"multipart/form-data; boundary={BOUNDARY}"
TABLE_TYPE = "application/vnd.apache.arrow.stream"
FILE_MAGIC = b"ARROW1\x00\x00"


def pieces(
    job: Job, tables: Iterable[tuple[str, pa.Table]], *, compression: str | None = "lz4"
) -> Iterator[bytes | memoryview]:
    """Yield the pieces of one multipart body, one table at a time; its content type is `CONTENT_TYPE`.

    Without compression, equal tables give equal bytes with every version of a codec.

    Parameters
    ----------
    tables : iterable of (str, pyarrow.Table)
        All tables with their names; empty ones are left out of the body.
    compression : {"lz4", "zstd"} or None
        Of the tables' buffers.
    """
    fields = orjson.dumps(job_fields(job), option=orjson.OPT_SORT_KEYS)
    yield from _part("job", "application/json", memoryview(fields))
    for name, table in tables:
        if table.num_rows:
            yield from _part(name, TABLE_TYPE, *_stream(table, compression))
    yield f"--{BOUNDARY}--\r\n".encode()


def decode(
    body: bytes | bytearray | memoryview,
    content_type: str | None = None,
    *,
    max_bytes: int | None = None,
) -> Decoded:
    """Parse a multipart window; nothing but its structure is checked.

    Parameters
    ----------
    body : bytes-like
    content_type : str, optional
        The request's header. Without it the body's first line gives the boundary.
    max_bytes : int, optional
        Limit on the decoded size of the job and all tables together, checked before anything is decoded.

    Raises
    ------
    InvalidWindow
        If the body is not such a multipart body, or a part is missing or damaged.
    TooLarge
        If they would exceed `max_bytes`.
    """
    data = body if isinstance(body, bytes) else bytes(body)
    parts: dict[str, memoryview] = {}
    for name, content in split_parts(data, boundary_of(data, content_type)):
        if name in parts or name not in {"job", *SPECS}:
            raise InvalidWindow(
                f"has {'two parts' if name in parts else 'an unknown part'} named {name!r}",
                table="window",
                column=name,
                expected="parts job, steps and any of metrics, events, ops, collectives",
            )
        parts[name] = content
    if "job" not in parts:
        raise InvalidWindow("is missing from the body", table="job", expected="the part job")
    if not parts.keys() & set(SUFFICIENT):
        raise InvalidWindow(
            "is missing from the body", table="steps", expected=f"a part of {', '.join(SUFFICIENT)}"
        )
    left = max_bytes
    job = parsed_job(parts.pop("job"), max_memory=left)
    tables: dict[str, pa.Table] = {}
    for name, content in parts.items():
        tables[name], size = _table(name, content, left)
        left = None if left is None else left - size
    return Decoded(job, tables)


def _part(name: str, content_type: str, *content: memoryview) -> Iterator[bytes | memoryview]:
    # With the length, the reader can skip the content without searching it for the boundary.
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}"\r\n'
        f"Content-Type: {content_type}\r\nContent-Length: {sum(map(len, content))}\r\n\r\n"
    )
    yield head.encode()
    yield from content
    yield b"\r\n"


class _Pieces(RawIOBase):
    """A sink that keeps what is written to it: without compression, the buffers of the table themselves."""

    def __init__(self) -> None:
        self.held: list[memoryview] = []

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        self.held.append(memoryview(piece))
        return len(self.held[-1])


def _stream(table: pa.Table, compression: str | None) -> list[memoryview]:
    pieces = _Pieces()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(pa.PythonFile(pieces, mode="w"), table.schema, options=options) as writer:
        writer.write_table(table)
    return pieces.held


def _refuse_large(name: str, size: int, max_bytes: int | None) -> None:
    if max_bytes is not None and size > max_bytes:
        raise TooLarge(f"{name}: decodes to {size:,} bytes or more, and {max_bytes:,} are left of the limit")


def _viewed_bytes(table: pa.Table) -> int:
    """Bytes of the texts that views stand for; many views may show the same bytes."""
    total = 0
    for chunk in chain.from_iterable(column.chunks for column in table.columns):
        texts = chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk
        if pa.types.is_string_view(texts.type):
            total += int(text_lengths(texts).sum())
    return total


def _table(name: str, content: memoryview, max_bytes: int | None) -> tuple[pa.Table, int]:
    buffer = pa.py_buffer(content)
    if content[: len(FILE_MAGIC)] == FILE_MAGIC:  # A file is a stream between two magic words.
        buffer = buffer.slice(len(FILE_MAGIC))
    try:
        size = decoded_size(buffer, max_bytes)
        _refuse_large(name, size, max_bytes)
        with pa.ipc.open_stream(buffer) as reader:
            table = reader.read_all()
        size += _viewed_bytes(table)
        _refuse_large(name, size, max_bytes)
        # Offsets and codes are not trusted: without this check they could point beyond their buffers.
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, IndexError) as error:
        raise InvalidWindow(
            f"is not readable Arrow: {error}", table=name, expected=f"an Arrow IPC stream ({TABLE_TYPE})"
        ) from error
    return table, size
