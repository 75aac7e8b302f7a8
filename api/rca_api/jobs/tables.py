"""Tables of jobs that send telemetry."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from rca_api.shell.store.base import Base, UtcDateTime, now


class StreamedJobRow(Base):
    """A job that sends telemetry, and how far it was watched."""

    __tablename__ = "streamed_jobs"
    __table_args__ = (
        Index("ix_streamed_jobs_newest", "updated_at", "job_id"),
        Index("ix_streamed_jobs_caller", "begun_by", "updated_at"),
    )

    job_id: Mapped[str] = mapped_column(String(256), primary_key=True)
    #: API key or token subject whose telemetry began the job, or began it again; null without authentication.
    begun_by: Mapped[str | None] = mapped_column(String(128))
    world_size: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    #: Last time that telemetry arrived.
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    #: Last time that steps arrived: a job that hangs still sends metrics. Null before the first.
    stepped_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    #: Highest step of any rank; null before the first.
    last_step: Mapped[int | None] = mapped_column(BigInteger)
    #: Usual step time when the job was last looked at, seconds.
    usual_seconds: Mapped[float | None]
    #: Whether rows have arrived since the job was last looked at.
    pending: Mapped[bool] = mapped_column(default=True)
    #: Last look. After a look that failed it lies ahead, by a pause.
    looked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    #: First step of the change that is followed, and the step from which it is diagnosed again.
    changed_step: Mapped[int | None] = mapped_column(BigInteger)
    next_step: Mapped[int | None] = mapped_column(BigInteger)
    #: First step after a change or a silence that was diagnosed; null once enough later steps were diagnosed.
    steady_since: Mapped[int | None] = mapped_column(BigInteger)
    #: Whether the present silence was diagnosed.
    silent: Mapped[bool] = mapped_column(default=False)
    #: When a silence that was diagnosed is diagnosed again, if it lasts; null for never.
    silence_again_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    #: What the last look found wrong with the telemetry, one remark per line; null if nothing.
    remarks: Mapped[str | None] = mapped_column(Text)
    diagnosis_id: Mapped[str | None] = mapped_column(
        ForeignKey("diagnoses.id", ondelete="SET NULL"), index=True
    )


class SegmentRow(Base):
    """Telemetry that arrived in one request, or the content of several earlier ones."""

    __tablename__ = "telemetry_segments"
    __table_args__ = (
        Index("ix_telemetry_segments_job_digest", "job_id", "digest", unique=True),
        Index("ix_telemetry_segments_job_end", "job_id", "end"),
    )

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("streamed_jobs.job_id", ondelete="CASCADE"))
    digest: Mapped[str] = mapped_column(ForeignKey("windows.digest", ondelete="CASCADE"), index=True)
    n_bytes: Mapped[int]
    #: Bounds of its rows, Unix seconds.
    begin: Mapped[float]
    end: Mapped[float]
    #: Null in rows of an older version, which all have the size of their job.
    world_size: Mapped[int | None]
    #: Null without steps.
    first_step: Mapped[int | None] = mapped_column(BigInteger)
    last_step: Mapped[int | None] = mapped_column(BigInteger)
    #: Of the newest of its rows.
    received_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now, index=True)
    #: Whether it is long enough: it is not merged with others any more.
    closed: Mapped[bool] = mapped_column(default=False)
