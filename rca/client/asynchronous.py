"""The client for asyncio: many windows at once from one thread.

`http.client` writes the requests and parses the answers, as for `Client`; asyncio moves the bytes.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import socket
from asyncio import sleep
from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rca.client.refusals import Answer
from rca.client.service import FAILURES, MAX_ANSWER_BYTES, Call, Service, Tries, read, received
from rca.errors import TooLarge

if TYPE_CHECKING:
    from rca.diagnosis.result import Diagnosis
    from rca.window.window import Window

T = TypeVar("T")


class AsyncClient:
    """As `Client`, for asyncio: the same parameters, methods, repetitions and errors.

    Each request has its own connection, so one client serves any number of tasks and event loops.
    Windows at paths are read in a thread. A cancelled call closes its connection.

    Parameters
    ----------
    base_url, timeout_seconds, retries, api_key, headers
        Those of `Client`.

    Examples
    --------
    ::

        client = AsyncClient("http://127.0.0.1:8080")
        found = await asyncio.gather(*(client.diagnose(path) for path in paths))
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout_seconds: float = 60.0,
        retries: int = 3,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._service = Service(
            base_url, timeout_seconds=timeout_seconds, retries=retries, api_key=api_key, headers=headers
        )

    async def diagnose(
        self, window: Window | str | PathLike[str], *, idempotency_key: str | None = None
    ) -> Diagnosis:
        """Diagnose a window, or the window at a path, on the service; see `Client.diagnose`."""
        return await self._send(await asyncio.to_thread(self._service.diagnose, window, idempotency_key))

    async def render(
        self,
        window: Window | str | PathLike[str],
        media_type: str = "text/markdown",
        *,
        idempotency_key: str | None = None,
    ) -> bytes:
        """Diagnose as `diagnose` does and return the answer as the service writes it in `media_type`."""
        call = await asyncio.to_thread(self._service.render, window, media_type, idempotency_key)
        return await self._send(call)

    async def get(self, path: str, media_type: str = "application/json") -> bytes:
        """Return what the service answers to a GET of `path`; see `Client.get`."""
        return await self._send(self._service.get(path, media_type))

    async def ready(self) -> dict[str, Any]:
        """Return the model in use; raises if the service cannot diagnose."""
        return await self._send(self._service.ready())

    async def _send(self, call: Call[T]) -> T:
        tries = Tries(self._service)
        while True:
            try:
                answer = await self._exchange(call)
            except FAILURES as error:
                wait: float | None = tries.after_failure(error)
            else:
                wait = tries.after(answer)
            if wait is None:
                return read(call, answer)
            await sleep(wait)

    async def _exchange(self, call: Call[Any]) -> Answer:
        service, loop = self._service, asyncio.get_running_loop()
        connection = service.connection()
        memory = _InMemory()
        connection.sock = cast("socket.socket", memory)
        service.write(connection, call, Connection="close")
        async with asyncio.timeout(service.timeout_seconds) as limit:
            transport, exchange = await loop.create_connection(
                lambda: _Exchange(call.method, memory, limit, service.timeout_seconds),
                service.host,
                connection.port,
                ssl=service.tls,
            )
            try:
                await exchange.finished
            finally:
                transport.abort()
        response = http.client.HTTPResponse(connection.sock, method=call.method)
        response.begin()
        return received(response)


class _InMemory:
    """In place of a socket: keeps what `http.client` writes, and gives it what has been received."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.received = bytearray()

    def sendall(self, piece: bytes) -> None:
        self.written.append(piece)

    def makefile(self, mode: str) -> io.BytesIO:
        del mode
        return io.BytesIO(self.received)


class _AnswerEnd:
    """Finds the end of an answer, also of a service that leaves the connection open.

    Parameters
    ----------
    method : str
        Of the request.
    memory : _InMemory
        Holds what has been received.
    """

    def __init__(self, method: str, memory: _InMemory) -> None:
        self._method = method
        self._memory = memory
        self._response: http.client.HTTPResponse | None = None
        #: Where the body begins, then where its next chunk begins.
        self._place = 0

    def is_reached(self) -> bool:
        """Whether the whole answer is there; False for one that ends with its connection."""
        response = self._response or self._head()
        if response is None:
            return False
        if response.chunked:
            return self._last_chunk_is_there()
        length = response.length
        return length is not None and len(self._memory.received) - self._place >= length

    def _head(self) -> http.client.HTTPResponse | None:
        if b"\r\n\r\n" not in self._memory.received:
            return None
        response = http.client.HTTPResponse(cast("socket.socket", self._memory), method=self._method)
        try:
            response.begin()
        except http.client.HTTPException:
            # Not HTTP, or an interim answer whose successor is under way.
            return None
        self._response, self._place = response, response.fp.tell()
        return response

    def _last_chunk_is_there(self) -> bool:
        received = self._memory.received
        while (line_end := received.find(b"\r\n", self._place)) >= 0:
            try:
                size = int(received[self._place : line_end].partition(b";")[0], 16)
            except ValueError:
                # `http.client` says what is wrong.
                return True
            if size == 0:
                # Headers may follow, then an empty line.
                return received.find(b"\r\n\r\n", line_end) >= 0
            self._place = line_end + 2 + size + 2
        return False


class _Exchange(asyncio.Protocol):
    """Sends a request and collects the answer until its end, or until the service closes the connection.

    The answer is collected while the request is sent: a service that refuses a body early sends its reason
    and closes its end.
    """

    def __init__(self, method: str, memory: _InMemory, limit: asyncio.Timeout, seconds: float) -> None:
        self._memory = memory
        self._end_of_answer = _AnswerEnd(method, memory)
        self._limit = limit
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self.finished: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._begin_wait()
        for piece in self._memory.written:
            cast("asyncio.Transport", transport).write(piece)

    def resume_writing(self) -> None:
        """Most of the request is sent."""
        self._begin_wait()

    def data_received(self, data: bytes) -> None:
        self._memory.received += data
        if len(self._memory.received) > MAX_ANSWER_BYTES and not self.finished.done():
            self.finished.set_exception(TooLarge(f"the answer has more than {MAX_ANSWER_BYTES:,} bytes"))
        elif self._end_of_answer.is_reached():
            self._end(None)

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error)

    def _begin_wait(self) -> None:
        if not self.finished.done() and not self._limit.expired():
            self._limit.reschedule(self._loop.time() + self._seconds)

    def _end(self, error: Exception | None) -> None:
        if self.finished.done():
            return
        if error is None or self._memory.received:
            self.finished.set_result(None)
        else:
            self.finished.set_exception(error)
