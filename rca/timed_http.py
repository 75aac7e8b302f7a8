"""HTTP requests with one time limit for the whole exchange, and with a limit on what is read.

The time limits of a socket begin anew with each byte that arrives, and the resolver of names has none. So
each exchange has a thread of its own, and when its time is over, its connection is shut.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

from rca.errors import TooLarge

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

#: Sent unless the caller gives others.
_HEADERS = {"Accept-Encoding": "identity", "Connection": "close", "User-Agent": "straggler-rca"}


@dataclass(frozen=True)
class Answer:
    """What a server answered; names of headers have no case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class BrokenAnswerError(ConnectionError):
    """The answer is not HTTP, or ends too early."""


class Exchange(Generic[T]):
    """A request under way. It follows no redirect: another server must not get the credentials.

    Parameters
    ----------
    method : str
    url : str
    read : callable
        Makes the result of the answer, whose body has not arrived yet; `whole` is one.
    seconds : callable
        Seconds that are left. It is asked before the request is sent, and again before the answer is read.
    headers : mapping of str to str
    body : bytes, optional
    tls : ssl.SSLContext, optional
        Which certificates are trusted; those of the system if not given.
    server_name : str, optional
        The name in the certificate, if it is not the host of `url`.
    use_proxies : bool
        Use the proxies that the environment names.
    """

    def __init__(
        self,
        method: str,
        url: str,
        read: Callable[[httpx2.Response], T],
        seconds: Callable[[], float],
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        use_proxies: bool = False,
    ) -> None:
        self._request = method, url
        self._headers = {name: value.strip() for name, value in headers.items()}
        self._body = body
        self._read = read
        self._seconds = seconds
        self._tls = tls
        self._server_name = server_name
        self._proxy = _proxy(url) if use_proxies else None
        self._link: socket.socket | None = None
        self._is_over = False
        self._sent: Future[None] = Future()
        self._result: Future[T] = Future()
        for each in (self._sent, self._result):
            each.set_running_or_notify_cancel()
        threading.Thread(target=self._run, name="http", daemon=True).start()

    def wait(self) -> T:
        """Wait for the result.

        Raises
        ------
        TimeoutError
            If the time is over.
        OSError
            If no answer arrives.
        """
        try:
            self._sent.result(self._seconds())
            return self._result.result(self._seconds())
        finally:
            self._end()

    async def waited(self) -> T:
        """Wait for the result in an event loop; errors as of `wait`."""
        try:
            # `wait_for` may ignore that its caller is cancelled.
            async with asyncio.timeout(self._seconds()):
                await asyncio.wrap_future(self._sent)
            async with asyncio.timeout(self._seconds()):
                return await asyncio.wrap_future(self._result)
        finally:
            self._end()

    def _end(self) -> None:
        self._is_over = True
        if self._link is not None and not self._result.done():
            with suppress(OSError):
                self._link.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        try:
            result = self._exchanged()
        except BaseException as error:
            self._result.set_exception(_network_failure(error))
        else:
            self._result.set_result(result)
        finally:
            if not self._sent.done():
                self._sent.set_result(None)

    def _exchanged(self) -> T:
        import httpx2

        method, url = self._request
        tls = self._tls or (
            ssl.create_default_context()
            if url.startswith("https:")
            else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        )
        seconds = self._seconds()
        # An address that never accepts leaves the next one time.
        limits = httpx2.Timeout(seconds, connect=seconds / 2).as_dict()
        more = {"timeout": limits, "trace": self._followed, "sni_hostname": self._server_name}
        headers = httpx2.Headers(_HEADERS)
        headers.update(httpx2.Headers(self._headers, "latin-1"))
        request = httpx2.Request(method, url, headers=headers, content=self._body, extensions=more)
        # Below the client of httpx, which writes addresses to the log: those of webhooks are secrets.
        with (
            httpx2.HTTPTransport(verify=tls, trust_env=False, proxy=self._proxy) as transport,
            closing(transport.handle_request(request)) as response,
        ):
            return self._read(response)

    def _followed(self, event: str, details: Mapping[str, Any]) -> None:
        """Heed an event of the connection, as httpx reports them."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._link = details["return_value"].get_extra_info("socket")
            if self._is_over:
                raise TimeoutError
        if event.endswith("receive_response_headers.started") and not self._sent.done():
            self._sent.set_result(None)


def whole(max_bytes: int) -> Callable[[httpx2.Response], Answer]:
    """Read whole answers; `TooLarge` is raised for one of more than `max_bytes`."""

    def read(response: httpx2.Response) -> Answer:
        body = bytearray()
        for piece in response.iter_bytes():
            body += piece
            if len(body) > max_bytes:
                raise TooLarge(f"the answer has more than {max_bytes:,} bytes")
        return Answer(response.status_code, response.headers, bytes(body))

    return read


def _proxy(url: str) -> str | None:
    """The proxy of the environment for an address."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    found = None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)
    return found if found is None or "://" in found else f"http://{found}"


def _network_failure(error: BaseException) -> BaseException:
    """The `OSError` that an error of httpx stands for; other errors are given back."""
    import httpcore2
    import httpx2

    if isinstance(error, httpx2.TimeoutException):
        return TimeoutError()
    # A proxy may be of an unknown kind, or of one that needs a further package; a name may be too long.
    if not isinstance(error, httpx2.HTTPError | httpx2.InvalidURL | ImportError | ValueError):
        return error
    root: BaseException = error
    while not isinstance(root, OSError) and root.__context__ is not None:
        root = root.__context__
    if isinstance(root, OSError):
        return root
    is_broken = isinstance(error, httpx2.DecodingError | httpx2.RemoteProtocolError)
    # Of itself httpcore raises this error for a server that closes the connection without an answer.
    if is_broken and not isinstance(root, httpcore2.RemoteProtocolError):
        return BrokenAnswerError(f"the answer is damaged: {root}")
    return ConnectionError(str(root))
