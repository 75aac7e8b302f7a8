"""Updating the incident of a job with a diagnosis, in the transaction that stores the diagnosis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import structlog
from sqlalchemy.orm import Session

from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.incidents import observe, repository
from rca_api.incidents.announce import Announce
from rca_api.incidents.observation import Subject
from rca_api.incidents.state_machine import (
    Hysteresis,
    NoIncident,
    OpenIncident,
    Reason,
    State,
    Transition,
    counts,
    ended_by_silence,
    replay,
)
from rca_api.incidents.tables import FollowedJobRow, IncidentRow, ObservationRow
from rca_api.shell.store.base import new_id, now
from rca_api.shell.store.waits import is_recent

_log = structlog.stdlib.get_logger("rca_api.incidents")


class IncidentTracker:
    """Keeps the incidents of all jobs; called for every finished diagnosis (`State.on_diagnosed`).

    Announced events are never changed. A window older than the last event only adds to the loss of the
    incident it lies in. Windows after that event may arrive in any order. If all windows of a job are older
    than the last event for `silence_seconds`, its clock was set back, and the order starts again.

    A window that ends further ahead than `skew_seconds` is ignored while the job has other windows. Otherwise
    it would make all of them late.

    Parameters
    ----------
    announce : callable
        Called for every event in the same transaction.
    skew_seconds : float
        How far ahead of the service's clock a window may end.
    clock : callable
        Gives the time of the service.
    """

    def __init__(
        self,
        settings: Hysteresis,
        announce: Announce,
        clock: Callable[[], datetime] = now,
        *,
        skew_seconds: float = 600.0,
    ) -> None:
        self._settings = settings
        self._silence = timedelta(seconds=settings.silence_seconds)
        self._announce = announce
        self._clock = clock
        self._skew_seconds = skew_seconds

    def __call__(self, session: Session, row: DiagnosisRow) -> None:
        """Process one diagnosis; the same window a second time is ignored."""
        at = self._clock()
        job = repository.follow(session, row.job_id, at)
        if job.since is not None and job.since > at:
            # The clock was put back since the order was restarted. Windows that are observed now count.
            job.since = at
        seen = observe.record(session, row, at, self._skew_seconds)
        if seen is None:
            return
        if seen.ahead and repository.has_recent_window(session, job.job_id, at, self._silence):
            _log.warning("a window from the future is ignored", job=job.job_id, diagnosis=row.id)
            return
        if not seen.ahead:
            self._leave_the_future(session, job, seen, at)
        late = self._is_late(job, seen)
        if late and not is_recent(job.advanced_at, at, self._silence):
            _restart_order(job, at)
            late = False
        if not late:
            incident = repository.open_incident(session, job.job_id)
            if incident is None or counts(repository.observation(seen), confirmed=not incident.suspected):
                job.advanced_at = at
            self._replay(session, job, at, ahead=seen.ahead)
        self._count(session, seen)
        if late:
            self._confirm(session, seen, at)

    def resolve_silent(self, session: Session, job_id: str) -> bool:
        """Resolve the incident of a job that is silent; gives whether it did."""
        at = self._clock()
        job = repository.follow(session, job_id, at)
        row = repository.open_incident(session, job_id)
        if row is None or is_recent(job.advanced_at, at, self._silence):
            return False
        self._apply(session, row, ended_by_silence(_open_state(row, row.ended)), at)
        _restart_order(job, at)
        return True

    def end_mute(self, session: Session, incident_id: str) -> None:
        """End the mute of an incident; if it is open, its present state is announced."""
        incident = session.get_one(IncidentRow, incident_id)
        repository.follow(session, incident.job_id, self._clock())
        session.refresh(incident)
        if incident.muted_until is None:
            return
        incident.muted_until = None
        if incident.open_job_id is None:
            return
        subject, last = _subject(incident), repository.timeline(session, incident_id)[-1]
        event = Transition(
            "mute_ended", subject, incident.ended, last.diagnosis_id, subject, suspected=incident.suspected
        )
        self._announce(session, incident, event, self._clock())

    def close(self, session: Session, incident_id: str, note: str) -> bool:
        """Resolve an open incident for a person; gives whether it was open.

        Windows so far no longer count. A fault that goes on reopens it.
        """
        incident = session.get_one(IncidentRow, incident_id)
        job = repository.follow(session, incident.job_id, self._clock())
        session.refresh(incident)
        if incident.open_job_id is None:
            return False
        incident.closing_note = note
        self._resolve(session, job, incident, "closed")
        return True

    def end(self, session: Session, job_id: str, note: str | None = None) -> bool:
        """Resolve the suspected incident of a job that has ended; gives whether there was one.

        A confirmed one stays open: a fault that is certain may be why the job ended.
        """
        job = repository.follow(session, job_id, self._clock())
        incident = repository.open_incident(session, job_id)
        if incident is None or not incident.suspected:
            return False
        incident.closing_note = note
        self._resolve(session, job, incident, "ended")
        return True

    def _resolve(self, session: Session, job: FollowedJobRow, incident: IncidentRow, reason: Reason) -> None:
        """Resolve an incident without a window; windows so far no longer count."""
        subject = _open_state(incident, incident.ended).subject
        newest = repository.newest_order(session, incident.job_id)
        if newest is not None:
            job.decided_end, job.decided_start = newest
        event = Transition("resolved", subject, incident.ended, None, reason=reason)
        self._apply(session, incident, event, self._clock())

    def withdraw(self, session: Session, incident_id: str) -> None:
        """Recount an incident after the deletion of one of its windows; resolve it if none is left.

        The lock of the job must be held (`repository.follow`).
        """
        incident = session.get_one(IncidentRow, incident_id)
        incident.windows -= 1
        repository.recount(session, incident)
        if incident.windows or incident.open_job_id is None:
            return
        at = self._clock()
        subject = _open_state(incident, incident.ended).subject
        self._apply(
            session, incident, Transition("resolved", subject, incident.ended, None, reason="deleted"), at
        )
        # The same window may be posted again.
        _restart_order(session.get_one(FollowedJobRow, incident.job_id), at)

    def _leave_the_future(
        self, session: Session, job: FollowedJobRow, seen: ObservationRow, at: datetime
    ) -> None:
        """Restart the order of the job if its last event lies in the future and this window does not."""
        if job.decided_end is None or job.decided_end <= at.timestamp() + self._skew_seconds:
            return
        _restart_order(job, at)
        incident = repository.open_incident(session, job.job_id)
        if incident is not None:
            incident.ended = seen.window_end

    def _count(self, session: Session, seen: ObservationRow) -> None:
        """Add a window without an event to its incident, if there is one."""
        around = repository.around(session, seen)
        if around is not None:
            repository.attach(session, around, seen)
            return
        following = repository.after(session, seen)
        if seen.verdict not in ("sick", "suspect") or following is None:
            return
        # A faulty window shortly before an incident is its beginning, unless the job recovered in between.
        between = repository.unclaimed(session, seen, following.ended)
        healthy = sum(row.verdict == "healthy" for row in between)
        gap = following.began - seen.window_end
        if gap <= self._settings.silence_seconds and healthy < self._settings.healthy_windows:
            for row in between:
                repository.attach(session, following, row)

    def _confirm(self, session: Session, seen: ObservationRow, at: datetime) -> None:
        """Confirm the suspected incident of a late window that is certain of a cause."""
        if seen.verdict != "sick" or seen.incident_id is None:
            return
        incident = session.get_one(IncidentRow, seen.incident_id)
        if incident.open_job_id is None or not incident.suspected:
            return
        found, previous = _subject(seen), _subject(incident)
        event = Transition("confirmed", found, seen.window_end, seen.diagnosis_id, previous)
        self._apply(session, incident, event, at)

    @staticmethod
    def _is_late(job: FollowedJobRow, seen: ObservationRow) -> bool:
        if job.decided_end is None or job.decided_start is None:
            return False
        return _order(seen) <= (job.decided_end, job.decided_start)

    def _replay(self, session: Session, job: FollowedJobRow, at: datetime, *, ahead: bool) -> None:
        rows = repository.pending(session, job, at, ahead=ahead)
        by_order = {_order(row): row for row in rows}
        incident = repository.open_incident(session, job.job_id)
        if incident is not None:
            state: State = _open_state(incident, _last_end(job, rows))
        else:
            incident = repository.last_resolved(session, job.job_id)
            state = NoIncident(_open_state(incident, incident.ended) if incident is not None else None)
        for seen, after, events in replay(state, map(repository.observation, rows), self._settings):
            row = by_order[seen.order]
            for event in events:
                incident = self._write_event(session, job, incident, rows, row, event, at)
            if isinstance(after, OpenIncident) and incident is not None:
                repository.attach(session, incident, row)

    def _write_event(
        self,
        session: Session,
        job: FollowedJobRow,
        incident: IncidentRow | None,
        rows: list[ObservationRow],
        row: ObservationRow,
        event: Transition,
        at: datetime,
    ) -> IncidentRow:
        """Write one event; gives its incident."""
        job.decided_end, job.decided_start = _order(row)
        if event.reason == "silence":
            # The window that ended the silence counts for the events after it.
            job.decided_end = job.decided_start = event.window_end
        if event.kind in ("opened", "suspected"):
            incident = _opened(session, job.job_id, row, event, at)
        if incident is None:
            raise RuntimeError(f"{event.kind} without an incident")
        if event.first is not None:
            for each in rows:
                # The windows that led to the opening are part of the incident.
                if event.first <= _order(each) <= _order(row):
                    repository.attach(session, incident, each)
        if event.kind == "reopened" and event.diagnosis_id is None:
            event = replace(event, diagnosis_id=repository.diagnosis_of(session, incident))
        if event.reason != "silence":
            repository.attach(session, incident, row)
        self._apply(session, incident, event, at)
        return incident

    def _apply(self, session: Session, incident: IncidentRow, event: Transition, at: datetime) -> None:
        _name(incident, event.subject)
        if event.kind == "resolved":
            incident.open_job_id, incident.resolved_at, incident.resolution = None, at, event.reason
        else:
            incident.uncertain = event.kind == "cause_uncertain"
            incident.suspected = event.suspected
        if event.kind == "reopened":
            incident.open_job_id, incident.resolved_at, incident.resolution = incident.job_id, None, None
            incident.reopened += 1
            # What people said is about the time before.
            incident.closing_note = incident.acknowledged_at = incident.acknowledged_by = None
            incident.muted_until = None
        if event.kind in ("cause_changed", "place_changed", "cause_uncertain"):
            incident.changes += 1
        # The job may open its next incident in this transaction.
        session.flush()
        self._announce(session, incident, event, at)


def _open_state(incident: IncidentRow, last_end: float) -> OpenIncident:
    """State at the last event; later windows are replayed."""
    return OpenIncident(
        _subject(incident),
        last_end,
        incident.uncertain,
        incident.reopened,
        incident.changes,
        suspected=incident.suspected,
    )


def _last_end(job: FollowedJobRow, rows: list[ObservationRow]) -> float:
    whole = job.decided_end is not None and len(rows) < repository.HORIZON
    # If older windows are left out, the gap before the first one is not known.
    return job.decided_end if whole and job.decided_end is not None else rows[0].window_start


def _subject(row: IncidentRow | ObservationRow) -> Subject:
    return Subject(row.failure_mode, row.cause, tuple(row.place or ()))


def _order(row: ObservationRow) -> tuple[float, float]:
    return row.window_end, row.window_start


def _name(incident: IncidentRow, subject: Subject) -> None:
    incident.failure_mode, incident.cause = subject.failure_mode, subject.cause
    incident.place = list(subject.place) or None


def _restart_order(job: FollowedJobRow, at: datetime) -> None:
    job.decided_end = job.decided_start = None
    job.since = at


def _opened(
    session: Session, job_id: str, row: ObservationRow, event: Transition, at: datetime
) -> IncidentRow:
    incident = IncidentRow(
        id=new_id(),
        job_id=job_id,
        open_job_id=job_id,
        opened_at=at,
        began=row.window_start,
        ended=row.window_end,
    )
    _name(incident, event.subject)
    session.add(incident)
    session.flush()
    return incident
