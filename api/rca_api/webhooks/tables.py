"""Tables of webhooks and deliveries."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import JSON, ForeignKey, Index, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from rca_api.shell.store.base import Base, UtcDateTime, new_id, now


class WebhookRow(Base):
    """A receiver of events, with its filters."""

    __tablename__ = "webhooks"
    __table_args__ = (Index("ix_webhooks_newest", "created_at", "id"),)

    id: Mapped[str] = mapped_column(String(32), primary_key=True, default=new_id)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    created_by: Mapped[str | None] = mapped_column(String(128))
    url: Mapped[str] = mapped_column(String(2048))
    description: Mapped[str] = mapped_column(String(256), default="")
    #: Signing needs the secret itself, not a hash of it.
    secret: Mapped[str] = mapped_column(String(128))
    events: Mapped[list[str]] = mapped_column(JSON)
    #: Null is every job, an empty list every cause.
    job_id: Mapped[str | None] = mapped_column(String(256))
    causes: Mapped[list[str]] = mapped_column(JSON)
    active: Mapped[bool] = mapped_column(default=True)
    #: standard, slack, alertmanager, pagerduty
    form: Mapped[str] = mapped_column(String(16), default="standard", server_default="standard")
    #: Integration key of a PagerDuty service; its messages contain it.
    routing_key: Mapped[str | None] = mapped_column(String(64))
    #: After a failure, nothing is sent to the receiver before this time.
    resting_until: Mapped[datetime | None] = mapped_column(UtcDateTime)


class DeliveryRow(Base):
    """One event for one webhook: pending, delivered or dead (given up)."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (Index("ix_webhook_deliveries_queue", "state", "webhook_id", "number"),)

    #: Gives the order of an incident's deliveries to a webhook.
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    #: The receiver recognises repeated deliveries by it.
    id: Mapped[str] = mapped_column(String(32), unique=True, default=new_id)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"), index=True)
    event: Mapped[str] = mapped_column(String(32))
    incident_id: Mapped[str] = mapped_column(String(32))
    #: The bytes of the body, the same in each attempt. A query reads them only if it asks for them.
    body: Mapped[bytes] = mapped_column(LargeBinary, deferred=True, deferred_raiseload=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    #: pending, delivered, dead
    state: Mapped[str] = mapped_column(String(16), default="pending")
    attempts: Mapped[int] = mapped_column(default=0)
    next_attempt_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime, index=True)
    #: Owner and end of the lease; see `rca_api.shell.store.leases`. After a failure, when the pause began.
    lease: Mapped[str | None] = mapped_column(String(32))
    leased_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    last_status: Mapped[int | None]
    last_error: Mapped[str | None] = mapped_column(Text)
