"""Receivers of webhooks that behave well, badly, or not at all: real servers on the loopback interface."""

from __future__ import annotations

import asyncio
import binascii
import hmac
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from rca_api.webhooks.delivery import signature
from rca_api.webhooks.dispatcher import WebhookDispatcher

#: What a receiver does with one connection, after it has read the request.
Behaviour = Callable[[socket.socket], None]


def answers(status: int, *headers: str, body: bytes = b"") -> Behaviour:
    def behave(connection: socket.socket) -> None:
        lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *headers, "", ""]
        connection.sendall("\r\n".join(lines).encode() + body)

    return behave


def closes(connection: socket.socket) -> None:
    """Says nothing."""


def lies(connection: socket.socket) -> None:
    connection.sendall(b"SMTP 220 hello\r\n\r\n")


def promises_more_than_it_sends(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")


def hangs(connection: socket.socket) -> None:
    connection.settimeout(5.0)
    connection.recv(1)


def drips(connection: socket.socket) -> None:
    """Sends a byte of a header now and then, always in time for a timeout between two bytes."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Drip: ")
    try:
        while True:
            connection.sendall(b"x")
            threading.Event().wait(0.05)
    except OSError:
        return


@dataclass
class Receiver:
    """What arrived, and what is done with what comes next (the last behaviour again and again)."""

    port: int
    behaviours: list[Behaviour]
    received: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?team=a"

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.received]


@contextmanager
def receiver(*behaviours: Behaviour, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held = Receiver(listener.getsockname()[1], list(behaviours or (answers(204),)))
        stop = threading.Event()
        threads: list[threading.Thread] = []

        def handle(connection: socket.socket) -> None:
            try:
                with tls.wrap_socket(connection, server_side=True) if tls else connection as open_one:
                    _handle(held, open_one)
            except OSError:
                return

        def serve() -> None:
            listener.settimeout(0.05)
            while not stop.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                threads.append(threading.Thread(target=handle, args=(connection,), daemon=True))
                threads[-1].start()

        server = threading.Thread(target=serve)
        server.start()
        try:
            yield held
        finally:
            stop.set()
            server.join()
            for thread in threads:
                thread.join(10.0)


def _handle(held: Receiver, connection: socket.socket) -> None:
    connection.settimeout(5.0)
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            # The caller did not like our certificate.
            return
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += connection.recv(65536)
    held.received.append((headers, body))
    held.paths.append(first)
    behave = held.behaviours.pop(0) if len(held.behaviours) > 1 else held.behaviours[0]
    behave(connection)


def send_until(dispatcher: WebhookDispatcher, met: Callable[[], bool], seconds: float = 10.0) -> None:
    """Run a dispatcher's loop until a condition is met; what is being sent then is finished."""

    async def work() -> None:
        loop = asyncio.create_task(dispatcher.run())
        async with asyncio.timeout(seconds):
            while not met():
                await asyncio.sleep(0.01)
        loop.cancel()
        await asyncio.wait([loop])

    asyncio.run(work())


def verified(
    secret: str, received: Mapping[str, str], body: bytes, now: float, tolerance: float = 300.0
) -> bool:
    """Whether a message is signed with the secret and recent, as a receiver checks it.

    Parameters
    ----------
    received : mapping
        Headers, with names in lower case.
    now : float
        Unix seconds.
    tolerance : float
        Allowed seconds between `now` and the timestamp.
    """
    try:
        timestamp = int(received["webhook-timestamp"])
        expected = signature(secret, received["webhook-id"], timestamp, body)
        given = received["webhook-signature"].split()
    except (KeyError, ValueError, binascii.Error):
        return False
    mine = [each.removeprefix("v1,") for each in given if each.startswith("v1,")]
    fits = any(hmac.compare_digest(each.encode(), expected.encode()) for each in mine)
    return fits and abs(now - timestamp) <= tolerance
