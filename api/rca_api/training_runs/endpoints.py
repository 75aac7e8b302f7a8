"""`/v1/training-runs`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response, Security

from rca_api.shell.requests.pagination import Paging
from rca_api.shell.requests.problems import COMMON, problem_responses
from rca_api.shell.requests.request_bodies import BODY_PROBLEMS, READ_PROBLEMS, SmallBodies
from rca_api.shell.security.access import requires
from rca_api.shell.security.principal import Principal, Scope
from rca_api.shell.state import State
from rca_api.training_runs import service
from rca_api.training_runs.schemas import TrainingOrder, TrainingRun, TrainingRuns

router = APIRouter(prefix="/v1/training-runs", tags=["training runs"], route_class=SmallBodies)
RunId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="Id of a run.")]


@router.post(
    "",
    status_code=202,
    summary="Train a new version",
    responses={
        202: {
            "description": "Ordered. Follow the run at Location.",
            "headers": {"Location": {"description": "Address of the run.", "schema": {"type": "string"}}},
        },
        **problem_responses(*COMMON, *BODY_PROBLEMS, "conflict"),
    },
)
def create_training_run(
    request: Request,
    response: Response,
    order: TrainingOrder,
    caller: Annotated[Principal, Security(requires(Scope.train))],
) -> TrainingRun:
    """Order a training run: train, compare with the champion, register the version as a challenger.

    One run is active at a time. While another is queued or running, the answer is 409 with its Location.
    """
    run = service.order_training(State.of(request), order, caller)
    response.headers["Location"] = f"/v1/training-runs/{run.id}"
    return run


@router.get(
    "",
    summary="List training runs",
    dependencies=[Security(requires(Scope.read))],
    responses=problem_responses(*COMMON),
)
def list_training_runs(request: Request, paging: Paging) -> TrainingRuns:
    """List training runs, newest first."""
    return service.runs(State.of(request), paging)


@router.get(
    "/{run_id}",
    summary="Follow a training run",
    dependencies=[Security(requires(Scope.read))],
    responses=problem_responses(*COMMON, "not-found"),
)
def get_training_run(request: Request, run_id: RunId) -> TrainingRun:
    """Show the state, the phase and how far it is, and at the end the result or the problem."""
    return service.get(State.of(request), run_id)


@router.post(
    "/{run_id}/cancel",
    status_code=202,
    summary="Cancel a training run",
    dependencies=[Security(requires(Scope.train))],
    responses=problem_responses(*COMMON, *READ_PROBLEMS, "not-found", "conflict"),
)
def cancel_training_run(request: Request, run_id: RunId) -> TrainingRun:
    """End a run within seconds. A run whose version is being registered may still succeed."""
    return service.cancel(State.of(request), run_id)
