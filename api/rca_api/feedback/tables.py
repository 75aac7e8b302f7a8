"""Table of feedback."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from rca_api.shell.store.base import Base, UtcDateTime, new_id, now


class FeedbackRow(Base):
    """Feedback on a diagnosis; it may be withdrawn, and goes only with its diagnosis."""

    __tablename__ = "feedback"
    __table_args__ = (Index("ix_feedback_newest", "created_at", "id"),)

    id: Mapped[str] = mapped_column(String(32), primary_key=True, default=new_id)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    #: Without cascade, so a diagnosis with feedback is not deleted by mistake.
    diagnosis_id: Mapped[str] = mapped_column(ForeignKey("diagnoses.id"), index=True)
    #: confirmed or corrected
    verdict: Mapped[str] = mapped_column(String(16))
    #: The true label, with the fields of ``label.json``.
    label: Mapped[dict[str, Any]] = mapped_column(JSON)
    #: See `labels.meaning`; labels with equal meaning agree.
    meaning: Mapped[str] = mapped_column(Text)
    #: Key id or token subject; null if authentication is off.
    given_by: Mapped[str | None] = mapped_column(String(128))
    given_by_name: Mapped[str] = mapped_column(String(128))
    #: Source in the words of the caller: a person, a ticket.
    reported_by: Mapped[str | None] = mapped_column(String(256))
    note: Mapped[str] = mapped_column(Text)
    withdrawn_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
