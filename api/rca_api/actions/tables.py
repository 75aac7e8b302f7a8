"""Table of actions that were taken on incidents."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import JSON, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from rca_api.shell.store.base import Base, UtcDateTime, new_id, now


class TakenActionRow(Base):
    """An action, its prediction, and the gain observed since; it goes with its incident."""

    __tablename__ = "taken_actions"
    __table_args__ = (
        UniqueConstraint("incident_id", "key"),
        Index("ix_taken_actions_newest", "incident_id", "taken_at", "id"),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True, default=new_id)
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id", ondelete="CASCADE"))
    #: Of the caller, else the digest of the content.
    key: Mapped[str] = mapped_column(String(256))
    #: SHA-256 of the content.
    content: Mapped[str] = mapped_column(String(64))
    #: Name in `rca.recovery.planner.ACTIONS`, or "other".
    action: Mapped[str] = mapped_column(String(64), index=True)
    #: On the job's clock.
    taken_at: Mapped[datetime] = mapped_column(UtcDateTime)
    nodes: Mapped[list[str]] = mapped_column(JSON)
    ranks: Mapped[list[int]] = mapped_column(JSON)
    note: Mapped[str] = mapped_column(Text)
    recorded_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    #: Key id or token subject; null if authentication is off.
    recorded_by: Mapped[str | None] = mapped_column(String(128))
    recorded_by_name: Mapped[str] = mapped_column(String(128))
    #: The diagnosis that predicted the gain.
    diagnosis_id: Mapped[str | None] = mapped_column(
        ForeignKey("diagnoses.id", ondelete="SET NULL"), index=True
    )
    #: Seconds per step, with interval; seconds of the job once. Null where the diagnosis predicts nothing.
    predicted: Mapped[float | None]
    predicted_low: Mapped[float | None]
    predicted_high: Mapped[float | None]
    one_off_seconds: Mapped[float | None]
    #: Observed over predicted gain of earlier actions that the prediction includes.
    correction: Mapped[float] = mapped_column(default=1.0)
    #: pending, helped, did_not_help, unclear
    outcome: Mapped[str] = mapped_column(String(16), default="pending")
    #: Fall of the seconds lost per step, with interval; null while it is not known.
    observed: Mapped[float | None]
    observed_low: Mapped[float | None]
    observed_high: Mapped[float | None]
    #: Mean seconds lost per step in the compared windows, and their numbers.
    lost_before: Mapped[float | None]
    lost_after: Mapped[float | None]
    windows_before: Mapped[int] = mapped_column(default=0)
    windows_after: Mapped[int] = mapped_column(default=0)
