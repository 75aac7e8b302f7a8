"""Actions that cannot have been taken: on ranks or nodes that the job does not have, or at another time."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from rca_api.actions.schemas import NewAction
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.incidents.tables import IncidentRow, ObservationRow
from rca_api.shell.requests.problems import ProblemError

#: Between the clock of the job, or of the person, and that of the service.
_AHEAD = timedelta(minutes=5)
#: An action before the first window of the incident may be what caused it.
_BEFORE = timedelta(days=1)
#: Windows whose job is read. A job may get or lose nodes during an incident.
_MAX_WINDOWS = 200


def check(session: Session, incident: IncidentRow, given: NewAction, at: datetime) -> None:
    """Refuse an action that cannot have been taken.

    Parameters
    ----------
    at : datetime
        Now.

    Raises
    ------
    ProblemError
        422 with the place of the error.
    """
    if given.taken_at is not None:
        _check_time(incident, given.taken_at, at)
    if given.ranks or given.nodes:
        _check_places(session, incident, given)


def _check_time(incident: IncidentRow, taken_at: datetime, at: datetime) -> None:
    if taken_at > at + _AHEAD:
        raise _refused(
            "taken_at", "lies in the future", "a time until now", "use UTC, or leave it out for now"
        )
    earliest = datetime.fromtimestamp(incident.began, at.tzinfo) - _BEFORE
    if taken_at < earliest:
        raise _refused(
            "taken_at",
            "is more than a day before the first window of the incident",
            f"a time from {earliest:%Y-%m-%dT%H:%M:%SZ}",
            "record it on the incident that it was taken for",
        )


def _check_places(session: Session, incident: IncidentRow, given: NewAction) -> None:
    """Look for each rank and node in the windows of the job since the incident began."""
    ranks, nodes, largest = set(given.ranks), set(given.nodes), 0
    windows = (
        select(DiagnosisRow.world_size, DiagnosisRow.nodes)
        .join(ObservationRow, ObservationRow.diagnosis_id == DiagnosisRow.id)
        .where(ObservationRow.job_id == incident.job_id, ObservationRow.window_end > incident.began)
        .order_by(ObservationRow.window_end)
    )
    found = False
    for world_size, names in session.execute(windows.limit(_MAX_WINDOWS)):
        found = True
        # What a window does not say excludes nothing.
        ranks = set() if world_size is None else {rank for rank in ranks if rank >= world_size}
        nodes = nodes - set(names) if names else set()
        largest = max(largest, world_size or 0)
        if not ranks and not nodes:
            return
    if not found:
        return
    hint = "leave it out for the places of the diagnosis; name others in the note"
    if ranks:
        why = f"rank {min(ranks)} is not one of the job's {largest} ranks"
        raise _refused("ranks", why, f"ranks from 0 to {largest - 1}", hint)
    raise _refused("nodes", f"{min(nodes)!r} is not one of the job's nodes", None, hint)


def _refused(field: str, why: str, expected: str | None, hint: str) -> ProblemError:
    return ProblemError("invalid-parameters", f"body.{field}: {why}", expected=expected, hint=hint)
