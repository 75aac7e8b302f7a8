"""Decoding of bodies: from bytes to a window, within limits.

Processes of the pool import this module, so it imports nothing of the web framework.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from rca.errors import InvalidInput, TooLarge
from rca.sources.read import TABLE_JOB
from rca.sources.table import read_content
from rca.window.schema import Scope
from rca.window.window import Window

JSON = "application/json"
MULTIPART = "multipart/form-data"
#: A table of steps, metrics or events, whose separator is read from its first line.
TABLE = "text/csv"
_CHUNK = 1 << 20
_SLICE = 1 << 14
#: Each member costs more than its bytes. Tools that write many put at least 64 KiB into one.
_MAX_MEMBERS = 1 << 16


def media_type(content_type: str) -> str:
    """The media type without parameters, lower case."""
    return content_type.partition(";")[0].strip().lower()


@dataclass(frozen=True)
class Limits:
    """Largest body of a request, bytes.

    Attributes
    ----------
    sent : int
        As sent, compressed or not.
    decoded : int
        After decompression, and after that of Arrow buffers in it.
    json : int
        Of JSON or a table in it. The memory to read JSON has a limit of ten times as much.
    """

    sent: int
    decoded: int
    json: int


def decode_window(
    body: bytes, content_type: str, limits: Limits, scope: Scope = "window", job_id: str = TABLE_JOB
) -> Window:
    """Decode and validate a window; a table gets `job_id`."""
    if not body:
        raise InvalidInput(
            "the body is empty", hint="send a telemetry window: job, steps and, if available, metrics"
        )
    if media_type(content_type) == MULTIPART:
        return Window.from_arrow(body, content_type, max_bytes=limits.decoded, scope=scope)
    if media_type(content_type) == TABLE:
        if len(body) > limits.json:
            raise too_large(f"the table has {len(body):,} bytes", limits.json)
        return read_content(body, job_id)
    return Window.from_json(body, max_bytes=limits.json, scope=scope)


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """Decompress piece by piece, and stop at the first piece beyond `limit` bytes."""
    if encoding == "identity" or not body:
        return body
    pieces: list[bytes] = []
    size = 0
    for piece in DECODERS[encoding](body):
        size += len(piece)
        if size > limit:
            raise too_large(f"the {encoding} body is larger after decompression", limit)
        if piece:
            pieces.append(piece)
    return b"".join(pieces)


def _gzip(body: bytes) -> Iterator[bytes]:
    """Decompress gzip members one after the other, one piece at a time."""
    packed, at = memoryview(body), 0
    for _ in range(_MAX_MEMBERS):
        if at == len(packed):
            return
        decoder = zlib.decompressobj(wbits=31)
        while not decoder.eof:
            # In slices, because zlib copies the unused rest of its input.
            fed = packed[at : at + _SLICE]
            try:
                piece = decoder.decompress(fed, _CHUNK)
            except zlib.error as error:
                raise _damaged("gzip", str(error)) from None
            # After the end of a member `unconsumed_tail` may repeat `unused_data`.
            left = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
            taken = len(fed) - len(left)
            if not (piece or taken or decoder.eof):
                raise _damaged("gzip", "it ends too early")
            at += taken
            yield piece
    if at < len(packed):
        raise _damaged("gzip", f"it has more than {_MAX_MEMBERS:,} members")


def _zstd(body: bytes) -> Iterator[bytes]:
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
            while piece := stream.read(_CHUNK):
                yield piece
    except OSError as error:
        raise _damaged("zstd", str(error)) from None


DECODERS: dict[str, Callable[[bytes], Iterator[bytes]]] = {"gzip": _gzip, "zstd": _zstd}


def _damaged(encoding: str, reason: str) -> InvalidInput:
    return InvalidInput(f"the body cannot be decompressed as {encoding}: {reason}")


def too_large(what: str, limit: int) -> TooLarge:
    """The error of a limit, with what caller and operator can do."""
    return TooLarge(
        f"{what}; the limit is {limit:,} bytes",
        hint="send fewer steps or metrics, or use the Arrow encoding; operators raise the limits "
        "RCA_MAX_BODY_BYTES, RCA_MAX_DECODED_BYTES and RCA_MAX_JSON_BYTES",
    )


@dataclass(frozen=True)
class Body:
    """Bytes as they were sent: in memory, or in a file."""

    content: bytes
    path: Path | None

    def read(self) -> bytes:
        """All bytes."""
        return self.content if self.path is None else self.path.read_bytes()


@dataclass(frozen=True)
class Sent:
    """A body and its headers, for a process of the pool.

    Attributes
    ----------
    job_id : str
        Job of a table, which names none.
    """

    body: Body
    content_type: str
    encoding: str
    limits: Limits
    job_id: str = TABLE_JOB

    def plain(self) -> bytes:
        """The decompressed body, within the limit."""
        return decompress(self.body.read(), self.encoding, self.limits.decoded)
