"""How long a transaction may take: until the deadline of its request, but never longer than a limit.

A request sets its deadline once (`answer_within`). `transaction` turns it into a moment for one transaction.
The engines apply it to each wait: for a connection, for a lock, for a statement, for an answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: A transaction may take so long even shortly before its deadline: an answer that is ready has to be stored.
MIN_SECONDS = 1.0
#: Limit of transactions that delete what is old: nobody waits for their answer.
TIDYING_SECONDS = 60.0
#: A transaction ends so long before the deadline, for the answer to arrive in time.
_SPARE_SECONDS = 0.5
#: Shares of the time after which the database itself gives up, so that its error arrives in time.
LOCK_SHARE, STATEMENT_SHARE = 0.8, 0.9
#: Monotonic clock. None: no request, or no limit.
_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)
_until: ContextVar[float | None] = ContextVar("until", default=None)


def answer_within(seconds: float | None) -> None:
    """Set the deadline of the request that this context serves; None for work without one."""
    _deadline.set(None if seconds is None else time.monotonic() + seconds)


@contextmanager
def transaction(longest_seconds: float | None) -> Iterator[None]:
    """Limit the transaction in this context.

    Parameters
    ----------
    longest_seconds : float or None
        Without a deadline, or if that is later. None: no limit at all.
    """
    token = _until.set(_end(longest_seconds))
    try:
        yield
    finally:
        _until.reset(token)


def end() -> float | None:
    """When the transaction in this context has to end, on the monotonic clock; None without a limit."""
    return _until.get()


def left() -> float | None:
    """Seconds until the transaction in this context has to end, at least 0; None without a limit."""
    until = end()
    return None if until is None else max(0.0, until - time.monotonic())


def _end(longest_seconds: float | None) -> float | None:
    if longest_seconds is None:
        return None
    at, deadline = time.monotonic(), _deadline.get()
    if deadline is None:
        return at + longest_seconds
    return min(at + longest_seconds, max(deadline - _SPARE_SECONDS, at + MIN_SECONDS))
