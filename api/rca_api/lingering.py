"""Connections that close on a caller who is still sending: first what he sends is taken in and forgotten.

A socket closed with unread bytes makes the system reset the connection, and the caller's system then throws
away the answer it has already got: instead of "busy, retry after 3 s" he reads "connection reset by peer"
(RFC 9112, 9.6).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Of that many seconds and bytes; who sends on has his connection reset.
SECONDS = 5.0
MAX_BYTES = 64 << 20


class Lingering:
    """Plain ASGI middleware, the outermost: while it lingers the request is recorded and holds no place."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and end the answer only when the body is there or given up."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        incoming = _Incoming(receive)
        closes = ended = False

        async def send_open(message: Message) -> None:
            nonlocal closes, ended
            if message["type"] == "http.response.start":
                closes = Headers(scope=message).get("connection", "").lower() == "close"
            elif closes and not message.get("more_body", False) and not incoming.complete:
                ended = True
                message = {**message, "more_body": True}
            await send(message)

        await self.app(scope, incoming.receive, send_open)
        if ended:
            with suppress(TimeoutError):
                async with asyncio.timeout(SECONDS):
                    await incoming.forget(MAX_BYTES)
            await send({"type": "http.response.body"})


class _Incoming:
    """The body of a request, on its way in."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        #: Nothing more comes: all is there, or the caller has left.
        self.complete = False

    async def receive(self) -> Message:
        """Hand the next message on."""
        message = await self._receive()
        self.complete = message["type"] == "http.disconnect" or not message.get("more_body", False)
        return message

    async def forget(self, at_most: int) -> None:
        """Take in what is left, up to so many bytes."""
        while not self.complete and at_most > 0:
            at_most -= len((await self.receive()).get("body", b""))
