"""HTTP requests with one time limit for the whole exchange, and with a limit on what is read.

The time limit of a socket begins anew with each byte that arrives, so a server that sends single bytes could
hold a caller for ever. Here every wait has only the time that is left: to look the name up, to connect, to
send, and for each byte of the headers and of the body.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import urllib.request
from typing import IO, Any, cast

from rca.deadline import Deadline
from rca.errors import TooLarge

_PIECE = 1 << 18


class _Socket(socket.socket):
    """A socket that sends and receives until a deadline."""

    deadline: Deadline

    def send(self, *arguments: Any) -> int:
        self.settimeout(_left(self.deadline))
        return super().send(*arguments)

    def recv_into(self, *arguments: Any) -> int:
        self.settimeout(_left(self.deadline))
        return super().recv_into(*arguments)


class _TlsSocket(_Socket, ssl.SSLSocket):
    """The same with TLS."""


class TimedConnection(http.client.HTTPConnection):
    """A connection for one exchange; its `timeout` is that of the whole exchange, seconds."""

    def connect(self) -> None:
        """Look the name up, and connect."""
        deadline = Deadline.after(cast("float", self.timeout))
        self._create_connection = lambda place, *_: _connected(place, deadline)
        super().connect()
        cast("_Socket", self.sock).deadline = deadline

    def begin_wait(self, seconds: float) -> None:
        """Give what is left of the exchange a time limit of its own."""
        cast("_Socket", self.sock).deadline = Deadline.after(seconds)


class TimedTlsConnection(TimedConnection, http.client.HTTPSConnection):
    """The same with TLS; `context` decides which certificates are trusted."""

    def __init__(self, host: str, port: int | None = None, *, context: ssl.SSLContext, **more: Any) -> None:
        context.sslsocket_class = _TlsSocket
        http.client.HTTPSConnection.__init__(self, host, port, context=context, **more)


class _Handler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(TimedConnection, req)


class _TlsHandler(urllib.request.HTTPSHandler):
    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._trust = context

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(TimedTlsConnection, req, context=self._trust)  # type: ignore[arg-type]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Follow no redirect: another server must not get the credentials."""


def opener(trust: ssl.SSLContext, *more: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
    """An opener of requests: its `timeout` is that of a whole exchange, and it follows no redirect.

    Parameters
    ----------
    trust : ssl.SSLContext
        Which certificates are trusted.
    *more : urllib.request.BaseHandler
        Further handlers, such as one for proxies. Default: the proxies of the environment.
    """
    return urllib.request.build_opener(_Handler, _TlsHandler(trust), _NoRedirects, *more)


def read_answer(answer: IO[bytes], max_bytes: int) -> bytes:
    """The whole body of an answer.

    Raises
    ------
    TooLarge
        If it has more than `max_bytes`.
    """
    body = bytearray()
    while piece := answer.read(_PIECE):
        body += piece
        if len(body) > max_bytes:
            raise TooLarge(f"the answer has more than {max_bytes:,} bytes")
    return bytes(body)


def _connected(place: tuple[str, int], deadline: Deadline) -> _Socket:
    """A connection to the first address of a host that accepts one."""
    failure: OSError = OSError("the host has no address")
    addresses = _looked_up(*place, deadline)
    for number, (family, kind, protocol, _, address) in enumerate(addresses):
        link = _Socket(family, kind, protocol)
        try:
            # An address that never answers leaves the others their share of the time.
            link.settimeout(_left(deadline) / (len(addresses) - number))
            link.connect(address)
            link.settimeout(_left(deadline))
        except OSError as error:
            link.close()
            failure = error
            continue
        link.deadline = deadline
        return link
    raise failure


def _looked_up(host: str, port: int, deadline: Deadline) -> list[Any]:
    """The addresses of a host. The resolver has no time limit, so a thread waits for it."""
    found: list[Any] = []
    failed: list[OSError] = []

    def look_up() -> None:
        try:
            found.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except UnicodeError:
            failed.append(OSError("the name of the host cannot be one"))
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=look_up, name="resolver", daemon=True)
    thread.start()
    thread.join(deadline.left())
    if failed:
        raise failed[0]
    if thread.is_alive():
        raise TimeoutError("the name of the host is not resolved")
    return found


def _left(deadline: Deadline) -> float:
    """Seconds until a deadline, above 0.

    Raises
    ------
    TimeoutError
        After the deadline.
    """
    left = deadline.left()
    if not left:
        raise TimeoutError
    return left
