"""Sends deliveries that are due, with growing pauses between attempts, and gives up in the end."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta

import structlog
from sqlalchemy.orm import Session

from rca.errors import RcaError
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.store.base import now
from rca_api.shell.store.database import Database
from rca_api.webhooks import outbox
from rca_api.webhooks.delivery import AttemptOutcome, Sender
from rca_api.webhooks.outbox import MAX_PAUSE, MAX_REST, ClaimedMessage
from rca_api.webhooks.tables import DeliveryRow, WebhookRow

#: Ratio of a pause to the one before.
_GROWTH = 4.0
#: Attempts of a message that the receiver rejects; more than one, as a new version of it may accept it.
REFUSED_ATTEMPTS = 3
#: A lease is longer than the longest exchange by this.
_LEASE_MARGIN_SECONDS = 30.0
_log = structlog.stdlib.get_logger("rca_api.webhooks")


@dataclass(frozen=True)
class Retries:
    """Number of attempts and pauses between them.

    Attributes
    ----------
    attempts : int
        A delivery is dead after this number of failures.
    first_pause_seconds : float
        Before the second attempt; each later pause is four times as long.
    """

    attempts: int = 8
    first_pause_seconds: float = 5.0

    def pause(self, attempt: int, retry_after: float | None, jitter: float) -> float:
        """Seconds to wait after the `attempt`-th failure; `jitter` from 0 to 1 spreads the load."""
        # Bounded, because a large exponent overflows.
        grown = self.first_pause_seconds * _GROWTH ** min(attempt - 1, 40)
        longest = MAX_PAUSE.total_seconds()
        waited = min(grown, longest) * (0.5 + 0.5 * jitter)
        return min(max(waited, retry_after or 0.0), longest)


@dataclass(eq=False)
class WebhookDispatcher:
    """Sends the deliveries of the outbox; several dispatchers on one database share them.

    Attributes
    ----------
    threads : int
        Deliveries sent at the same time.
    clock : callable
        Current time.
    """

    database: Database
    sender: Sender
    retries: Retries
    metrics: Metrics
    _: KW_ONLY
    threads: int = 4
    poll_seconds: float = 1.0
    clock: Callable[[], datetime] = now

    async def run(self) -> None:
        """Send until cancelled; deliveries in progress are finished then, others stay in the database."""
        loop = asyncio.get_running_loop()
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="webhook")
        sending: set[asyncio.Future[None]] = set()
        try:
            while True:
                free = self.threads - len(sending)
                claimed = await loop.run_in_executor(None, self._claim, free) if free else []
                sending |= {loop.run_in_executor(pool, self._deliver, each) for each in claimed}
                if not sending:
                    await asyncio.sleep(self.poll_seconds)
                    continue
                # Others are sent while one receiver hangs.
                done, sending = await asyncio.wait(
                    sending, timeout=self.poll_seconds, return_when=asyncio.FIRST_COMPLETED
                )
                for each in done:
                    each.result()
        finally:
            await loop.run_in_executor(None, pool.shutdown)

    def _claim(self, limit: int) -> list[ClaimedMessage]:
        length = timedelta(seconds=self.sender.timeout_seconds + _LEASE_MARGIN_SECONDS)
        try:
            with self.database.session() as session:
                return outbox.claim(session, self.clock(), limit, length)
        except RcaError as error:
            # Deliveries that are due stay due.
            _log.warning("webhooks wait for the database", reason=error.message)
            return []

    def _deliver(self, claimed: ClaimedMessage) -> None:
        outcome = self.sender.send(claimed, math.floor(self.clock().timestamp()))
        try:
            with self.database.session() as session:
                state = self._finish(session, claimed, outcome)
        except RcaError as error:
            # The lease runs out and it is sent again; the receiver recognises it by its id.
            _log.warning("the outcome of a webhook was not stored", delivery=claimed.id, reason=error.message)
            return
        self.metrics.webhook_attempts.labels(state).inc()
        _log.info(
            "webhook",
            delivery=claimed.id,
            webhook=claimed.webhook_id,
            attempt=claimed.attempt,
            state=state,
            status=outcome.status,
            error=outcome.error,
        )

    def _finish(self, session: Session, claimed: ClaimedMessage, outcome: AttemptOutcome) -> str:
        row = outbox.LEASES.held_one(session, claimed.owner, claimed.number)
        if row is None:
            return "lost"
        outbox.LEASES.end(row)
        row.last_status, row.last_error = outcome.status, outcome.error
        return self._judged(session, row, outcome)

    def _judged(self, session: Session, row: DeliveryRow, outcome: AttemptOutcome) -> str:
        at = self.clock()
        webhook = session.get_one(WebhookRow, row.webhook_id)
        if outcome.error is None:
            row.state, row.finished_at, webhook.resting_until = "delivered", at, None
            return "delivered"
        if outcome.gone:
            webhook.active = False
        most = min(self.retries.attempts, REFUSED_ATTEMPTS if outcome.refused else self.retries.attempts)
        # Spreading load needs no secret randomness.
        wait = self.retries.pause(row.attempts, outcome.retry_after_seconds, random.random())  # noqa: S311
        if not outcome.refused:
            webhook.resting_until = at + min(timedelta(seconds=wait), MAX_REST)
        if outcome.gone or row.attempts >= most:
            row.state, row.finished_at = "dead", at
            return "dead"
        row.leased_until, row.next_attempt_at = at, at + timedelta(seconds=wait)
        return "failed"
