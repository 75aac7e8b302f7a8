"""Endpoints whose bodies are short JSON documents: FastAPI itself reads whatever comes, from whomever."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from starlette.types import Message

from rca.errors import TooLarge
from rca_api.admission import Ticket
from rca_api.limits import chunks_of
from rca_api.problems import ProblemError
from rca_api.state import State

MAX_BYTES = 1 << 20
_SECONDS = 30.0
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
#: What endpoints of such a router can answer besides their own problems.
BODY_PROBLEMS = ("too-large", "body-timeout", "busy", "http-error")


class SmallBodies(APIRoute):
    """Asks who calls, and reads a body of at most `MAX_BYTES` within a time, before anything else is done."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's handler."""
        handle = super().get_route_handler()

        async def limited(request: Request) -> Response:
            if request.method not in _WITH_BODY:
                return await handle(request)
            state = State.of(request)
            caller = await run_in_threadpool(state.authority.identify, request)
            with state.admission.body(caller.id) as ticket:
                body = await _read(request, ticket)

                async def replay() -> Message:
                    return {"type": "http.request", "body": body, "more_body": False}

                return await handle(Request(request.scope, replay))

        return limited


async def _read(request: Request, ticket: Ticket) -> bytes:
    try:
        return b"".join([chunk async for chunk in chunks_of(request, ticket, MAX_BYTES, _SECONDS)])
    except TooLarge:
        # That error's advice is for windows. The rest is not read, so the connection is of no more use.
        headers = {"Connection": "close"}
        raise ProblemError("too-large", f"the limit is {MAX_BYTES:,} bytes", headers=headers) from None
