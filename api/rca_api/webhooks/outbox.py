"""What is to be sent: rows written in the transaction of the event, and leased to whoever sends them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import CursorResult, func, or_, select, update
from sqlalchemy.orm import Session

from rca_api.store.base import new_id
from rca_api.webhooks.tables import DeliveryRow, WebhookRow


@dataclass(frozen=True)
class Leased:
    """A delivery that this process alone may send until its lease runs out."""

    number: int
    lease: str
    id: str
    webhook_id: str
    url: str
    secret: str
    body: bytes
    #: This one included.
    attempt: int


def enqueue(
    session: Session,
    *,
    event: str,
    job_id: str,
    causes: Iterable[str],
    incident_id: str,
    body: bytes,
    at: datetime,
) -> None:
    """Write a delivery for every webhook that wants the event.

    Parameters
    ----------
    causes : iterable of str
        The cause now and the one before: who was told that it began is told that it changed.
    """
    for webhook in session.scalars(select(WebhookRow).where(WebhookRow.active).order_by(WebhookRow.id)):
        wants_job = webhook.job_id is None or webhook.job_id == job_id
        wants_cause = not webhook.causes or not set(webhook.causes).isdisjoint(causes)
        if event in webhook.events and wants_job and wants_cause:
            session.add(
                DeliveryRow(
                    webhook_id=webhook.id,
                    event=event,
                    incident_id=incident_id,
                    body=body,
                    created_at=at,
                    next_attempt_at=at,
                )
            )


def lease(session: Session, at: datetime, limit: int, seconds: float) -> list[Leased]:
    """Take up to `limit` deliveries that are due, one of each webhook.

    Of an incident the oldest one is next, so that its order is kept; incidents do not wait for each other. A
    webhook has one delivery on its way at a time: receivers that hang must not take all senders.
    """
    next_of_incidents = (
        select(func.min(DeliveryRow.number))
        .where(DeliveryRow.state == "pending")
        .group_by(DeliveryRow.webhook_id, DeliveryRow.incident_id)
    )
    on_its_way = select(DeliveryRow.webhook_id).where(
        DeliveryRow.state == "pending", DeliveryRow.leased_until > at
    )
    rested = or_(WebhookRow.resting_until.is_(None), WebhookRow.resting_until <= at)
    free = or_(DeliveryRow.leased_until.is_(None), DeliveryRow.leased_until <= at)
    # What was never tried comes before what failed already.
    place = func.row_number().over(
        partition_by=DeliveryRow.webhook_id,
        order_by=(DeliveryRow.attempts, DeliveryRow.next_attempt_at, DeliveryRow.number),
    )
    ranked = (
        select(DeliveryRow.number, DeliveryRow.next_attempt_at, place.label("place"))
        .join(WebhookRow, WebhookRow.id == DeliveryRow.webhook_id)
        .where(
            DeliveryRow.number.in_(next_of_incidents),
            DeliveryRow.next_attempt_at <= at,
            DeliveryRow.webhook_id.not_in(on_its_way),
            WebhookRow.active,
            rested,
        )
        .subquery()
    )
    due = (
        select(ranked.c.number)
        .where(ranked.c.place == 1)
        .order_by(ranked.c.next_attempt_at, ranked.c.number)
        .limit(limit)
    )
    taken: list[Leased] = []
    for number in list(session.scalars(due)):
        token = new_id()
        # Another replica may have seen it free, too: the database decides whose it is.
        claim = update(DeliveryRow).where(DeliveryRow.number == number, DeliveryRow.state == "pending", free)
        values = {"lease": token, "leased_until": at + timedelta(seconds=seconds)}
        claimed = session.execute(claim.values(values).execution_options(synchronize_session=False))
        if cast("CursorResult[Any]", claimed).rowcount == 1:
            taken.append(_leased(session, number, token))
    return taken


def _leased(session: Session, number: int, token: str) -> Leased:
    statement = (
        select(DeliveryRow, WebhookRow)
        .join(WebhookRow, WebhookRow.id == DeliveryRow.webhook_id)
        .where(DeliveryRow.number == number)
        .execution_options(populate_existing=True)
    )
    row, webhook = session.execute(statement).one()
    return Leased(number, token, row.id, webhook.id, webhook.url, webhook.secret, row.body, row.attempts + 1)


def held(session: Session, leased: Leased) -> DeliveryRow | None:
    """Get the row, locked; None if the lease was lost, or the delivery is gone."""
    statement = select(DeliveryRow).where(
        DeliveryRow.number == leased.number,
        DeliveryRow.lease == leased.lease,
        DeliveryRow.state == "pending",
    )
    return session.scalars(statement.with_for_update()).one_or_none()


def ready_again(row: DeliveryRow, at: datetime) -> None:
    """Make a delivery that was given up pending once more, with all its attempts."""
    row.state = "pending"
    row.attempts = 0
    row.next_attempt_at = at
    row.finished_at = None
    row.lease = row.leased_until = None
