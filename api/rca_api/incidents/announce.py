"""Announcing an event of an incident: in its timeline, to webhooks, and in the metrics."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.orm import Session

from rca_api.incidents import repository
from rca_api.incidents.schemas import IncidentNotification, NotificationData, read_event, read_incident
from rca_api.incidents.state_machine import Event
from rca_api.incidents.tables import IncidentEventRow, IncidentRow
from rca_api.metrics import Metrics
from rca_api.webhooks import outbox

Announce = Callable[[Session, IncidentRow, Event, datetime], None]


class Announcer:
    """Writes an event and its deliveries in the transaction of the event."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def __call__(self, session: Session, incident: IncidentRow, event: Event, at: datetime) -> None:
        """Announce one event."""
        row = IncidentEventRow(
            incident_id=incident.id,
            kind=event.kind,
            at=at,
            window_end=event.window_end,
            diagnosis_id=event.diagnosis_id,
            failure_mode=event.subject.failure_mode,
            cause=event.subject.cause,
            previous_cause=event.previous.cause if event.previous is not None else None,
            place=list(event.subject.place) or None,
            previous_place=(list(event.previous.place) or None) if event.previous is not None else None,
            reason=event.reason,
        )
        session.add(row)
        session.flush()
        nodes = repository.nodes_of(session, [incident.id])[incident.id]
        notification = IncidentNotification(
            type=f"incident.{event.kind}",
            timestamp=at,
            data=NotificationData(incident=read_incident(incident, nodes), event=read_event(row)),
        )
        causes = {cause for cause in (row.cause, row.previous_cause) if cause is not None}
        if row.cause is None:
            # Webhooks that got an event for one of its causes get the following ones as well.
            causes = repository.causes_of(session, incident.id)
        outbox.enqueue(
            session,
            event=notification.type,
            job_id=incident.job_id,
            causes=causes,
            incident_id=incident.id,
            body=notification.model_dump_json().encode(),
            at=at,
        )
        counter = self._metrics.incident_events.labels(event.kind)
        # Counted after the commit: the transaction may still fail.
        sqlalchemy_event.listen(session, "after_commit", lambda _: counter.inc(), once=True)
