"""`/v1/incidents` and `/v1/jobs/{job_id}/incidents`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response, Security
from sqlalchemy.orm import Session

from rca_api.actions import repository as taken_actions
from rca_api.actions.schemas import read_action
from rca_api.actions.tables import TakenActionRow
from rca_api.incidents import repository
from rca_api.incidents.announce import incident_url, summary_of
from rca_api.incidents.latency import delays
from rca_api.incidents.markdown import page as as_markdown
from rca_api.incidents.schemas import (
    Incident,
    IncidentChange,
    IncidentDetail,
    IncidentEvent,
    IncidentPage,
    IncidentSummary,
    IncidentWindow,
    Lemon,
    Stage,
    StageName,
    read_event,
    read_incident,
    read_window,
)
from rca_api.incidents.schemas import (
    State as IncidentState,
)
from rca_api.incidents.series import exposition
from rca_api.incidents.tables import IncidentRow, ObservationRow
from rca_api.nodes.service import known_lemons
from rca_api.shell.observability.metrics import EXPOSITION_TYPE
from rca_api.shell.requests.negotiation import choose
from rca_api.shell.requests.pagination import AskedPage, Page, Paging, page
from rca_api.shell.requests.parameters import Moment, Name
from rca_api.shell.requests.problems import COMMON, ProblemError, problem_responses
from rca_api.shell.requests.request_bodies import BODY_PROBLEMS, SmallBodies
from rca_api.shell.security.access import Reader, requires
from rca_api.shell.security.principal import Principal, Scope
from rca_api.shell.settings.settings import Settings
from rca_api.shell.state import State
from rca_api.shell.store.base import now

router = APIRouter(prefix="/v1", tags=["incidents"], route_class=SmallBodies)
#: People who judge diagnoses, and programs that act on them.
Actor = Annotated[Principal, Security(requires(Scope.feedback, Scope.diagnose))]

Status = Annotated[IncidentState | None, Query(description="List only open or only resolved incidents.")]
Since = Annotated[
    Moment | None, Query(description="List only incidents that were open at this time or later.")
]
_MARKDOWN = "text/markdown"
#: Most windows and most actions in one incident answer.
_SHOWN = 200


@router.get("/incidents", summary="List incidents", responses=problem_responses(*COMMON))
def list_incidents(
    request: Request,
    _: Reader,
    paging: Paging,
    state: Status = None,
    job: Annotated[Name | None, Query(description="Id of the job.")] = None,
    cause: Annotated[Name | None, Query(description="List incidents that have or had this cause.")] = None,
    node: Annotated[Name | None, Query(description="List incidents in which this node was blamed.")] = None,
    since: Since = None,
) -> IncidentPage:
    """List incidents of all jobs, newest first."""
    filters = {"state": state, "job_id": job, "cause": cause, "node": node, "since": since}
    return _listed(request, filters, paging)


@router.get(
    "/incident-series",
    summary="Show open incidents as Prometheus series",
    response_class=Response,
    responses={
        200: {"description": "Prometheus text format", "content": {"text/plain": {}}},
        **problem_responses(*COMMON, "not-found"),
    },
)
def show_series(request: Request, _: Reader) -> Response:
    """Show the newest open incidents for a scrape: job, cause, place, onset and cost.

    They have names, which `/metrics` has not. `RCA_INCIDENT_SERIES` is the number of incidents.
    """
    state = State.of(request)
    if state.settings.incident_series == 0:
        raise ProblemError("not-found", "RCA_INCIDENT_SERIES is 0, so incidents have no series")
    with state.database.reading() as session:
        content = exposition(session, state.settings.incident_series)
    return Response(content, media_type=EXPOSITION_TYPE)


@router.get(
    "/jobs/{job_id:name}/incidents",
    summary="List the incidents of a job",
    responses=problem_responses(*COMMON),
)
def list_job_incidents(
    request: Request,
    job_id: Annotated[Name, Path()],
    _: Reader,
    paging: Paging,
    state: Status = None,
    since: Since = None,
) -> IncidentPage:
    """List the incidents of a job, newest first; empty for an unknown job."""
    return _listed(request, {"state": state, "job_id": job_id, "since": since}, paging)


@router.get(
    "/incidents/{incident_id}",
    summary="Show an incident",
    response_class=Response,
    responses={
        200: {
            "description": "The incident with its timeline, in the media type of Accept.",
            "model": IncidentDetail,
            "content": {_MARKDOWN: {"schema": {"type": "string"}}},
        },
        **problem_responses(*COMMON, "not-found", "not-acceptable"),
    },
)
def show_incident(
    request: Request, incident_id: Annotated[str, Path(pattern="^[0-9a-f]{32}$")], _: Reader
) -> Response:
    """Show the timeline of an incident, its cost so far, and its diagnoses."""
    accept = choose(request.headers.get("accept"), ("application/json", _MARKDOWN))
    state = State.of(request)
    with state.database.reading() as session:
        row = session.get(IncidentRow, incident_id)
        if row is None:
            raise ProblemError("not-found", f"there is no incident {incident_id}")
        detail = _detail(session, row, state.settings)
    content = as_markdown(detail) if accept == _MARKDOWN else detail.model_dump_json()
    return Response(content, media_type=accept)


@router.patch(
    "/incidents/{incident_id}",
    summary="Acknowledge, assign, mute or close an incident",
    responses=problem_responses(*COMMON, *BODY_PROBLEMS, "not-found", "conflict", "invalid-parameters"),
)
def change_incident(
    request: Request,
    incident_id: Annotated[str, Path(pattern="^[0-9a-f]{32}$")],
    given: IncidentChange,
    caller: Actor,
) -> Incident:
    """Say who has seen an incident and works on it, mute its messages, or close it with a reason.

    A muted incident goes on; webhooks get no message of it, except of its resolution. At the end of the mute
    they get its present state. One that was closed is reopened if its fault goes on.
    """
    state, at = State.of(request), now()
    with state.database.session() as session:
        row = session.get(IncidentRow, incident_id)
        if row is None:
            raise ProblemError("not-found", f"there is no incident {incident_id}")
        if "acknowledged" in given.model_fields_set:
            seen = given.acknowledged
            row.acknowledged_at, row.acknowledged_by = (at, caller.name) if seen else (None, None)
        if given.muted_until is not None and given.muted_until <= at:
            raise ProblemError(
                "invalid-parameters",
                f"muted_until: {given.muted_until.isoformat()} is over",
                expected="a time to come, or null for messages from now on",
            )
        if "assigned_to" in given.model_fields_set:
            row.assigned_to = given.assigned_to
        if given.muted_until is not None:
            row.muted_until = given.muted_until
        session.flush()
        if "muted_until" in given.model_fields_set and given.muted_until is None:
            state.incidents.end_mute(session, incident_id)
        if given.close is not None and not state.incidents.close(session, incident_id, given.close):
            raise ProblemError("conflict", "the incident is resolved already")
        nodes = repository.nodes_of(session, [row.id])[row.id]
        return read_incident(row, nodes)


def _listed(request: Request, filters: dict[str, Any], paging: AskedPage) -> IncidentPage:
    keys = (IncidentRow.opened_at, IncidentRow.id)
    with State.of(request).database.reading() as session:
        found: Page[IncidentRow] = paging.read(session, repository.found(**filters), keys, lambda row: row)
        nodes = repository.nodes_of(session, [row.id for row in found.items])
    return IncidentPage(items=[read_incident(row, nodes[row.id]) for row in found.items], next=found.next)


def _detail(session: Session, row: IncidentRow, settings: Settings) -> IncidentDetail:
    nodes = repository.nodes_of(session, [row.id])[row.id]
    newest = page(
        session,
        repository.observed(row.id),
        keys=(ObservationRow.window_end, ObservationRow.window_start),
        limit=_SHOWN,
        cursor=None,
        read=read_window,
    )
    done = page(
        session,
        taken_actions.taken(row.id),
        keys=(TakenActionRow.taken_at, TakenActionRow.id),
        limit=_SHOWN,
        cursor=None,
        read=read_action,
    )
    # Without this job: the incident itself is no evidence of an earlier fault.
    named = [node for node, _ in nodes] if settings.node_priors == "on" else []
    known = known_lemons(session, named, settings.node_lemon_prior, exclude_job=row.job_id)
    incident = read_incident(row, nodes)
    timeline = [read_event(each) for each in repository.timeline(session, row.id)]
    shown = _shown(row.cause, newest.items)
    summary = summary_of(session, shown)
    return IncidentDetail(
        **incident.model_dump(),
        stages=stages(incident, timeline, newest.items),
        delays=delays(session, incident, timeline),
        url=incident_url(settings.public_url, row.id),
        timeline=timeline,
        diagnoses=newest.items,
        actions=done.items,
        summary=None if summary is None else IncidentSummary.of(shown or "", summary),
        runbook=_runbook(row.cause, newest.items),
        lemons=[Lemon(node=node, probability=probability) for node, probability in known.items()],
    )


def _shown(cause: str | None, windows: list[IncidentWindow]) -> str | None:
    """The newest diagnosis with the cause of an incident, else with any fault; certain ones first."""
    faulty = [each for verdict in ("sick", "suspect") for each in windows if each.verdict == verdict]
    named = [each.diagnosis_id for each in faulty if each.cause == cause]
    return next(iter([*named, *(each.diagnosis_id for each in faulty)]), None)


def _runbook(cause: str | None, windows: list[IncidentWindow]) -> str | None:
    """Path of the runbook of a cause, with the newest diagnosis that names it."""
    if cause is None:
        return None
    named = next((each.diagnosis_id for each in windows if each.cause == cause), None)
    return f"/v1/runbooks/{cause}" + (f"?diagnosis={named}" if named else "")


def stages(
    incident: Incident, timeline: Sequence[IncidentEvent], windows: Sequence[IncidentWindow]
) -> list[Stage]:
    """When each stage was reached, and how long after the onset of the incident.

    Parameters
    ----------
    timeline : sequence of IncidentEvent
        In the order of their announcement.
    windows : sequence of IncidentWindow
        The newest ones, newest first.
    """
    reached: dict[StageName, datetime | None] = {
        "detected": next((each.window_end for each in timeline), None),
        "localised": next((each.window_end for each in timeline if each.place), None),
        "explained": next((each.window_end for each in timeline if each.cause is not None), None),
        "recovered": _recovered(incident, windows),
    }
    return [
        Stage(name=name, at=at, seconds=None if at is None else (at - incident.began).total_seconds())
        for name, at in reached.items()
    ]


def _recovered(incident: Incident, windows: Sequence[IncidentWindow]) -> datetime | None:
    """Begin of the first of the healthy windows at the end of an incident that healthy windows resolved."""
    if incident.resolution != "healthy":
        return None
    began = None
    for each in windows:
        if each.verdict in ("sick", "suspect"):
            # A healthy window may overlap the last faulty one.
            return None if began is None else max(began, each.window_end)
        if each.verdict == "healthy":
            began = each.window_start
    return began
