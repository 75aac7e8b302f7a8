"""Tables of incidents."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import JSON, ForeignKey, Index, String, Text, false, text
from sqlalchemy.orm import Mapped, mapped_column

from rca_api.shell.store.base import Base, UtcDateTime, new_id, now

#: Conditions of indexes that hold few of the rows.
_IS_OPEN, _IS_SICK = text("open_job_id IS NOT NULL"), text("verdict = 'sick'")


class FollowedJobRow(Base):
    """A job with diagnoses; its row is locked while one of them is processed."""

    __tablename__ = "followed_jobs"

    job_id: Mapped[str] = mapped_column(String(256), primary_key=True)
    #: Bounds of the window of the last event; null before the first event.
    decided_end: Mapped[float | None]
    decided_start: Mapped[float | None]
    #: Service's clock: windows observed before it are ignored.
    since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    #: Service's clock at the last observation of a window newer than that of the last event.
    advanced_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now, index=True)


class IncidentRow(Base):
    """One incident; while it is open, its state at the last event."""

    __tablename__ = "incidents"
    __table_args__ = (
        Index("ix_incidents_newest", "opened_at", "id"),
        Index(
            "ix_incidents_open_newest", "opened_at", "id", sqlite_where=_IS_OPEN, postgresql_where=_IS_OPEN
        ),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True, default=new_id)
    job_id: Mapped[str] = mapped_column(String(256), index=True)
    #: The job while the incident is open, else null. So the database allows one open incident per job.
    open_job_id: Mapped[str | None] = mapped_column(String(256), unique=True)
    failure_mode: Mapped[str] = mapped_column(String(16))
    cause: Mapped[str | None] = mapped_column(String(64), index=True)
    #: Nodes, else ranks; null if not known.
    place: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    uncertain: Mapped[bool] = mapped_column(default=False, server_default=false())
    #: Whether no window was certain of a cause yet.
    suspected: Mapped[bool] = mapped_column(default=False, server_default=false())
    #: Relapses, and changes of cause or place, so far.
    reopened: Mapped[int] = mapped_column(default=0, server_default="0")
    changes: Mapped[int] = mapped_column(default=0, server_default="0")
    #: Service's clock.
    opened_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    resolved_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    #: healthy, silence, deleted, closed or ended
    resolution: Mapped[str | None] = mapped_column(String(16))
    #: What people do about it, on the service's clock: who has seen it, who works on it, until when
    #: it sends no message, and why it was closed; also how the end of its job is known.
    acknowledged_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    acknowledged_by: Mapped[str | None] = mapped_column(String(128))
    assigned_to: Mapped[str | None] = mapped_column(String(128))
    muted_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    closing_note: Mapped[str | None] = mapped_column(Text)
    #: Window time, Unix seconds: begin of the first window and end of the last window.
    began: Mapped[float]
    ended: Mapped[float]
    #: Earliest onset in its faulty windows, Unix seconds.
    onset: Mapped[float | None]
    windows: Mapped[int] = mapped_column(default=0)
    seconds_lost: Mapped[float] = mapped_column(default=0.0)
    gpu_hours_lost: Mapped[float] = mapped_column(default=0.0)


class IncidentEventRow(Base):
    """An event of an incident, as announced."""

    __tablename__ = "incident_events"
    __table_args__ = (Index("ix_incident_events_cause_incident", "cause", "incident_id"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id", ondelete="CASCADE"), index=True)
    #: One of `incidents.state_machine.EventKind`.
    kind: Mapped[str] = mapped_column(String(16))
    at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    #: End of the window that caused the event, Unix seconds.
    window_end: Mapped[float]
    diagnosis_id: Mapped[str | None] = mapped_column(
        ForeignKey("diagnoses.id", ondelete="SET NULL"), index=True
    )
    failure_mode: Mapped[str] = mapped_column(String(16))
    cause: Mapped[str | None] = mapped_column(String(64))
    previous_cause: Mapped[str | None] = mapped_column(String(64))
    place: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    previous_place: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    reason: Mapped[str | None] = mapped_column(String(16))


class ObservationRow(Base):
    """The verdict of a window: of its first diagnosis, or of one with precedence and other content."""

    __tablename__ = "observations"
    __table_args__ = (
        Index(
            "ix_observations_sick_observed_at",
            "observed_at",
            sqlite_where=_IS_SICK,
            postgresql_where=_IS_SICK,
        ),
    )

    job_id: Mapped[str] = mapped_column(String(256), primary_key=True)
    window_end: Mapped[float] = mapped_column(primary_key=True)
    window_start: Mapped[float] = mapped_column(primary_key=True)
    diagnosis_id: Mapped[str] = mapped_column(ForeignKey("diagnoses.id", ondelete="CASCADE"), index=True)
    incident_id: Mapped[str | None] = mapped_column(
        ForeignKey("incidents.id", ondelete="SET NULL"), index=True
    )
    #: Service's clock.
    observed_at: Mapped[datetime] = mapped_column(UtcDateTime)
    #: Whether the window ended further ahead of that than `incident_skew_seconds`.
    ahead: Mapped[bool] = mapped_column(default=False, server_default=false())
    #: Whether no step was timed, so that exporters or events alone show it.
    untimed: Mapped[bool] = mapped_column(default=False, server_default=false())
    #: healthy, sick, suspect, unsure
    verdict: Mapped[str] = mapped_column(String(8))
    failure_mode: Mapped[str] = mapped_column(String(16))
    #: Of the failure mode; null in rows of earlier versions.
    probability: Mapped[float | None]
    cause: Mapped[str | None] = mapped_column(String(64))
    #: When the stragglers began to be late, Unix seconds; null unless the window is faulty.
    onset: Mapped[float | None]
    #: When the fault was over, Unix seconds; null if it goes on, or ended shortly before the window did.
    over: Mapped[float | None]
    #: Nodes, else ranks, of the first cause.
    place: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    #: Over all steps of the window.
    seconds_lost: Mapped[float]
    gpu_hours_lost: Mapped[float]
