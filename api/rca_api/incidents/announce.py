"""Announcing an event of an incident: in its timeline, to webhooks, and in the metrics."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cache

from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.orm import Session

from rca.runbook.summary import Summary
from rca_api.diagnoses import repository as diagnoses
from rca_api.diagnoses.stored import read_stored
from rca_api.incidents import repository
from rca_api.incidents.schemas import (
    IncidentNotification,
    IncidentSummary,
    NotificationData,
    read_event,
    read_incident,
)
from rca_api.incidents.state_machine import Transition
from rca_api.incidents.tables import IncidentEventRow, IncidentRow
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.requests.problems import ProblemError
from rca_api.webhooks import outbox
from rca_api.webhooks.messages import body_for

Announce = Callable[[Session, IncidentRow, Transition, datetime], None]


class Announcer:
    """Writes an event and its deliveries in the transaction of the event.

    Parameters
    ----------
    public_url : str
        Begin of the links to incidents; "" for no links.
    notify_suspected : bool
        Whether webhooks get messages about incidents that are only suspected.
    """

    def __init__(self, metrics: Metrics, public_url: str = "", *, notify_suspected: bool = True) -> None:
        self._metrics = metrics
        self._notify_suspected = notify_suspected
        self._public_url = public_url

    def __call__(self, session: Session, incident: IncidentRow, event: Transition, at: datetime) -> None:
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

        @cache
        def body(form: str) -> bytes:
            return self._body(session, form, incident, event, row)

        causes = {cause for cause in (row.cause, row.previous_cause) if cause is not None}
        if row.cause is None:
            # Webhooks that got an event for one of its causes get the following ones as well.
            causes = repository.causes_of(session, incident.id)
        if incident.muted_until is not None and incident.muted_until <= at:
            # This message is the first one after the mute.
            incident.muted_until = None
        muted = incident.muted_until is not None and event.kind != "resolved"
        if not muted and (self._notify_suspected or not incident.suspected):
            outbox.enqueue(
                session,
                event=f"incident.{event.kind}",
                job_id=incident.job_id,
                causes=causes,
                incident_id=incident.id,
                body=lambda webhook: body(webhook.form),
                at=at,
            )
        counter = self._metrics.incident_events.labels(event.kind)
        # Counted after the commit: the transaction may still fail.
        sqlalchemy_event.listen(session, "after_commit", lambda _: counter.inc(), once=True)

    def _body(
        self, session: Session, form: str, incident: IncidentRow, event: Transition, row: IncidentEventRow
    ) -> bytes:
        """The message about an event; read only for a webhook that gets it."""
        nodes = repository.nodes_of(session, [incident.id])[incident.id]
        summary = summary_of(session, event.diagnosis_id)
        message = IncidentNotification(
            type=f"incident.{event.kind}",
            timestamp=row.at,
            data=NotificationData(
                incident=read_incident(incident, nodes),
                event=read_event(row),
                summary=None if summary is None else IncidentSummary.of(event.diagnosis_id or "", summary),
                url=incident_url(self._public_url, incident.id),
            ),
        )
        return body_for(form, message, summary)


def incident_url(public_url: str, incident_id: str) -> str | None:
    """Address of an incident for people; None if the service has no public address."""
    return f"{public_url.rstrip('/')}/ui#/incidents/{incident_id}" if public_url else None


def summary_of(session: Session, diagnosis_id: str | None) -> Summary | None:
    """The summary of a stored diagnosis; None if there is none."""
    row = None if diagnosis_id is None else diagnoses.find(session, diagnosis_id)
    if row is None or row.document is None:
        return None
    try:
        return Summary.from_diagnosis(read_stored(row.document))
    except ProblemError:
        # A later version wrote it.
        return None
