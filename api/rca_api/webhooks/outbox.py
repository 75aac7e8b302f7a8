"""The outbox: deliveries are stored in the transaction of their event, claimed under a lease and sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import and_, func, not_, or_, select
from sqlalchemy.orm import Session, undefer

from rca_api.shell.store.base import new_id
from rca_api.shell.store.leases import Leases
from rca_api.shell.store.waits import is_recent, is_waiting
from rca_api.webhooks.messages import with_routing_key
from rca_api.webhooks.tables import DeliveryRow, WebhookRow

#: Longest pause between two attempts; a longer ``Retry-After`` is shortened to it.
MAX_PAUSE = timedelta(hours=6)
#: After a failure a receiver gets no messages until the next attempt, but not longer than this. So one
#: message delays those of other incidents by a minute at most.
MAX_REST = timedelta(minutes=1)
PENDING = "pending"
OPENED = "incident.opened"
#: Events of an incident that began as suspected, in place of `OPENED`.
_OPENINGS = ("incident.suspected", "incident.confirmed")
LEASES = Leases(
    DeliveryRow,
    key=DeliveryRow.number,
    owner=DeliveryRow.lease,
    until=DeliveryRow.leased_until,
    attempts=DeliveryRow.attempts,
    unfinished=DeliveryRow.state == PENDING,
)


@dataclass(frozen=True)
class ClaimedMessage:
    """A delivery that only this process may send until its lease runs out."""

    number: int
    #: Of the lease.
    owner: str
    id: str
    webhook_id: str
    url: str
    secret: str
    body: bytes
    #: Number of this attempt, from 1.
    attempt: int


def enqueue(
    session: Session,
    *,
    event: str,
    job_id: str,
    causes: Iterable[str],
    incident_id: str,
    body: Callable[[WebhookRow], bytes],
    at: datetime,
) -> None:
    """Store a delivery for every webhook that is subscribed to the event.

    Parameters
    ----------
    causes : iterable of str
        The cause now and the cause before: subscribers of either get the event.
    body : callable
        Gives the message in the form of a webhook.
    """
    for webhook in session.scalars(select(WebhookRow).where(WebhookRow.active).order_by(WebhookRow.id)):
        wants_job = webhook.job_id is None or webhook.job_id == job_id
        wants_cause = not webhook.causes or not set(webhook.causes).isdisjoint(causes)
        if _is_wanted(event, webhook.events) and wants_job and wants_cause:
            session.add(
                DeliveryRow(
                    webhook_id=webhook.id,
                    event=event,
                    incident_id=incident_id,
                    body=body(webhook),
                    created_at=at,
                    next_attempt_at=at,
                )
            )


def _is_wanted(event: str, events: Iterable[str]) -> bool:
    """Whether a subscription covers an event; one to openings covers suspected incidents as well."""
    return event in events or (event in _OPENINGS and OPENED in events)


def claim(session: Session, at: datetime, limit: int, length: timedelta) -> list[ClaimedMessage]:
    """Claim up to `limit` deliveries that are due, one of each webhook.

    Deliveries of one incident to one webhook are claimed in order; incidents do not wait for each other. A
    webhook has one delivery in progress at a time, so that a receiver that hangs takes one sender only.
    """
    next_of_incidents = (
        select(func.min(DeliveryRow.number))
        .where(DeliveryRow.state == PENDING)
        .group_by(DeliveryRow.webhook_id, DeliveryRow.incident_id)
    )
    busy = select(DeliveryRow.webhook_id).where(LEASES.is_leased(at, length))
    resting = is_waiting(WebhookRow.resting_until, at, MAX_REST)
    rested = or_(WebhookRow.resting_until.is_(None), not_(resting))
    # An attempt without an outcome was lost with its sender: nothing has to be waited for.
    never_answered = and_(DeliveryRow.last_status.is_(None), DeliveryRow.last_error.is_(None))
    due = or_(
        never_answered,
        not_(is_waiting(DeliveryRow.next_attempt_at, at, MAX_PAUSE)),
        # The clock was put back during the pause.
        not_(is_recent(DeliveryRow.leased_until, at, MAX_PAUSE)),
    )
    # A delivery that was never tried comes before one that has failed.
    place = func.row_number().over(
        partition_by=DeliveryRow.webhook_id,
        order_by=(DeliveryRow.attempts, DeliveryRow.next_attempt_at, DeliveryRow.number),
    )
    ranked = (
        select(DeliveryRow.number, DeliveryRow.next_attempt_at, place.label("place"))
        .join(WebhookRow, WebhookRow.id == DeliveryRow.webhook_id)
        .where(
            DeliveryRow.number.in_(next_of_incidents),
            due,
            DeliveryRow.webhook_id.not_in(busy),
            WebhookRow.active,
            rested,
        )
        .subquery()
    )
    order = (ranked.c.next_attempt_at, ranked.c.number)
    chosen = select(ranked.c.number).where(ranked.c.place == 1).order_by(*order).limit(limit)
    oldest = DeliveryRow.next_attempt_at, DeliveryRow.number
    wanted = select(DeliveryRow).options(undefer(DeliveryRow.body))
    wanted = wanted.where(DeliveryRow.number.in_(chosen)).order_by(*oldest)
    # A name per claim, not per process: a sender that lost a delivery cannot finish its own next attempt.
    owner = new_id()
    return [_claimed(session, row, owner) for row in LEASES.claim(session, wanted, owner, at, length).rows]


def _claimed(session: Session, row: DeliveryRow, owner: str) -> ClaimedMessage:
    webhook = session.get_one(WebhookRow, row.webhook_id)
    return ClaimedMessage(
        number=row.number,
        owner=owner,
        id=row.id,
        webhook_id=webhook.id,
        url=webhook.url,
        secret=webhook.secret,
        body=with_routing_key(row.body, webhook.routing_key),
        attempt=row.attempts,
    )


def ready_again(row: DeliveryRow, at: datetime) -> None:
    """Make a dead delivery pending again, with all its attempts."""
    row.state = PENDING
    row.attempts = 0
    row.next_attempt_at = at
    row.finished_at = None
    LEASES.end(row)
