"""The table of what champion and challenger said about the same windows."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from rca_api.store.base import Base, UtcDateTime, now


class ShadowRow(Base):
    """One window that the challenger diagnosed beside the champion."""

    __tablename__ = "shadow_comparisons"
    __table_args__ = (
        UniqueConstraint("diagnosis_id", "challenger_sha256"),
        Index("ix_shadow_comparisons_version_newest", "version", "id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    diagnosis_id: Mapped[str] = mapped_column(ForeignKey("diagnoses.id", ondelete="CASCADE"))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    #: Registered version of the challenger.
    version: Mapped[int]
    champion_sha256: Mapped[str] = mapped_column(String(64))
    challenger_sha256: Mapped[str] = mapped_column(String(64))
    mode_agrees: Mapped[bool]
    cause_agrees: Mapped[bool]
    ranks_agree: Mapped[bool]
    #: What either said, as of `schemas.AnswerFacts`.
    champion: Mapped[dict[str, Any]] = mapped_column(JSON)
    challenger: Mapped[dict[str, Any]] = mapped_column(JSON)
