"""The table of training runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from rca_api.shell.store.base import Base, UtcDateTime, new_id, now


class TrainingRunRow(Base):
    """One run: its order, its worker and lease, its progress, its result.

    The row alone holds the state; queues and processes may vanish at any moment.
    """

    __tablename__ = "training_runs"
    __table_args__ = (Index("ix_training_runs_newest", "created_at", "id"),)

    id: Mapped[str] = mapped_column(String(32), primary_key=True, default=new_id)
    #: train or promotion
    kind: Mapped[str] = mapped_column(String(16))
    #: `schemas.TrainingOrder` or `schemas.PromotionOrder`, as JSON.
    order: Mapped[dict[str, Any]] = mapped_column(JSON)
    #: queued, running, succeeded, failed or cancelled; states only go forward.
    state: Mapped[str] = mapped_column(String(16), default="queued", index=True)
    #: 1 while queued or running, else null. The unique constraint allows one active run.
    active: Mapped[int | None] = mapped_column(default=1, unique=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    cancel_requested_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    #: Key id or token subject; null where authentication is off.
    asked_by: Mapped[str | None] = mapped_column(String(128))
    asked_by_name: Mapped[str] = mapped_column(String(256), default="")
    phase: Mapped[str] = mapped_column(String(128), default="waiting for a worker")
    completed: Mapped[int] = mapped_column(default=0)
    total: Mapped[int] = mapped_column(default=0)
    #: Number of claims.
    attempts: Mapped[int] = mapped_column(default=0)
    worker: Mapped[str | None] = mapped_column(String(128))
    heartbeat_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    lease_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    result: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    problem: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
