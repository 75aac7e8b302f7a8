"""`/v1/incidents/{id}/actions`, and the actions of all incidents at `/v1/actions`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response, Security, status
from sqlalchemy.exc import IntegrityError

from rca_api.actions import repository
from rca_api.actions.schemas import NewAction, TakenAction, TakenActionPage, read_action
from rca_api.actions.tables import TakenActionRow
from rca_api.incidents.tables import IncidentRow
from rca_api.shell.requests.pagination import LINK_HEADER, Paging
from rca_api.shell.requests.parameters import Moment, Name
from rca_api.shell.requests.problems import COMMON, problem_responses
from rca_api.shell.requests.request_bodies import BODY_PROBLEMS, SmallBodies
from rca_api.shell.security.access import Reader, requires
from rca_api.shell.security.principal import Principal, Scope
from rca_api.shell.state import State
from rca_api.shell.store.base import now

router = APIRouter(prefix="/v1", tags=["incidents"], route_class=SmallBodies)

IncidentId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
#: People who judge diagnoses, and programs that act on them.
Actor = Annotated[Principal, Security(requires(Scope.feedback, Scope.diagnose))]


@router.post(
    "/incidents/{incident_id}/actions",
    status_code=status.HTTP_201_CREATED,
    summary="Record an action taken on an incident",
    responses={
        200: {"description": "The action was recorded before.", "model": TakenAction},
        **problem_responses(*COMMON, *BODY_PROBLEMS, "not-found", "conflict", "budget-spent"),
    },
)
def record_action(
    request: Request, response: Response, incident_id: IncidentId, given: NewAction, caller: Actor
) -> TakenAction:
    """Record what was done, so that later windows show whether it helped.

    The gain that the diagnosis predicted is kept with it. The action is durable when this answers. The same
    request again gives the same action. Ranks and nodes must be of the job. It is taken at most a day before
    the first window of the incident. With a `budget` it is a reservation: make it before the first step.
    """
    state, at = State.of(request), now()
    try:
        with state.database.session() as session:
            row, new = repository.record(session, incident_id, given, caller, at)
            response.status_code = status.HTTP_201_CREATED if new else status.HTTP_200_OK
            return read_action(row)
    except IntegrityError:
        # The incident was deleted meanwhile.
        raise repository.unknown(incident_id) from None


@router.get(
    "/incidents/{incident_id}/actions",
    summary="List the actions taken on an incident",
    responses={200: {"headers": LINK_HEADER}, **problem_responses(*COMMON, "not-found")},
)
def list_actions(request: Request, incident_id: IncidentId, _: Reader, paging: Paging) -> TakenActionPage:
    """List the actions with their predicted and observed gain, newest first."""
    with State.of(request).database.reading() as session:
        if session.get(IncidentRow, incident_id) is None:
            raise repository.unknown(incident_id)
        keys = (TakenActionRow.taken_at, TakenActionRow.id)
        found = paging.read(session, repository.taken(incident_id), keys, read_action)
    return TakenActionPage(items=found.items, next=found.next)


@router.get(
    "/actions",
    summary="List the actions taken on all incidents",
    responses={200: {"headers": LINK_HEADER}, **problem_responses(*COMMON)},
)
def list_all_actions(
    request: Request,
    _: Reader,
    paging: Paging,
    since: Annotated[Moment | None, Query(description="Recorded at this time or later.")] = None,
    job: Annotated[Name | None, Query(description="Id of the job.")] = None,
    key: Annotated[Name | None, Query(description="Their `key`; agents have `rca act`.")] = None,
) -> TakenActionPage:
    """List the actions of all incidents, the one recorded last first."""
    with State.of(request).database.reading() as session:
        keys = (TakenActionRow.recorded_at, TakenActionRow.id)
        found = paging.read(session, repository.recorded(since, job, key), keys, read_action)
    return TakenActionPage(items=found.items, next=found.next)
