"""`/v1/training-runs`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response, Security
from sqlalchemy import select

from rca_api.shell.requests.pagination import Paging
from rca_api.shell.requests.problems import COMMON, ProblemError, problem_responses
from rca_api.shell.requests.request_bodies import BODY_PROBLEMS, READ_PROBLEMS, SmallBodies
from rca_api.shell.security.access import requires
from rca_api.shell.security.principal import Principal, Scope
from rca_api.shell.state import State
from rca_api.shell.store.base import now
from rca_api.training_runs import repository
from rca_api.training_runs.repository import ActiveRun
from rca_api.training_runs.schemas import PromotionOrder, TrainingOrder, TrainingRun, TrainingRuns
from rca_api.training_runs.tables import TrainingRunRow
from rca_api.training_runs.task import available

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
    state = State.of(request)
    found = available(state.settings.collections_dir)
    unknown = sorted(set(order.collections) - set(found))
    if unknown:
        raise ProblemError(
            "invalid-parameters",
            f"there is no collection {unknown[0]!r}",
            expected=", ".join(found) or None,
            hint="collections are folders in the operator's RCA_COLLECTIONS_DIR",
        )
    order = order.model_copy(update={"collections": sorted(set(order.collections))})
    run = ordered(state, "train", order, caller)
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
    keys = (TrainingRunRow.created_at, TrainingRunRow.id)
    with State.of(request).database.reading() as session:
        found = paging.read(session, select(TrainingRunRow), keys, TrainingRun.of)
        return TrainingRuns(items=found.items, next=found.next)


@router.get(
    "/{run_id}",
    summary="Follow a training run",
    dependencies=[Security(requires(Scope.read))],
    responses=problem_responses(*COMMON, "not-found"),
)
def get_training_run(request: Request, run_id: RunId) -> TrainingRun:
    """Show the state, the phase and how far it is, and at the end the result or the problem."""
    with State.of(request).database.session() as session:
        return TrainingRun.of(_known(repository.get(session, run_id, now()), run_id))


@router.post(
    "/{run_id}/cancel",
    status_code=202,
    summary="Cancel a training run",
    dependencies=[Security(requires(Scope.train))],
    responses=problem_responses(*COMMON, *READ_PROBLEMS, "not-found", "conflict"),
)
def cancel_training_run(request: Request, run_id: RunId) -> TrainingRun:
    """End a run within seconds. A run whose version is being registered may still succeed."""
    with State.of(request).database.session() as session:
        row = _known(repository.cancel(session, run_id, now()), run_id)
        if row.state in repository.FINAL and row.state != "cancelled":
            raise ProblemError("conflict", f"the run has {row.state} already")
        return TrainingRun.of(row)


def ordered(state: State, kind: str, order: TrainingOrder | PromotionOrder, caller: Principal) -> TrainingRun:
    """Store an order.

    Raises
    ------
    ProblemError
        ``conflict`` while another run is active.
    """
    try:
        with state.database.session() as session:
            given = order.model_dump()
            row = repository.create(
                session, kind, given, now=now(), asked_by=caller.id, asked_by_name=caller.name
            )
            return TrainingRun.of(row)
    except ActiveRun as active:
        raise ProblemError(
            "conflict",
            f"run {active.run_id} is queued or running; one run may be active at a time",
            headers={"Location": f"/v1/training-runs/{active.run_id}"},
            hint="wait for it, or cancel it",
        ) from None


def _known(row: TrainingRunRow | None, run_id: str) -> TrainingRunRow:
    if row is None:
        raise ProblemError("not-found", f"there is no training run {run_id!r}")
    return row
