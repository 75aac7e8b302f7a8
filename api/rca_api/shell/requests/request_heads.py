"""uvicorn's HTTP protocol with limits on request heads, trailers, waiting requests and slow connections.

httptools has no limits of its own. Without these, a caller without a key fills the memory. One endless header
is enough, or thousands of short requests before the first answer. `rca serve` uses this protocol; other
servers need limits of their own.
"""

from __future__ import annotations

import asyncio
import resource
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rca_api.shell.requests.problems import CATALOGUE, MEDIA_TYPE, ProblemError, problem_document

#: Bytes of a request's URL and headers, and of its trailers.
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100
MAX_URL_BYTES = 8 * 1024
#: Requests of one connection that wait for the answer to an earlier one.
MAX_WAITING = 8
#: Time for a complete head, seconds; also for the rest of a body that was answered before its end.
HEAD_SECONDS = 20.0
#: Time for a caller to read what is ready for it, about 64 KiB, seconds.
READ_SECONDS = 60.0
#: A refused caller gets so long to read the answer, seconds. What it sends meanwhile is discarded.
LINGER_SECONDS = 1.0
_SLICE = 64 * 1024


def most_connections() -> int:
    """Connections at once: three quarters of the files that this process may open."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 16 if files == resource.RLIM_INFINITY else max(16, files * 3 // 4)


class BoundedHeads(HttpToolsProtocol):
    """One connection, with limits on all that is no body."""

    _deadline: asyncio.TimerHandle | None = None
    _read_deadline: asyncio.TimerHandle | None = None
    _refused = False
    _in_head = False
    _advanced = False
    _n_headers = 0
    _head_bytes = 0
    #: Bytes since the parser reported anything: part of one long header, chunk extension or trailer.
    _unreported = 0
    _problem: ProblemError | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection if there is room for it."""
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            transport.abort()
            return
        self._limit_time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the time limits."""
        super().connection_lost(exc)
        self._unlimit_time()
        self.resume_writing()

    def pause_writing(self) -> None:
        """Limit the time for the caller to read."""
        super().pause_writing()
        self._read_deadline = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on when the caller has read."""
        super().resume_writing()
        if self._read_deadline is not None:
            self._read_deadline.cancel()
            self._read_deadline = None

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, in slices, so that a limit is exceeded by one slice at most."""
        if self._refused:
            return
        if self._deadline is None and not self._is_answering():
            self._limit_time()
        view = memoryview(data)
        for at in range(0, len(view), _SLICE):
            piece = view[at : at + _SLICE]
            self._advanced = False
            super().data_received(piece)  # type: ignore[arg-type]
            if self._refused or self.transport.is_closing():
                return
            self._unreported = 0 if self._advanced else self._unreported + len(piece)
            if self._unreported > MAX_HEAD_BYTES:
                self._refuse(_too_large())
                return

    def on_message_begin(self) -> None:
        """Begin to count."""
        super().on_message_begin()
        self._in_head = self._advanced = True
        self._n_headers = self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Limit the URL."""
        super().on_url(url)
        self._advanced = True
        if len(self.url) > MAX_URL_BYTES:
            raise self._stopped(ProblemError("url-too-long", f"the limit is {MAX_URL_BYTES:,} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Limit the headers; a trailer counts as well, and is dropped: it must not act as a header."""
        self._advanced = True
        self._n_headers += 1
        self._head_bytes += len(name) + len(value)
        if self._n_headers > MAX_HEADERS or self._head_bytes + len(self.url) > MAX_HEAD_BYTES:
            raise self._stopped(_too_large())
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request, unless too many wait for an answer."""
        self._in_head, self._advanced = False, True
        if self._is_answering() and len(self.pipeline) >= MAX_WAITING:
            raise self._stopped(ProblemError("http-error", f"{MAX_WAITING} requests wait already"))
        self._unlimit_time()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass a piece of the body on."""
        self._advanced = True
        super().on_body(body)

    def on_chunk_header(self) -> None:
        """Note that a chunk began."""
        self._advanced = True

    def on_message_complete(self) -> None:
        """Note that the request is complete."""
        self._advanced = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what could not be parsed; uvicorn calls this after an error of the parser."""
        self._refuse(self._problem or ProblemError("http-error", msg))

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _stopped(self, problem: ProblemError) -> ValueError:
        """Build the exception that makes the parser stop; `send_400_response` answers with `problem`."""
        self._problem = problem
        return ValueError(problem.code)

    def _limit_time(self) -> None:
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._late)

    def _unlimit_time(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if self._in_head:
            self._refuse(ProblemError("head-timeout", f"the headers took longer than {HEAD_SECONDS:g} s"))
        else:
            self.transport.close()

    def _refuse(self, problem: ProblemError) -> None:
        """Answer and close; without an answer if that would be taken for the one to an earlier request."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._unlimit_time()
        if self._is_answering():
            self.transport.close()
            return
        status = CATALOGUE[problem.code].status
        content = problem_document(problem, "")
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {MEDIA_TYPE}\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + content)
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        # A socket closed with unread bytes is reset, and the caller may lose the answer.
        self.transport.write_eof()
        self._deadline = self.loop.call_later(LINGER_SECONDS, self.transport.close)


def _too_large() -> ProblemError:
    return ProblemError(
        "head-too-large", f"the limit is {MAX_HEADERS} headers and {MAX_HEAD_BYTES:,} bytes with the URL"
    )
