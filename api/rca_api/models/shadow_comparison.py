"""Comparisons of champion and challenger on the same windows: their table, and how often the two agree."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import JSON, ForeignKey, Index, Integer, String, UniqueConstraint, cast, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from rca_api.shell.store.base import Base, UtcDateTime, now

if TYPE_CHECKING:
    # Not at run time: every command that opens the database imports its tables.
    from rca.diagnosis.result import Diagnosis
    from rca_api.shell.processes.bundles import BundleRef

#: Disagreements that a summary lists.
_SHOWN = 50


class ShadowRow(Base):
    """One window that champion and challenger have diagnosed."""

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
    #: Main facts of both answers, see `schemas.AnswerFacts`.
    champion: Mapped[dict[str, Any]] = mapped_column(JSON)
    challenger: Mapped[dict[str, Any]] = mapped_column(JSON)


def comparison(diagnosis_id: str, champion: Diagnosis, challenger: Diagnosis, ref: BundleRef) -> ShadowRow:
    """Compare the main facts of two answers to one window."""
    one, other = facts(champion), facts(challenger)
    return ShadowRow(
        diagnosis_id=diagnosis_id,
        version=ref.version or 0,
        champion_sha256=champion.model.sha256,
        challenger_sha256=challenger.model.sha256,
        mode_agrees=(one["failure_mode"], one["abstained"]) == (other["failure_mode"], other["abstained"]),
        cause_agrees=one["cause"] == other["cause"],
        ranks_agree=one["ranks"] == other["ranks"],
        champion=one,
        challenger=other,
    )


def facts(diagnosis: Diagnosis) -> dict[str, Any]:
    """The main facts of an answer."""
    first = diagnosis.causes[0] if diagnosis.causes else None
    return {
        "failure_mode": diagnosis.failure_mode,
        "probability": diagnosis.failure_mode_probability[diagnosis.failure_mode],
        "abstained": diagnosis.abstained,
        "cause": None if first is None else first.cause,
        "ranks": sorted({rank for each in diagnosis.stragglers for rank in each.ranks}),
        "seconds_per_step": None if first is None else first.seconds_per_step,
    }


def summary(session: Session, version: int) -> dict[str, Any]:
    """How often a version agreed with the champion, and the latest disagreements."""
    mine = ShadowRow.version == version
    counted = [
        func.coalesce(func.sum(cast(column, Integer)), 0)
        for column in (ShadowRow.mode_agrees, ShadowRow.cause_agrees, ShadowRow.ranks_agree)
    ]
    compared, *agreed = session.execute(select(func.count(), *counted).where(mine)).one()
    differs = ~(ShadowRow.mode_agrees & ShadowRow.cause_agrees & ShadowRow.ranks_agree)
    newest = select(ShadowRow).where(mine, differs).order_by(ShadowRow.id.desc()).limit(_SHOWN)
    return {
        "version": version,
        "windows": compared,
        "mode_agrees": agreed[0],
        "cause_agrees": agreed[1],
        "ranks_agree": agreed[2],
        "disagreements": [
            {
                "diagnosis_id": row.diagnosis_id,
                "at": row.created_at,
                "champion": row.champion,
                "challenger": row.challenger,
            }
            for row in session.scalars(newest)
        ],
    }
