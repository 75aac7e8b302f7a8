"""Limits of the service: bodies, bytes and work at once, and the size and time of one body."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

from fastapi import Request

from rca.errors import TooLarge, cut
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.requests.decoding import DECODERS, too_large
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.settings.settings import Settings

_MAX_WAIT_SECONDS = 60


class Ticket:
    """Permission to receive the body of one request, and the bytes held for it."""

    def __init__(self, admission: Admission, caller: str) -> None:
        self._admission = admission
        self._caller: str | None = caller
        self.held_bytes = 0

    def hold(self, n_bytes: int) -> None:
        """Count `n_bytes` more of the body, or refuse the request."""
        if self._admission.held_bytes + n_bytes > self._admission.max_bytes:
            raise self._admission.busy("bytes", "bodies in memory are at their limit")
        self.held_bytes += n_bytes
        self._admission.held_bytes += n_bytes

    def arrived(self) -> None:
        """Report that the body is complete, so that another one may be received."""
        if self._caller is not None:
            self._admission.no_longer_receiving(self._caller)
            self._caller = None


class Admission:
    """Counts of requests in progress; used from the event loop only, so it needs no lock.

    Bodies being received and places in the queue are counted separately, so that a slow sender takes no place
    in the queue. A complete body gets a place or is refused.

    Parameters
    ----------
    seconds_until_free : callable
        Estimates the seconds that so many requests take, for `Retry-After`.
    """

    def __init__(
        self, settings: Settings, seconds_until_free: Callable[[int], float], metrics: Metrics
    ) -> None:
        self.max_requests = settings.processes + settings.queue_limit
        self.max_bytes = int(settings.max_buffered_bytes)
        self.held_bytes = 0
        self.requests = 0
        #: Bodies being received, by caller.
        self.receiving: Counter[str] = Counter()
        self._max_receiving = settings.receive_limit
        self._max_of_caller = settings.receive_limit_per_caller
        self._least_wait = settings.retry_after_seconds
        self._seconds_until_free = seconds_until_free
        self._metrics = metrics

    def is_full(self) -> bool:
        """Whether a window whose body is not read yet has no place in the queue.

        While the queue is half full, bodies that are being received count as well. Else most of them would be
        refused after they have arrived. Slow senders alone never fill the queue.
        """
        return self.requests >= self.max_requests or (
            2 * self.requests >= self.max_requests
            and self.requests + self.receiving.total() >= self.max_requests
        )

    def full(self) -> ProblemError:
        """Build the refusal of a window that has no place in the queue."""
        return self.busy("requests", f"{self.requests} windows are being diagnosed or wait")

    @contextmanager
    def body(self, caller: str | None) -> Iterator[Ticket]:
        """Admit a body of `caller`; its bytes count as long as the context lasts."""
        key = caller or ""
        if self.receiving.total() >= self._max_receiving:
            raise self.busy("receiving", f"{self._max_receiving} bodies are being received")
        # Without authentication all callers are one, without a limit of its own.
        if caller is not None and self.receiving[key] >= self._max_of_caller:
            raise self._too_many_of_one()
        self.receiving[key] += 1
        ticket = Ticket(self, key)
        try:
            yield ticket
        finally:
            ticket.arrived()
            self.held_bytes -= ticket.held_bytes

    def no_longer_receiving(self, caller: str) -> None:
        """Count one body of `caller` less."""
        self.receiving[caller] -= 1
        if not self.receiving[caller]:
            del self.receiving[caller]

    @contextmanager
    def work(self) -> Iterator[None]:
        """Take a place in the queue as long as the context lasts."""
        if self.requests >= self.max_requests:
            raise self.full()
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    def busy(self, limit: str, reason: str) -> ProblemError:
        """Build the refusal; it closes the connection, because the rest of the body is not read."""
        self._metrics.shed.labels(limit).inc()
        headers = self.retry_after() | {"Connection": "close"}
        return ProblemError("busy", f"{reason}; retry after {headers['Retry-After']} s", headers=headers)

    def retry_after(self) -> dict[str, str]:
        """Build the header with the seconds until the work in progress is probably done.

        Up to twice as many, at random, so that callers that were refused together do not return together.
        """
        expected = max(self._least_wait, math.ceil(self._seconds_until_free(self.requests)))
        wait = random.randint(expected, 2 * expected)  # noqa: S311  (not a secret)
        return {"Retry-After": str(min(_MAX_WAIT_SECONDS, wait))}

    def _too_many_of_one(self) -> ProblemError:
        self._metrics.shed.labels("receiving").inc()
        return ProblemError(
            "rate-limited",
            f"{self._max_of_caller} bodies of this caller are being received; send fewer at once",
            headers=self.retry_after() | {"Connection": "close"},
        )


_MAX_DIGITS = 18
_ENCODINGS = "gzip, zstd, identity"


def content_encoding(request: Request) -> str:
    """The content coding: ``identity``, ``gzip`` or ``zstd``; others and several at once are refused."""
    named = request.headers.get("content-encoding", "identity").strip().lower() or "identity"
    named = "gzip" if named == "x-gzip" else named
    if named not in ("identity", *DECODERS):
        raise ProblemError(
            "unsupported-encoding",
            f"content coding {cut(named)!r} is not supported",
            headers={"Accept-Encoding": _ENCODINGS, "Connection": "close"},
            expected=f"one of {_ENCODINGS}",
        )
    return named


def check_declared(request: Request, limit: int) -> None:
    """Refuse a body by its declared length, before a byte of it is read."""
    declared = request.headers.get("content-length", "")
    # Python refuses to read numbers of thousands of digits.
    size = int(declared[:_MAX_DIGITS]) if declared.isascii() and declared.isdigit() else 0
    if size > limit:
        raise too_large(f"a body of {size:,} bytes is declared", limit)


async def short_body(request: Request, ticket: Ticket, limit: int, timeout_seconds: float) -> bytes:
    """Receive a whole body that is no window."""
    try:
        return b"".join([chunk async for chunk in chunks_of(request, ticket, limit, timeout_seconds)])
    except TooLarge:
        # The hint of that error is for windows. The rest is not read, so the connection has to close.
        headers = {"Connection": "close"}
        raise ProblemError("too-large", f"the limit is {limit:,} bytes", headers=headers) from None


async def chunks_of(
    request: Request, ticket: Ticket, limit: int, timeout_seconds: float
) -> AsyncIterator[bytes]:
    """Receive the body as sent, and refuse it beyond `limit` bytes, also if it declared less.

    Raises
    ------
    TooLarge
        Beyond `limit`.
    ProblemError
        ``body-timeout`` after `timeout_seconds`, ``busy`` if the bytes of all bodies are at their limit.
    """
    check_declared(request, limit)
    received = 0
    stream = request.stream()
    deadline = asyncio.get_running_loop().time() + timeout_seconds
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise ProblemError(
                "body-timeout",
                f"only {received:,} bytes arrived within {timeout_seconds:g} s",
                headers={"Connection": "close"},
            ) from None
        if chunk is None:
            ticket.arrived()
            return
        received += len(chunk)
        if received > limit:
            raise too_large("the body is larger", limit)
        ticket.hold(len(chunk))
        yield chunk
