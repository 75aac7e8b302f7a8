"""`/v1/plans`: plan the recovery of a job from a stored diagnosis, and the corrections of plans."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from rca.diagnosis.planning import plan
from rca.recovery.planner import Plan
from rca.recovery.site import Site
from rca.runbook.plan_page import plan_markdown
from rca_api.actions.observation import corrections, factors
from rca_api.diagnoses.answers import finished_row
from rca_api.diagnoses.stored import read_stored
from rca_api.shell.requests.negotiation import choose
from rca_api.shell.requests.problems import COMMON, problem_responses
from rca_api.shell.requests.request_bodies import BODY_PROBLEMS, SmallBodies
from rca_api.shell.security.access import ReaderOfOne
from rca_api.shell.state import State

router = APIRouter(prefix="/v1/plans", tags=["plans"], route_class=SmallBodies)

_MARKDOWN = "text/markdown"


class PlanRequest(BaseModel):
    """A stored diagnosis, and costs and limits that differ from those of the service."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"diagnosis_id": "9f0c2f1e7d6b4a5f8c3d2e1f0a9b8c7d", "site": {"restart_seconds": 240.0}}
            ]
        },
    )

    diagnosis_id: str = Field(pattern="^[0-9a-f]{32}$", description="Of a finished diagnosis.")
    site: Site = Field(
        default_factory=Site, description="Fields given here replace those of the setting `RCA_SITE`."
    )


class ActionCorrection(BaseModel):
    """Observed over predicted gain of one action."""

    action: str
    n: int = Field(ge=1, description="Incidents with a predicted and an observed gain.")
    median_ratio: float = Field(ge=0, le=2, description="Of their ratios, each cut to 0 to 2.")
    factor: float = Field(
        ge=0,
        le=2,
        description="Multiplies later predictions. It is the median, drawn to 1 by four incidents.",
    )
    used: bool = Field(description="Whether plans use it: false where the setting `RCA_SITE` gives a factor.")


class Corrections(BaseModel):
    """Corrections of all actions with an observed gain."""

    corrections: list[ActionCorrection]


@router.get(
    "/corrections", summary="List corrections of predicted gains", responses=problem_responses(*COMMON)
)
def list_corrections(request: Request, _: ReaderOfOne) -> Corrections:
    """Compare the gain of the actions taken on incidents with what was predicted."""
    state = State.of(request)
    with state.database.reading() as session:
        found = corrections(session)
    return Corrections(
        corrections=[
            ActionCorrection(
                action=action,
                n=each.n,
                median_ratio=each.median or 0.0,
                factor=each.factor,
                used=action not in state.site.corrections,
            )
            for action, each in found.items()
        ]
    )


@router.post(
    "",
    summary="Plan the recovery of a job",
    response_class=Response,
    responses={
        200: {
            "description": "The plan, in the media type of Accept.",
            "model": Plan,
            "content": {_MARKDOWN: {"schema": {"type": "string"}}},
        },
        **problem_responses(*COMMON, *BODY_PROBLEMS, "not-found", "conflict", "not-acceptable"),
    },
)
def create_plan(request: Request, wanted: PlanRequest, _: ReaderOfOne) -> Response:
    """Judge every recovery action for a diagnosis.

    Each action has the seconds per step that it saves, its cost, when it pays off and its risk, or the reason
    against it. Actions that change the ranks' work keep the price that the diagnosis gave them. Gains are
    corrected by those of earlier incidents, see `GET /v1/plans/corrections`. A plan is not stored.
    """
    accept = choose(request.headers.get("accept"), ("application/json", _MARKDOWN))
    state = State.of(request)
    with state.database.reading() as session:
        document = finished_row(session, wanted.diagnosis_id, "a plan needs a finished one")[1]
        found = corrections(session)
    given = wanted.site.model_dump(include=wanted.site.model_fields_set)
    site = state.site.model_copy(update=given).corrected(factors(found))
    found_plan = plan(read_stored(document), site=site)
    # All that is judged: a caller of the service has no option for more.
    content = plan_markdown(found_plan, verbose=True) if accept == _MARKDOWN else found_plan.model_dump_json()
    return Response(content, media_type=accept, headers={"Vary": "Accept"})
