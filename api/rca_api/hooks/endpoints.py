"""`/v1/hooks`: what other systems call when something is wrong with a job."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request

from rca_api.hooks.alertmanager import answered
from rca_api.hooks.schemas import AlertAnswers, AlertGroup
from rca_api.shell.requests.problems import ProblemError, problem_responses
from rca_api.shell.requests.request_bodies import BODY_PROBLEMS, SmallBodies
from rca_api.shell.security.access import Diagnoser
from rca_api.shell.state import State

router = APIRouter(prefix="/v1/hooks", tags=["hooks"], route_class=SmallBodies)

_PROBLEMS = problem_responses(
    *BODY_PROBLEMS,
    "invalid-parameters",
    "unauthenticated",
    "forbidden",
    "rate-limited",
    "store-unavailable",
    "busy",
    "conflict",
    "source-error",
)


@router.post("/alertmanager", summary="Diagnose the jobs of alerts", responses=_PROBLEMS)
async def take_alerts(request: Request, group: AlertGroup, caller: Diagnoser) -> AlertAnswers:
    """Diagnose the job of each firing alert, with its window from a source of `RCA_SOURCES`.

    It is the webhook receiver of Alertmanager (`webhook_configs`). A label such as `job_id` names the job.
    Alerts about one job share a diagnosis. If no window can be read the answer is 502, so that Alertmanager
    sends the message again.
    """
    state = State.of(request)
    if not state.sources.prometheus:
        raise ProblemError(
            "conflict",
            "this service has no source of telemetry",
            hint="set RCA_SOURCES to a file that names a Prometheus server, see docs/how-to/alerts.md",
        )
    items = await answered(state, group, time.time(), asked_by=caller.id, request_id=request.state.request_id)
    return AlertAnswers(items=items)
