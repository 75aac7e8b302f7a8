"""A limit for endpoints whose bodies are short JSON documents: FastAPI itself reads whatever comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import Message

from rca_api.problems import ProblemError

MAX_BYTES = 1 << 20
_SECONDS = 30.0
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
#: What endpoints of such a router can answer besides their own problems.
BODY_PROBLEMS = ("too-large", "body-timeout", "http-error")


class SmallBodies(APIRoute):
    """Reads a body of at most `MAX_BYTES`, within a time, before anything else is done with it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's handler."""
        handle = super().get_route_handler()

        async def limited(request: Request) -> Response:
            if request.method not in _WITH_BODY:
                return await handle(request)
            body = await _read(request)

            async def replay() -> Message:
                return {"type": "http.request", "body": body, "more_body": False}

            return await handle(Request(request.scope, replay))

        return limited


async def _read(request: Request) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > MAX_BYTES:
        raise _too_large()
    body = bytearray()
    try:
        async with asyncio.timeout(_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise _too_large()
    except TimeoutError:
        raise ProblemError(
            "body-timeout",
            f"only {len(body):,} bytes arrived within {_SECONDS:g} s",
            headers={"Connection": "close"},
        ) from None
    return bytes(body)


def _too_large() -> ProblemError:
    # The rest is not read, so the connection cannot carry another request.
    headers = {"Connection": "close"}
    return ProblemError("too-large", f"the limit is {MAX_BYTES:,} bytes", headers=headers)
