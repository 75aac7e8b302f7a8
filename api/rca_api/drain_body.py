"""Connections that close on a caller who is still sending: first what he sends is taken in and forgotten.

A socket closed with unread bytes makes the system reset the connection, and the caller's system then throws
away the answer it has already got: instead of "busy, retry after 3 s" he reads "connection reset by peer"
(RFC 9112, 9.6). Who sends for longer than `SECONDS` is reset all the same, and so is whoever comes while
`AT_ONCE` others are waited for. Until then he holds a socket and some of the event loop's time, but no place
that anybody else waits for.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECONDS = 5.0
#: Enough for a fleet of agents that retry together, too few to hold all sockets that a process may have.
AT_ONCE = 200


class DrainBody:
    """Plain ASGI middleware, the outermost: while it lingers the request is recorded and holds no place.

    Parameters
    ----------
    app : ASGI application
    at_most : int
        Bytes that are taken in: what the largest body may have.
    """

    def __init__(self, app: ASGIApp, at_most: int) -> None:
        self.app = app
        self.at_most = at_most
        self._waited_for = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and end the answer only when the body is there or given up."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        asked = Headers(scope=scope)
        incoming = _Incoming(receive, invited="expect" not in asked)
        closes = _says_close(asked) or scope.get("http_version") == "1.0"
        ended = False

        async def send_open(message: Message) -> None:
            nonlocal closes, ended
            if message["type"] == "http.response.start":
                closes = closes or _says_close(Headers(scope=message))
            elif not ended and closes and not message.get("more_body", False) and incoming.coming:
                # Taken before anybody else may look: sending the answer gives way to others.
                ended = self._waited_for < AT_ONCE
                self._waited_for += ended
            if ended:
                message = {**message, "more_body": True}
            await send(message)

        try:
            await self.app(scope, incoming.receive, send_open)
            if ended:
                with suppress(TimeoutError):
                    async with asyncio.timeout(SECONDS):
                        await incoming.forget(self.at_most)
                await send({"type": "http.response.body"})
        finally:
            self._waited_for -= ended


def _says_close(headers: Headers) -> bool:
    return "close" in [token.strip().lower() for token in headers.get("connection", "").split(",")]


class _Incoming:
    """The body of a request, on its way in; who expects to be invited sends nothing before that."""

    def __init__(self, receive: Receive, *, invited: bool) -> None:
        self._receive = receive
        #: Whether there may be more: not all is there, and the caller has not left.
        self.coming = invited

    async def receive(self) -> Message:
        """Hand the next message on."""
        message = await self._receive()
        # A caller who left sends no message with more to come either.
        self.coming = message.get("more_body", False)
        return message

    async def forget(self, at_most: int) -> None:
        """Take in what is left, up to so many bytes."""
        while self.coming and at_most > 0:
            at_most -= len((await self.receive()).get("body", b""))
