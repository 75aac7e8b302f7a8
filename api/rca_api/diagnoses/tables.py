"""Tables of windows, diagnoses and idempotency keys."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column, relationship

from rca_api.shell.store.base import Base, UtcDateTime, new_id, now
from rca_api.shell.store.packed import PackedDocument


class WindowRow(Base):
    """A window in the window store; equal content is one row."""

    __tablename__ = "windows"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    job_id: Mapped[str] = mapped_column(String(256), index=True)
    n_bytes: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    #: Last time it was posted; retention deletes the oldest first.
    used_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now, index=True)


class DiagnosisRow(Base):
    """One diagnosis: queued, running, done or failed; `document` is the answer."""

    __tablename__ = "diagnoses"
    __table_args__ = (
        Index("ix_diagnoses_newest", "created_at", "id"),
        Index("ix_diagnoses_job_newest", "job_id", "created_at", "id"),
        Index("ix_diagnoses_state_newest", "state", "created_at", "id"),
        Index("ix_diagnoses_failure_mode_newest", "failure_mode", "created_at", "id"),
        Index("ix_diagnoses_abstained_newest", "abstained", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True, default=new_id)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    #: queued, running, done, failed
    state: Mapped[str] = mapped_column(String(16), default="done")
    #: Null once retention has deleted the window.
    window_digest: Mapped[str | None] = mapped_column(
        ForeignKey("windows.digest", ondelete="SET NULL"), index=True
    )
    window_id: Mapped[str | None] = mapped_column(String(256))
    job_id: Mapped[str] = mapped_column(String(256))
    #: Bounds of the window, in Unix seconds. They order the diagnoses of a job.
    window_start: Mapped[float]
    window_end: Mapped[float]
    #: API key or token subject of the request, or of the job's telemetry; null if authentication is off.
    asked_by: Mapped[str | None] = mapped_column(String(128))
    #: Id of the request in the log; a queued diagnosis runs after its request has ended.
    request_id: Mapped[str | None] = mapped_column(String(128))
    failure_mode: Mapped[str | None] = mapped_column(String(16))
    abstained: Mapped[bool | None]
    #: First cause, the one that costs most.
    cause: Mapped[str | None] = mapped_column(String(64))
    seconds_per_step: Mapped[float | None]
    model_sha256: Mapped[str | None] = mapped_column(String(64))
    #: Number of ranks of the job, and the names of its nodes if the window has them.
    world_size: Mapped[int | None]
    nodes: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    #: JSON of `rca.diagnosis.result.Diagnosis`. A query reads it only if it asks for it (`undefer`).
    document: Mapped[bytes | None] = mapped_column(PackedDocument, deferred=True, deferred_raiseload=True)
    #: Problem document (JSON) of a failed one, or of the last attempt of one that is queued again.
    problem: Mapped[bytes | None] = mapped_column(LargeBinary)

    #: Place in the queue, see `rca_api.diagnoses.repository.Queue`; 0 for one that was never queued.
    turn: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    #: Lease of a running diagnosis, and number of claims; see `rca_api.shell.store.leases`.
    lease_owner: Mapped[str | None] = mapped_column(String(64))
    lease_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    attempts: Mapped[int] = mapped_column(default=0)

    blames: Mapped[list[BlameRow]] = relationship(
        cascade="all, delete-orphan", passive_deletes=True, order_by="BlameRow.id"
    )


class BlameRow(Base):
    """A node of a cause of a diagnosis; a cause without nodes has one row without a node."""

    __tablename__ = "blames"
    __table_args__ = (
        Index("ix_blames_node_cause_diagnosis", "node", "cause", "diagnosis_id"),
        Index("ix_blames_cause_diagnosis", "cause", "diagnosis_id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    diagnosis_id: Mapped[str] = mapped_column(ForeignKey("diagnoses.id", ondelete="CASCADE"), index=True)
    #: 1 for the first cause.
    place: Mapped[int]
    cause: Mapped[str] = mapped_column(String(64))
    node: Mapped[str | None] = mapped_column(String(256))
    #: infrastructure, workload or either
    owner: Mapped[str] = mapped_column(String(16))
    probability: Mapped[float]
    seconds_per_step: Mapped[float]


class IdempotencyRow(Base):
    """An idempotency key of a caller, and the diagnosis of its request."""

    __tablename__ = "idempotency_keys"

    #: "" if authentication is off; all callers share their keys then.
    caller: Mapped[str] = mapped_column(String(128), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    #: SHA-256 of the request.
    request_digest: Mapped[str] = mapped_column(String(64))
    #: Null while the first request with this key is in progress.
    diagnosis_id: Mapped[str | None] = mapped_column(
        ForeignKey("diagnoses.id", ondelete="CASCADE"), index=True
    )
    #: The request that holds the key; only it may store an answer.
    holder: Mapped[str] = mapped_column(String(32))
    held_until: Mapped[datetime] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=now)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
