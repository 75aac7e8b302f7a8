"""Middleware that reads the rest of a body before it closes the connection.

A socket closed with unread bytes makes the system reset the connection. The caller then loses an answer that
it has received already (RFC 9112, 9.6). It sees "connection reset by peer" instead of "busy, retry after 3
s". The connection is reset all the same after `SECONDS`, or while `AT_ONCE` others are being drained. A
connection that is being drained holds a socket, but no place in a queue.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECONDS = 5.0
#: Enough for a fleet of agents that retry together, and few compared with the sockets of a process.
AT_ONCE = 200


class DrainBody:
    """Plain ASGI middleware, the outermost: the request is recorded already while its body is drained.

    Parameters
    ----------
    at_most : int
        Most bytes that are read: the size of the largest body.
    """

    def __init__(self, app: ASGIApp, at_most: int) -> None:
        self.app = app
        self.at_most = at_most
        self._draining = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and end the answer when the body is read or given up."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        incoming = _Incoming(receive, invited="expect" not in headers)
        closes = _says_close(headers) or scope.get("http_version") == "1.0"
        ended = False

        async def send_open(message: Message) -> None:
            nonlocal closes, ended
            if message["type"] == "http.response.start":
                closes = closes or _says_close(Headers(scope=message))
            elif not ended and closes and not message.get("more_body", False) and incoming.coming:
                # Counted before the answer is sent, which lets other requests run.
                ended = self._draining < AT_ONCE
                self._draining += ended
            if ended:
                message = {**message, "more_body": True}
            await send(message)

        try:
            await self.app(scope, incoming.receive, send_open)
            if ended:
                with suppress(TimeoutError):
                    async with asyncio.timeout(SECONDS):
                        await incoming.discard(self.at_most)
                await send({"type": "http.response.body"})
        finally:
            self._draining -= ended


def _says_close(headers: Headers) -> bool:
    return "close" in [token.strip().lower() for token in headers.get("connection", "").split(",")]


class _Incoming:
    """The rest of a request's body; a caller that sent `Expect` sends none before it is invited."""

    def __init__(self, receive: Receive, *, invited: bool) -> None:
        self._receive = receive
        #: Whether more of the body may come.
        self.coming = invited

    async def receive(self) -> Message:
        """Pass the next message on."""
        message = await self._receive()
        # The message of a caller that disconnected says that no more comes, too.
        self.coming = message.get("more_body", False)
        return message

    async def discard(self, at_most: int) -> None:
        """Read what is left, at most `at_most` bytes."""
        while self.coming and at_most > 0:
            at_most -= len((await self.receive()).get("body", b""))
