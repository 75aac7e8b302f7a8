"""Deletes rows that are too old, in small batches, so that requests wait for it a few milliseconds only.

What belongs together stays together:

- the diagnoses of an incident are kept as long as the incident, so that its cost can be recounted;
- a diagnosis with feedback is training data: `feedback_days` decides. Withdrawn feedback does not count;
- blames, observations, idempotency keys and shadow comparisons go with their diagnosis, events and taken
  actions with their incident.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import ColumnElement, and_, delete, exists, false, literal, or_, select, true, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from rca_api.data_shards.tables import ShardSetRow
from rca_api.diagnoses.repository import QUEUED, RUNNING
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.feedback.tables import FeedbackRow
from rca_api.incidents.tables import FollowedJobRow, IncidentRow, ObservationRow
from rca_api.jobs.tables import SegmentRow, StreamedJobRow
from rca_api.nodes.repository import NodeExposureRow
from rca_api.nodes.service import RECORD_AGE
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store.base import Base, now
from rca_api.shell.store.database import Database, StoreError
from rca_api.shell.store.deletion import delete_rows
from rca_api.shell.store.time_limits import TIDYING_SECONDS
from rca_api.training_runs.tables import TrainingRunRow
from rca_api.webhooks.tables import DeliveryRow

_log = structlog.stdlib.get_logger("rca_api.retention")
#: Rows deleted in one transaction: those that take others with them, and the rest.
_FEW, _MANY = 50, 200
#: Rows looked at in one query.
_LOOK = 2000
Age = timedelta | None


@dataclass(frozen=True)
class Ages:
    """How long each kind of row is kept; None for ever."""

    diagnoses: Age
    incidents: Age
    feedback: Age
    delivered: Age
    dead: Age
    training_runs: Age
    telemetry: Age
    data_shards: Age

    @classmethod
    def of(cls, settings: Settings) -> Ages:
        """Read the settings, in which 0 means for ever."""
        days = {
            "diagnoses": settings.diagnosis_days,
            "incidents": settings.incident_days,
            "feedback": settings.feedback_days,
            "delivered": settings.webhook_keep_days,
            "dead": settings.webhook_dead_days,
            "training_runs": settings.training_run_days,
            "data_shards": settings.data_shard_days,
        }
        ages = {name: timedelta(days=each) if each else None for name, each in days.items()}
        return cls(**ages, telemetry=timedelta(hours=settings.telemetry_hours))

    def all(self, age: timedelta) -> Ages:
        """The same age for everything except feedback, which is training data."""
        return replace(self, **{each.name: age for each in fields(self) if each.name != "feedback"})


@dataclass(frozen=True)
class RowKind:
    """Rows of one table that are deleted at an age.

    Attributes
    ----------
    order : tuple of mapped columns
        A time, then the primary key.
    doomed : condition
        That a row of this age is deleted.
    at_once : int
        Rows deleted in one transaction.
    """

    name: str
    table: type[Base]
    order: tuple[InstrumentedAttribute[Any], ...]
    age: Age
    doomed: ColumnElement[bool]
    at_once: int = _MANY

    def is_old(self, at: datetime) -> ColumnElement[bool]:
        """Condition that a row is older than the age."""
        return false() if self.age is None else self.order[0] < at - self.age


class OldRows:
    """Rows that are older than their ages allow."""

    def __init__(self, database: Database, ages: Ages) -> None:
        self._database = database
        self._ages = ages

    def delete(self, at: datetime | None = None) -> dict[str, int]:
        """Delete all of them; gives their numbers. A kind that fails does not stop the others."""
        at = at or now()
        deleted: dict[str, int] = {}
        for kind in self.kinds(at):
            try:
                deleted[kind.name] = sum(self._deleted(kind, keys, at) for keys in self._batches(kind, at))
            except StoreError as error:
                _log.warning("deletion of old rows is postponed", kind=kind.name, reason=error.message)
        return deleted

    def count(self, at: datetime | None = None) -> dict[str, int]:
        """Numbers of the rows that `delete` would delete now."""
        at = at or now()
        return {kind.name: sum(map(len, self._batches(kind, at))) for kind in self.kinds(at)}

    def kinds(self, at: datetime) -> tuple[RowKind, ...]:
        """All kinds, those that keep others first."""
        ages, age = self._ages, self._ages.diagnoses
        records = RECORD_AGE if age is None else min(RECORD_AGE, age)
        delivery = (DeliveryRow.finished_at, DeliveryRow.number)
        is_open = exists().where(IncidentRow.open_job_id == FollowedJobRow.job_id)
        exposure = (NodeExposureRow.updated_at, NodeExposureRow.node, NodeExposureRow.job_id)
        jobs = (FollowedJobRow.advanced_at, FollowedJobRow.job_id)
        runs = (TrainingRunRow.created_at, TrainingRunRow.id)
        segments = (SegmentRow.received_at, SegmentRow.number)
        streamed = (StreamedJobRow.updated_at, StreamedJobRow.job_id)
        is_empty = ~exists().where(SegmentRow.job_id == StreamedJobRow.job_id)
        shards = (ShardSetRow.updated_at, ShardSetRow.name)
        ended = TrainingRunRow.active.is_(None)
        delivered, dead = DeliveryRow.state == "delivered", DeliveryRow.state == "dead"
        return (
            RowKind(
                "incidents",
                IncidentRow,
                (IncidentRow.opened_at, IncidentRow.id),
                ages.incidents,
                self._old_incident(at),
                _FEW,
            ),
            RowKind(
                "diagnoses",
                DiagnosisRow,
                (DiagnosisRow.created_at, DiagnosisRow.id),
                age,
                self._unused_diagnosis(at),
                _FEW,
            ),
            # They are not read at a higher age, and without their diagnoses they would count as clean.
            RowKind("node records", NodeExposureRow, exposure, records, true()),
            RowKind("jobs", FollowedJobRow, jobs, age, and_(~self._observed_job(at), ~is_open)),
            RowKind("delivered webhooks", DeliveryRow, delivery, ages.delivered, delivered),
            RowKind("dead webhooks", DeliveryRow, delivery, ages.dead, dead),
            RowKind("training runs", TrainingRunRow, runs, ages.training_runs, ended),
            RowKind("telemetry", SegmentRow, segments, ages.telemetry, true()),
            RowKind("jobs with telemetry", StreamedJobRow, streamed, ages.telemetry, is_empty),
            RowKind("data shards", ShardSetRow, shards, ages.data_shards, true(), _FEW),
        )

    def _old_incident(self, at: datetime) -> ColumnElement[bool]:
        if self._ages.incidents is None:
            return false()
        return and_(IncidentRow.open_job_id.is_(None), IncidentRow.resolved_at < at - self._ages.incidents)

    def _unused_diagnosis(self, at: datetime) -> ColumnElement[bool]:
        of_incident = (
            select(ObservationRow.job_id)
            .join(IncidentRow, IncidentRow.id == ObservationRow.incident_id)
            .where(ObservationRow.diagnosis_id == DiagnosisRow.id, ~self._old_incident(at))
        )
        judged = exists().where(
            FeedbackRow.diagnosis_id == DiagnosisRow.id, FeedbackRow.withdrawn_at.is_(None)
        )
        if self._ages.feedback is not None:
            judged = judged.where(FeedbackRow.created_at >= at - self._ages.feedback)
        # Not IN, because SQLite would look the states up rather than the keys of a batch.
        ended = and_(DiagnosisRow.state != QUEUED, DiagnosisRow.state != RUNNING)
        return and_(ended, ~of_incident.exists(), ~judged)

    def _observed_job(self, at: datetime) -> ColumnElement[bool]:
        """Whether a window of the job will be left."""
        kept = or_(
            DiagnosisRow.created_at >= at - (self._ages.diagnoses or timedelta()), ~self._unused_diagnosis(at)
        )
        seen = select(ObservationRow.job_id).join(
            DiagnosisRow, DiagnosisRow.id == ObservationRow.diagnosis_id
        )
        return seen.where(ObservationRow.job_id == FollowedJobRow.job_id, kept).exists()

    def _batches(self, kind: RowKind, at: datetime) -> Iterator[Sequence[tuple[Any, ...]]]:
        """Keys of rows to delete at once; each query looks at a limited number of rows."""
        if kind.age is None:
            return
        old = select(*kind.order, kind.doomed.label("doomed")).where(kind.is_old(at))
        old = old.order_by(*kind.order).limit(_LOOK)
        last: tuple[Any, ...] | None = None
        while True:
            further = old
            if last is not None:
                # With the types of the columns, so that moments do not compare as text.
                values = (literal(value, key.type) for key, value in zip(kind.order, last, strict=True))
                further = old.where(tuple_(*kind.order) > tuple_(*values))
            with self._database.reading(TIDYING_SECONDS) as session:
                rows = session.execute(further).all()
            doomed = [tuple(row[1:-1]) for row in rows if row.doomed]
            for first in range(0, len(doomed), kind.at_once):
                yield doomed[first : first + kind.at_once]
            if len(rows) < _LOOK:
                return
            last = tuple(rows[-1][:-1])

    def _deleted(self, kind: RowKind, keys: Sequence[tuple[Any, ...]], at: datetime) -> int:
        """Delete rows that still are old and to be deleted; then writers have as much time as this took."""
        began = time.monotonic()
        with self._database.session(TIDYING_SECONDS) as session:
            # A job that goes on may have refreshed a row since it was selected.
            doomed: ColumnElement[bool] | None = and_(kind.doomed, kind.is_old(at))
            if kind.table is DiagnosisRow:
                keys, doomed = _without_feedback(session, keys, kind.doomed), None
            n_deleted = delete_rows(session, kind.table, keys, doomed)
        time.sleep(time.monotonic() - began)
        return n_deleted


def _without_feedback(
    session: Session, keys: Sequence[tuple[Any, ...]], doomed: ColumnElement[bool]
) -> Sequence[tuple[Any, ...]]:
    """Lock those diagnoses that are still to be deleted and not in use, and delete their feedback."""
    rows = select(DiagnosisRow.id).where(DiagnosisRow.id.in_([key for (key,) in keys]), doomed)
    locked = list(session.scalars(rows.with_for_update(skip_locked=True, of=DiagnosisRow)))
    judged = delete(FeedbackRow).where(FeedbackRow.diagnosis_id.in_(locked))
    session.execute(judged, execution_options={"synchronize_session": False})
    return [(each,) for each in locked]
