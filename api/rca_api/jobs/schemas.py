"""Answers about jobs that send telemetry."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from rca_api.jobs.tables import StreamedJobRow
from rca_api.shell.store.base import values_of


class Receipt(BaseModel):
    """Telemetry that was stored."""

    job_id: str
    segment: str = Field(description="SHA-256 of the stored rows.")
    new: bool = Field(description="False if the same rows had arrived before.")
    first_step: int | None
    last_step: int | None


class StreamedJob(BaseModel):
    """A job that sends telemetry."""

    job_id: str
    world_size: int
    created_at: datetime
    updated_at: datetime = Field(description="Last time that telemetry arrived.")
    ended_at: datetime | None = Field(description="When its trainer ended it; null while it runs.")
    last_step: int | None
    step_seconds: float | None = Field(description="Usual step time, seconds.")
    changed_step: int | None = Field(
        description="First step of a lasting change of the step time, or of a rank's lateness."
    )
    remarks: list[str] = Field(
        description="What of the newest telemetry does not count or was moved, or why it is not watched."
    )
    diagnosis_id: str | None = Field(description="Newest diagnosis that the service made by itself.")

    @classmethod
    def of(cls, row: StreamedJobRow) -> StreamedJob:
        """Read a row."""
        shown = {"step_seconds": row.usual_seconds, "remarks": (row.remarks or "").splitlines()}
        return cls.model_validate(values_of(cls, row) | shown)


class EndedJob(BaseModel):
    """A job without telemetry of its own, of which windows were diagnosed."""

    job_id: str
    ended_at: datetime


class StreamedJobPage(BaseModel):
    """Jobs, the one with the newest telemetry first."""

    items: list[StreamedJob]
    next: str | None
