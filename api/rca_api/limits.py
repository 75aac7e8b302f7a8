"""Reading a body within limits: as declared, as it arrives, and as it unpacks."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator

import pyarrow as pa
from fastapi import Request

from rca.errors import InvalidInput, TooLarge
from rca_api.admission import Ticket
from rca_api.problems import ProblemError

_CHUNK = 1 << 20
_ENCODINGS = "gzip, zstd, identity"


def content_encoding(request: Request) -> str:
    """``identity``, ``gzip`` or ``zstd``; anything else, or several at once, is refused."""
    named = request.headers.get("content-encoding", "identity").strip().lower() or "identity"
    named = "gzip" if named == "x-gzip" else named
    if named not in ("identity", *_DECODERS):
        raise ProblemError(
            "unsupported-encoding",
            f"content coding {named!r} is not supported",
            headers={"Accept-Encoding": _ENCODINGS, "Connection": "close"},
            expected=f"one of {_ENCODINGS}",
        )
    return named


def check_declared(request: Request, limit: int) -> None:
    """Refuse a body by its declared length, before a byte of it is read."""
    declared = request.headers.get("content-length")
    if declared is not None and declared.isdecimal() and int(declared) > limit:
        raise _too_large(f"a body of {int(declared):,} bytes is declared", limit)


async def read_body(request: Request, ticket: Ticket, limit: int, timeout_seconds: float) -> bytes:
    """Receive the body as sent; cut off at `limit` bytes, whatever was declared."""
    check_declared(request, limit)
    chunks: list[bytes] = []
    received = 0
    try:
        async with asyncio.timeout(timeout_seconds):
            async for chunk in request.stream():
                received += len(chunk)
                if received > limit:
                    raise _too_large("the body goes on", limit)
                ticket.hold(len(chunk))
                chunks.append(chunk)
    except TimeoutError:
        raise ProblemError(
            "body-timeout",
            f"only {received:,} bytes arrived within {timeout_seconds:g} s",
            headers={"Connection": "close"},
        ) from None
    return b"".join(chunks)


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """Unpack piece by piece, and stop at the first piece beyond `limit` bytes."""
    if encoding == "identity" or not body:
        return body
    pieces: list[bytes] = []
    size = 0
    for piece in _DECODERS[encoding](body):
        size += len(piece)
        if size > limit:
            raise _too_large(f"the {encoding} body unpacks to more", limit)
        pieces.append(piece)
    return b"".join(pieces)


def _gzip(body: bytes) -> Iterator[bytes]:
    """Unpack gzip members one after the other, never more than a piece at a time."""
    rest = body
    while rest:
        decoder = zlib.decompressobj(wbits=31)
        try:
            while not decoder.eof:
                piece = decoder.decompress(rest, _CHUNK)
                if not piece and not decoder.eof:
                    raise _damaged("gzip", "it ends too early")
                rest = decoder.unconsumed_tail
                yield piece
        except zlib.error as error:
            raise _damaged("gzip", str(error)) from None
        rest = decoder.unused_data


def _zstd(body: bytes) -> Iterator[bytes]:
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
            while piece := stream.read(_CHUNK):
                yield piece
    except OSError as error:
        raise _damaged("zstd", str(error)) from None


_DECODERS: dict[str, Callable[[bytes], Iterator[bytes]]] = {"gzip": _gzip, "zstd": _zstd}


def _damaged(encoding: str, reason: str) -> InvalidInput:
    return InvalidInput(f"the body cannot be unpacked as {encoding}: {reason}")


def _too_large(what: str, limit: int) -> TooLarge:
    return TooLarge(
        f"{what}; the limit is {limit:,} bytes",
        hint="send fewer steps or metrics, or the Arrow encoding; operators raise the limit with "
        "RCA_MAX_BODY_BYTES, RCA_MAX_DECODED_BYTES and RCA_MAX_JSON_BYTES",
    )
