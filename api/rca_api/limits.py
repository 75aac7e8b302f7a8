"""Reading a body within limits: as declared, and as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi import Request

from rca_api.admission import Ticket
from rca_api.decoding import DECODERS, too_large
from rca_api.problems import ProblemError

_ENCODINGS = "gzip, zstd, identity"


def content_encoding(request: Request) -> str:
    """``identity``, ``gzip`` or ``zstd``; anything else, or several at once, is refused."""
    named = request.headers.get("content-encoding", "identity").strip().lower() or "identity"
    named = "gzip" if named == "x-gzip" else named
    if named not in ("identity", *DECODERS):
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
        raise too_large(f"a body of {int(declared):,} bytes is declared", limit)


async def chunks_of(
    request: Request, ticket: Ticket, limit: int, timeout_seconds: float
) -> AsyncIterator[bytes]:
    """Receive the body as sent; cut off at `limit` bytes, whatever was declared.

    Raises
    ------
    TooLarge
        Beyond `limit`.
    ProblemError
        ``body-timeout`` if it takes longer than `timeout_seconds`, ``busy`` if too much is held already.
    """
    check_declared(request, limit)
    received = 0
    stream = request.stream()
    deadline = asyncio.get_running_loop().time() + timeout_seconds
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise ProblemError(
                "body-timeout",
                f"only {received:,} bytes arrived within {timeout_seconds:g} s",
                headers={"Connection": "close"},
            ) from None
        if chunk is None:
            ticket.arrived()
            return
        received += len(chunk)
        if received > limit:
            raise too_large("the body goes on", limit)
        ticket.hold(len(chunk))
        yield chunk
