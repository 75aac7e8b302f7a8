"""Recording an action with the prediction of its diagnosis, once however often the request is repeated."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import orjson
from sqlalchemy import Select, select
from sqlalchemy.orm import Session, undefer

from rca.act.budget import Begun, leaving
from rca_api.actions.observation import judge_actions
from rca_api.actions.schemas import NewAction
from rca_api.actions.tables import TakenActionRow
from rca_api.diagnoses.repository import DONE
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.incidents import repository as incidents
from rca_api.incidents.tables import IncidentRow, ObservationRow
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.security.principal import Principal
from rca_api.shell.store.exclusion import Exclusion, exclude_others

#: Newest windows of an incident that are searched for a prediction.
_SEARCHED = 10


def record(
    session: Session, incident_id: str, given: NewAction, caller: Principal, at: datetime
) -> tuple[TakenActionRow, bool]:
    """Store an action, or find the one of the same request.

    Returns
    -------
    row : TakenActionRow
    new : bool

    Raises
    ------
    ProblemError
        ``not-found`` for an unknown incident or diagnosis. ``invalid-parameters`` for an action that cannot
        have been taken. ``conflict`` for a diagnosis without an answer or
        of another job, and for a key that was used for another action. ``budget-spent`` if the actions of
        this key have spent the given budget; those of agents that have ended count as well.
    """
    if given.budget is not None:
        # Each reservation sees those before it, on whatever jobs.
        exclude_others(session.connection(), Exclusion.budgets)
    incident = session.get(IncidentRow, incident_id)
    if incident is None:
        raise unknown(incident_id)
    taken_at = given.taken_at or at
    # Locked in the order of all others: the diagnosis, then the job.
    diagnosis, predicted = _prediction(session, incident, given, taken_at)
    incidents.follow(session, incident.job_id, at)
    content = _content(given)
    key = given.key or content
    known = session.scalars(
        select(TakenActionRow).where(TakenActionRow.incident_id == incident_id, TakenActionRow.key == key)
    ).one_or_none()
    if known is not None:
        if known.content != content:
            raise ProblemError("conflict", f"the key {key!r} was used for another action of this incident")
        return known, False
    _refuse_implausible(session, incident, given, at)
    _refuse_beyond_budget(session, incident.job_id, given, at)
    low, high = predicted.get("interval") or (None, None)
    row = TakenActionRow(
        incident_id=incident_id,
        key=key,
        content=content,
        action=given.action,
        taken_at=taken_at,
        nodes=given.nodes or predicted.get("nodes", []),
        ranks=given.ranks or predicted.get("ranks", []),
        note=given.note,
        recorded_at=at,
        recorded_by=caller.id,
        recorded_by_name=caller.name,
        diagnosis_id=None if diagnosis is None else diagnosis.id,
        predicted=predicted.get("expected_seconds_per_step_saved"),
        predicted_low=low,
        predicted_high=high,
        one_off_seconds=predicted.get("cost_seconds"),
        correction=predicted.get("correction") or 1.0,
    )
    session.add(row)
    session.flush()
    # Recorded late, it has windows after it already; and it limits those of the action before.
    judge_actions(session, incident.job_id)
    return row, True


def taken(incident_id: str) -> Select[TakenActionRow]:
    """Select the actions of an incident."""
    return select(TakenActionRow).where(TakenActionRow.incident_id == incident_id)


def recorded(since: datetime | None, job: str | None, key: str | None) -> Select[TakenActionRow]:
    """Select the actions of all incidents that were recorded since a time, of one job or with one key."""
    wanted = select(TakenActionRow)
    if since is not None:
        wanted = wanted.where(TakenActionRow.recorded_at >= since)
    if job is not None:
        wanted = wanted.join(IncidentRow).where(IncidentRow.job_id == job)
    return wanted if key is None else wanted.where(TakenActionRow.key == key)


def _refuse_beyond_budget(session: Session, job: str, given: NewAction, at: datetime) -> None:
    """Refuse an action that its budget has no place for."""
    if given.budget is None:
        return
    since = at - timedelta(seconds=given.budget.counted_seconds)
    columns = TakenActionRow.recorded_at, TakenActionRow.action, TakenActionRow.nodes, IncidentRow.job_id
    counted = (
        select(*columns)
        .join(IncidentRow, IncidentRow.id == TakenActionRow.incident_id)
        .where(
            TakenActionRow.key == given.key,
            TakenActionRow.recorded_at > since,
            IncidentRow.job_id.in_([*given.budget.jobs, job]),
        )
    )
    begun = [
        Begun(recorded_at.timestamp(), leaving(action, nodes), of == job)
        for recorded_at, action, nodes, of in session.execute(counted)
    ]
    reason = given.budget.spent(leaving(given.action, given.nodes), begun, at.timestamp())
    if reason is not None:
        raise ProblemError("budget-spent", reason)


def unknown(incident_id: str) -> ProblemError:
    """The problem that an incident does not exist."""
    return ProblemError("not-found", f"there is no incident {incident_id}")


def _prediction(
    session: Session, incident: IncidentRow, given: NewAction, taken_at: datetime
) -> tuple[DiagnosisRow | None, dict[str, Any]]:
    """The diagnosis of an action, locked against deletion, and what it says of the action."""
    if given.diagnosis_id is not None:
        row = _locked(session, given.diagnosis_id)
        if row is None:
            raise ProblemError("not-found", f"there is no diagnosis {given.diagnosis_id}")
        if row.job_id != incident.job_id:
            raise ProblemError("conflict", "the diagnosis is of another job than the incident")
        if row.state != DONE or row.document is None:
            raise ProblemError("conflict", f"the diagnosis is {row.state}; a prediction needs a finished one")
        return row, _option(row.document, given) or {}
    newest = (
        select(ObservationRow.diagnosis_id)
        .where(
            ObservationRow.incident_id == incident.id,
            ObservationRow.verdict == "sick",
            ObservationRow.window_end <= taken_at.timestamp(),
        )
        .order_by(ObservationRow.window_end.desc(), ObservationRow.window_start.desc())
        .limit(_SEARCHED)
    )
    for found in session.scalars(newest).all():
        seen = session.get(DiagnosisRow, found, options=[undefer(DiagnosisRow.document)])
        option = None if seen is None or seen.document is None else _option(seen.document, given)
        if option is not None and (row := _locked(session, found)) is not None:
            return row, option
    return None, {}


def _locked(session: Session, diagnosis_id: str) -> DiagnosisRow | None:
    return session.get(
        DiagnosisRow,
        diagnosis_id,
        options=[undefer(DiagnosisRow.document)],
        with_for_update={"read": True, "key_share": True},
        populate_existing=True,
    )


def _option(document: bytes, given: NewAction) -> dict[str, Any] | None:
    """The action of a diagnosis that shares most places with the given one; None if it has no such action."""
    actions = orjson.loads(document)["actions"]
    found = [each for each in actions if each["action"] == given.action]
    if not found:
        return None
    best: dict[str, Any] = max(found, key=lambda each: _shared(each, given))
    return best


def _shared(action: dict[str, Any], given: NewAction) -> int:
    return _common(action.get("nodes", ()), given.nodes) + _common(action.get("ranks", ()), given.ranks)


def _common(first: Iterable[Any], second: Iterable[Any]) -> int:
    return len(set(first) & set(second))


def _content(given: NewAction) -> str:
    """Digest of what a request says, its key and its budget left out."""
    said = given.model_dump(mode="json", exclude={"key", "budget"})
    return sha256(orjson.dumps(said, option=orjson.OPT_SORT_KEYS)).hexdigest()


#: Between the clock of the job, or of the person, and that of the service.
_AHEAD = timedelta(minutes=5)
#: An action before the first window of the incident may be what caused it.
_BEFORE = timedelta(days=1)
#: Windows whose job is read. A job may get or lose nodes during an incident.
_MAX_WINDOWS = 200


def _refuse_implausible(session: Session, incident: IncidentRow, given: NewAction, at: datetime) -> None:
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
