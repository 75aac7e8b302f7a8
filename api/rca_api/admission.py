"""How much the service takes on at once: requests and bytes, refused early and cheaply beyond that."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rca_api.metrics import Metrics
from rca_api.problems import ProblemError
from rca_api.settings import Settings

_LONGEST_WAIT_SECONDS = 60


class Ticket:
    """One admitted request and the bytes held for it."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.held_bytes = 0

    def hold(self, n_bytes: int) -> None:
        """Account for `n_bytes` more of a body, or refuse the request."""
        if self._admission.held_bytes + n_bytes > self._admission.max_bytes:
            raise self._admission.busy("bytes", "bodies in memory are at their limit")
        self.held_bytes += n_bytes
        self._admission.held_bytes += n_bytes


class Admission:
    """Counts of what is in progress; used from the event loop only, so it needs no lock.

    Parameters
    ----------
    settings : Settings
    seconds_until_free : callable
        Estimates how long so many requests take, to tell callers when to come back.
    metrics : Metrics
    """

    def __init__(
        self, settings: Settings, seconds_until_free: Callable[[int], float], metrics: Metrics
    ) -> None:
        self.max_requests = settings.processes + settings.queue_limit
        self.max_bytes = int(settings.max_buffered_bytes)
        self.held_bytes = 0
        self.requests = 0
        self._least_wait = settings.retry_after_seconds
        self._seconds_until_free = seconds_until_free
        self._metrics = metrics

    @contextmanager
    def enter(self) -> Iterator[Ticket]:
        """Admit one request for as long as the context lasts."""
        if self.requests >= self.max_requests:
            raise self.busy("requests", f"{self.requests} windows are being diagnosed or wait for it")
        self.requests += 1
        ticket = Ticket(self)
        try:
            yield ticket
        finally:
            self.requests -= 1
            self.held_bytes -= ticket.held_bytes

    def busy(self, limit: str, reason: str) -> ProblemError:
        """Build the refusal; the connection closes, because the rest of the body is not going to be read."""
        self._metrics.shed.labels(limit).inc()
        headers = self.retry_after() | {"Connection": "close"}
        return ProblemError("busy", f"{reason}; retry after {headers['Retry-After']} s", headers=headers)

    def retry_after(self) -> dict[str, str]:
        """Make the header that says when what is in progress now will probably be done."""
        expected = math.ceil(self._seconds_until_free(self.requests))
        return {"Retry-After": str(min(_LONGEST_WAIT_SECONDS, max(self._least_wait, expected)))}
