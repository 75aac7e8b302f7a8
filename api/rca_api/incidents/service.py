"""From a stored diagnosis to what it means for its job's incident, in the same transaction."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import orjson
from sqlalchemy.orm import Session

from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.incidents import repository
from rca_api.incidents.announcing import Announce
from rca_api.incidents.life import Event, Hysteresis, Life, Subject, ended_in_silence, replay
from rca_api.incidents.tables import FollowedJobRow, IncidentRow, ObservationRow
from rca_api.store.base import new_id, now
from rca_api.store.upsert import insert_if_absent


class Follower:
    """Told of every finished diagnosis (`State.on_diagnosed`); keeps the incidents of all jobs.

    What was announced stays announced: a window older than the last event is counted to the incident it
    lies in and changes nothing else. Windows since that event may arrive in any order. A job all of whose
    windows seem old for `silence_seconds` has a clock that moved, and is followed afresh.

    Parameters
    ----------
    settings : Hysteresis
    announce : callable
        Told of every event in the same transaction.
    clock : callable
        The service's time.
    """

    def __init__(self, settings: Hysteresis, announce: Announce, clock: Callable[[], datetime] = now) -> None:
        self._settings = settings
        self._announce = announce
        self._clock = clock

    def __call__(self, session: Session, row: DiagnosisRow) -> None:
        """Take in one diagnosis; the same window a second time is left aside."""
        at = self._clock()
        job = repository.follow(session, row.job_id, at)
        seen = _observed(session, row, at)
        if seen is None:
            return
        late = self._is_late(job, seen)
        if late and at - job.advanced_at > timedelta(seconds=self._settings.silence_seconds):
            _forget_order(job, at)
            late = False
        if not late:
            job.advanced_at = at
            self._replay(session, job, at)
        self._count(session, seen)

    def silenced(self, session: Session, job_id: str, heard_before: datetime) -> bool:
        """Resolve the job's incident if nothing new was heard of it since; tells whether it was."""
        at = self._clock()
        job = repository.follow(session, job_id, at)
        row = repository.open_incident(session, job_id)
        if row is None or job.advanced_at >= heard_before:
            return False
        life = Life(Subject(row.failure_mode, row.cause), row.ended)
        self._apply(session, row, ended_in_silence(life), at)
        _forget_order(job, at)
        return True

    def _count(self, session: Session, seen: ObservationRow) -> None:
        """Count a window that decided nothing to the incident it belongs to, if there is one."""
        around = repository.around(session, seen)
        if around is not None:
            repository.attach(session, around, seen)
            return
        following = repository.after(session, seen)
        if seen.verdict != "sick" or following is None:
            return
        # A sick window shortly before an incident is its true beginning, unless the job recovered between.
        between = repository.unclaimed(session, seen, following.ended)
        healthy = sum(row.verdict == "healthy" for row in between)
        gap = following.began - seen.window_end
        if gap <= self._settings.silence_seconds and healthy < self._settings.healthy_windows:
            for row in between:
                repository.attach(session, following, row)

    @staticmethod
    def _is_late(job: FollowedJobRow, seen: ObservationRow) -> bool:
        if job.decided_end is None or job.decided_start is None:
            return False
        return (seen.window_end, seen.window_start) <= (job.decided_end, job.decided_start)

    def _replay(self, session: Session, job: FollowedJobRow, at: datetime) -> None:
        rows = repository.pending(session, job)
        by_order = {(row.window_end, row.window_start): row for row in rows}
        incident = repository.open_incident(session, job.job_id)
        life = _life(incident, job, rows)
        for seen, after, events in replay(life, map(repository.observation, rows), self._settings):
            row = by_order[seen.order]
            for event in events:
                incident = self._happened(session, job, incident, row, event, at)
            if after is not None and incident is not None:
                repository.attach(session, incident, row)

    def _happened(
        self,
        session: Session,
        job: FollowedJobRow,
        incident: IncidentRow | None,
        row: ObservationRow,
        event: Event,
        at: datetime,
    ) -> IncidentRow | None:
        """Write one event; gives the incident that is open after it."""
        job.decided_end, job.decided_start = row.window_end, row.window_start
        if event.kind == "opened":
            incident = _opened(session, job.job_id, row, event, at)
        if incident is None:
            raise RuntimeError(f"{event.kind} without an open incident")
        if event.reason != "silence":
            repository.attach(session, incident, row)
        self._apply(session, incident, event, at)
        return None if event.kind == "resolved" else incident

    def _apply(self, session: Session, incident: IncidentRow, event: Event, at: datetime) -> None:
        incident.failure_mode, incident.cause = event.subject.failure_mode, event.subject.cause
        if event.kind == "resolved":
            incident.open_job_id = None
            incident.resolved_at = at
            incident.resolution = event.reason
        # The job may open its next incident in this very transaction.
        session.flush()
        self._announce(session, incident, event, at)


def _observed(session: Session, row: DiagnosisRow, at: datetime) -> ObservationRow | None:
    """Note what a diagnosis said about its window; None if the window was noted before."""
    if row.document is None:
        return None
    told = orjson.loads(row.document)
    healthy = told["failure_mode"] == "healthy"
    verdict = "unsure" if told["abstained"] else "healthy" if healthy else "sick"
    slow, steps = told["slowdown"], told["quality"]["steps_used"]
    key = (row.job_id, row.window_end, row.window_start)
    is_new = insert_if_absent(
        session,
        ObservationRow,
        job_id=row.job_id,
        window_end=row.window_end,
        window_start=row.window_start,
        diagnosis_id=row.id,
        observed_at=at,
        verdict=verdict,
        failure_mode=told["failure_mode"],
        cause=told["causes"][0]["cause"] if told["causes"] else None,
        # A number that is not known is null in the document.
        seconds_lost=0.0 if healthy else max(0.0, slow["seconds_per_step"] or 0.0) * steps,
        gpu_hours_lost=0.0 if healthy else max(0.0, slow["gpu_hours_lost"] or 0.0),
    )
    return session.get_one(ObservationRow, key) if is_new else None


def _life(incident: IncidentRow | None, job: FollowedJobRow, rows: list[ObservationRow]) -> Life | None:
    """State as of the last event; what came after it is replayed."""
    if incident is None:
        return None
    whole = job.decided_end is not None and len(rows) < repository.HORIZON
    # Where the windows before are not looked at, there is no gap to be judged either.
    last_end = job.decided_end if whole and job.decided_end is not None else rows[0].window_start
    return Life(Subject(incident.failure_mode, incident.cause), last_end)


def _forget_order(job: FollowedJobRow, at: datetime) -> None:
    job.decided_end = job.decided_start = None
    job.since = at


def _opened(session: Session, job_id: str, row: ObservationRow, event: Event, at: datetime) -> IncidentRow:
    incident = IncidentRow(
        id=new_id(),
        job_id=job_id,
        open_job_id=job_id,
        failure_mode=event.subject.failure_mode,
        cause=event.subject.cause,
        opened_at=at,
        began=row.window_start,
        ended=row.window_end,
        windows=0,
        seconds_lost=0.0,
        gpu_hours_lost=0.0,
    )
    session.add(incident)
    session.flush()
    return incident
