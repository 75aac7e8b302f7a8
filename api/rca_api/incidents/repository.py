"""Incidents and observations in the database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple, get_args

from sqlalchemy import Select, func, not_, or_, select, tuple_
from sqlalchemy.orm import Session

from rca_api.diagnoses.tables import BlameRow
from rca_api.incidents.observation import Observation, Subject, Verdict
from rca_api.incidents.tables import FollowedJobRow, IncidentEventRow, IncidentRow, ObservationRow
from rca_api.shell.store.deletion import insert_if_absent
from rca_api.shell.store.waits import is_recent


class Loss(NamedTuple):
    """One window and its loss, seconds and GPU hours."""

    start: float
    end: float
    seconds: float
    gpu_hours: float


class IncidentTotal(NamedTuple):
    """Sum over windows."""

    seconds: float
    gpu_hours: float


def total(losses: Iterable[Loss]) -> IncidentTotal:
    """Add up losses; a window that overlaps earlier ones counts with the share of its time not covered.

    The order of the windows does not matter.
    """
    seconds = hours = 0.0
    covered = float("-inf")
    for each in sorted(losses):
        length = each.end - each.start
        share = (each.end - max(each.start, covered)) / length if length > 0 else 1.0
        share = min(max(share, 0.0), 1.0)
        seconds += share * each.seconds
        hours += share * each.gpu_hours
        covered = max(covered, each.end)
    return IncidentTotal(seconds, hours)


#: Least probability of health in a window that abstains and is probably healthy: likelier than a fault.
MIN_PROBABLY_HEALTHY = 0.8
#: Most windows since the last event that are replayed; streaks that matter are far shorter.
HORIZON = 64


def follow(session: Session, job_id: str, at: datetime) -> FollowedJobRow:
    """Get the row of the job, and lock it until the transaction ends."""
    statement = select(FollowedJobRow).where(FollowedJobRow.job_id == job_id)
    locked = statement.with_for_update().execution_options(populate_existing=True)
    while True:
        insert_if_absent(session, FollowedJobRow, job_id=job_id, advanced_at=at)
        row = session.scalars(locked).one_or_none()
        # Retention may delete an old row in between.
        if row is not None:
            return row


def open_incident(session: Session, job_id: str) -> IncidentRow | None:
    """Get the job's open incident, if it has one."""
    return session.scalars(select(IncidentRow).where(IncidentRow.open_job_id == job_id)).one_or_none()


def last_resolved(session: Session, job_id: str) -> IncidentRow | None:
    """Get the last resolved incident of a job, if healthy windows or a person resolved it."""
    resolved = select(IncidentRow).where(IncidentRow.job_id == job_id, IncidentRow.open_job_id.is_(None))
    newest = resolved.order_by(IncidentRow.resolved_at.desc(), IncidentRow.ended.desc()).limit(1)
    row = session.scalars(newest).one_or_none()
    return row if row is not None and row.resolution in ("healthy", "closed") else None


def newest_order(session: Session, job_id: str) -> tuple[float, float] | None:
    """End and start of the newest window of a job."""
    ordered = (ObservationRow.window_end.desc(), ObservationRow.window_start.desc())
    statement = select(ObservationRow.window_end, ObservationRow.window_start)
    found = session.execute(
        statement.where(ObservationRow.job_id == job_id).order_by(*ordered).limit(1)
    ).first()
    return None if found is None else (found[0], found[1])


def has_recent_window(session: Session, job_id: str, at: datetime, length: timedelta) -> bool:
    """Whether a window of a job was observed at most `length` ago; windows from the future do not count."""
    observed = is_recent(ObservationRow.observed_at, at, length)
    one = select(ObservationRow.job_id).where(
        ObservationRow.job_id == job_id, ~ObservationRow.ahead, observed
    )
    return session.scalar(one.limit(1)) is not None


def pending(session: Session, job: FollowedJobRow, at: datetime, *, ahead: bool) -> list[ObservationRow]:
    """Windows after the last event, oldest first; at most the newest `HORIZON`.

    Parameters
    ----------
    ahead : bool
        Whether to include windows from the future.
    """
    statement = select(ObservationRow).where(ObservationRow.job_id == job.job_id)
    if not ahead:
        statement = statement.where(~ObservationRow.ahead)
    if job.decided_end is not None:
        order = tuple_(ObservationRow.window_end, ObservationRow.window_start)
        statement = statement.where(order > tuple_(job.decided_end, job.decided_start))
    if job.since is not None:
        statement = statement.where(is_recent(ObservationRow.observed_at, at, at - job.since))
    newest = statement.order_by(ObservationRow.window_end.desc(), ObservationRow.window_start.desc())
    return list(session.scalars(newest.limit(HORIZON)))[::-1]


def observation(row: ObservationRow) -> Observation:
    """Read a row for the state machine."""
    verdict: Verdict = row.verdict if row.verdict in get_args(Verdict) else "unsure"  # type: ignore[assignment]
    faulty = verdict in ("sick", "suspect")
    subject = Subject(row.failure_mode, row.cause, tuple(row.place or ())) if faulty else None
    bounds = row.window_start, row.window_end
    chance = row.probability or 0.0
    leans = verdict == "unsure" and row.failure_mode == "healthy" and chance >= MIN_PROBABLY_HEALTHY
    return Observation(
        row.diagnosis_id,
        *bounds,
        verdict,
        subject,
        chance,
        untimed=row.untimed,
        over=row.over,
        probably_healthy=leans,
    )


def around(session: Session, row: ObservationRow) -> IncidentRow | None:
    """Find the incident that covers the time of a late window."""
    statement = select(IncidentRow).where(
        IncidentRow.job_id == row.job_id,
        IncidentRow.began <= row.window_start,
        IncidentRow.ended >= row.window_end,
    )
    return session.scalars(statement.order_by(IncidentRow.began.desc()).limit(1)).one_or_none()


def after(session: Session, row: ObservationRow) -> IncidentRow | None:
    """Find the job's first incident that begins after a window."""
    statement = select(IncidentRow).where(
        IncidentRow.job_id == row.job_id, IncidentRow.began > row.window_start
    )
    return session.scalars(statement.order_by(IncidentRow.began).limit(1)).one_or_none()


def unclaimed(session: Session, row: ObservationRow, until: float) -> list[ObservationRow]:
    """Windows from a window to `until` that belong to no incident, oldest first."""
    statement = select(ObservationRow).where(
        ObservationRow.job_id == row.job_id,
        ObservationRow.window_start >= row.window_start,
        ObservationRow.window_end <= until,
        ObservationRow.incident_id.is_(None),
    )
    return list(session.scalars(statement.order_by(ObservationRow.window_end, ObservationRow.window_start)))


def attach(session: Session, incident: IncidentRow, row: ObservationRow) -> None:
    """Add a window to an incident, unless it belongs to one."""
    if row.incident_id is not None:
        return
    row.incident_id = incident.id
    session.flush()
    incident.windows += 1
    incident.began = min(incident.began, row.window_start)
    incident.ended = max(incident.ended, row.window_end)
    if row.onset is not None:
        incident.onset = row.onset if incident.onset is None else min(incident.onset, row.onset)
    if _overlaps(session, row):
        recount(session, incident)
    else:
        incident.seconds_lost += row.seconds_lost
        incident.gpu_hours_lost += row.gpu_hours_lost


def diagnosis_of(session: Session, incident: IncidentRow) -> str | None:
    """The newest diagnosis that is certain of the cause of an incident."""
    certain = observed(incident.id).where(
        ObservationRow.verdict == "sick", ObservationRow.cause == incident.cause
    )
    newest = certain.order_by(ObservationRow.window_end.desc(), ObservationRow.window_start.desc()).limit(1)
    row = session.scalars(newest).one_or_none()
    return None if row is None else row.diagnosis_id


def incident_of(session: Session, diagnosis_id: str) -> str | None:
    """The incident to which the window of a diagnosis belongs."""
    found = select(ObservationRow.incident_id).where(
        ObservationRow.diagnosis_id == diagnosis_id, ObservationRow.incident_id.is_not(None)
    )
    return session.scalars(found.limit(1)).one_or_none()


def recount(session: Session, incident: IncidentRow) -> None:
    """Recompute the cost and the onset of an incident; without faulty windows it keeps its onset."""
    incident.seconds_lost, incident.gpu_hours_lost = total(_losses(session, incident.id))
    earliest = select(func.min(ObservationRow.onset)).where(ObservationRow.incident_id == incident.id)
    incident.onset = session.scalar(earliest) or incident.onset


def _overlaps(session: Session, row: ObservationRow) -> bool:
    others = select(func.count()).where(
        ObservationRow.incident_id == row.incident_id,
        ObservationRow.window_start < row.window_end,
        ObservationRow.window_end > row.window_start,
    )
    return session.scalar(others) != 1


def _losses(session: Session, incident_id: str) -> Iterator[Loss]:
    columns = select(
        ObservationRow.window_start,
        ObservationRow.window_end,
        ObservationRow.seconds_lost,
        ObservationRow.gpu_hours_lost,
    )
    for row in session.execute(columns.where(ObservationRow.incident_id == incident_id)):
        yield Loss(*row)


def silent(at: datetime, length: timedelta) -> Select[str]:
    """Select jobs with an open incident and no newer window for `length`."""
    return (
        select(FollowedJobRow.job_id)
        .join(IncidentRow, IncidentRow.open_job_id == FollowedJobRow.job_id)
        .where(not_(is_recent(FollowedJobRow.advanced_at, at, length)))
    )


def mute_over(at: datetime) -> Select[str]:
    """Select open incidents whose mute is over."""
    return select(IncidentRow.id).where(IncidentRow.open_job_id.is_not(None), IncidentRow.muted_until <= at)


def found(
    *,
    state: str | None = None,
    job_id: str | None = None,
    cause: str | None = None,
    node: str | None = None,
    since: datetime | None = None,
) -> Select[IncidentRow]:
    """Select incidents that had a `cause` at some time, or blamed a `node` in some window.

    `since` selects those that were open at that moment or opened later.
    """
    statement = select(IncidentRow)
    if state is not None:
        is_open = IncidentRow.open_job_id.is_not(None)
        statement = statement.where(is_open if state == "open" else ~is_open)
    if job_id is not None:
        statement = statement.where(IncidentRow.job_id == job_id)
    if cause is not None:
        had = select(IncidentEventRow.incident_id).where(IncidentEventRow.cause == cause)
        statement = statement.where(IncidentRow.id.in_(had))
    if node is not None:
        blamed = (
            select(ObservationRow.incident_id)
            .join(BlameRow, BlameRow.diagnosis_id == ObservationRow.diagnosis_id)
            .where(BlameRow.node == node, ObservationRow.verdict == "sick")
        )
        statement = statement.where(IncidentRow.id.in_(blamed))
    if since is not None:
        statement = statement.where(or_(IncidentRow.resolved_at.is_(None), IncidentRow.resolved_at >= since))
    return statement


def timeline(session: Session, incident_id: str) -> list[IncidentEventRow]:
    """Events of an incident, in the order in which they were announced."""
    statement = select(IncidentEventRow).where(IncidentEventRow.incident_id == incident_id)
    return list(session.scalars(statement.order_by(IncidentEventRow.id)))


def causes_of(session: Session, incident_id: str) -> set[str]:
    """Causes that an incident had at some time."""
    statement = select(IncidentEventRow.cause).where(
        IncidentEventRow.incident_id == incident_id, IncidentEventRow.cause.is_not(None)
    )
    return {cause for cause in session.scalars(statement) if cause is not None}


def observed(incident_id: str) -> Select[ObservationRow]:
    """Select the windows of an incident."""
    return select(ObservationRow).where(ObservationRow.incident_id == incident_id)


def nodes_of(session: Session, incident_ids: Iterable[str]) -> dict[str, list[tuple[str, float]]]:
    """Nodes blamed by confident diagnoses of each incident with their highest probability, in that order."""
    highest = func.max(BlameRow.probability)
    found: dict[str, list[tuple[str, float]]] = {incident_id: [] for incident_id in incident_ids}
    statement = (
        select(ObservationRow.incident_id, BlameRow.node, highest)
        .join(BlameRow, BlameRow.diagnosis_id == ObservationRow.diagnosis_id)
        .where(
            ObservationRow.incident_id.in_(found),
            ObservationRow.verdict == "sick",
            BlameRow.node.is_not(None),
        )
        .group_by(ObservationRow.incident_id, BlameRow.node)
        .order_by(highest.desc(), BlameRow.node)
    )
    for incident_id, node, probability in session.execute(statement):
        if incident_id is not None and node is not None:
            found[incident_id].append((node, probability))
    return found
