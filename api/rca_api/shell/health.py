"""`/healthz`, `/readyz` and `/metrics`: state of the service, for operators."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from rca.diagnosis.result import ModelVersion
from rca_api.shell.observability import metrics
from rca_api.shell.processes.pool import ComputePool
from rca_api.shell.requests.problems import ProblemError, problem_responses
from rca_api.shell.security.access import requires
from rca_api.shell.security.principal import Scope
from rca_api.shell.state import State
from rca_api.shell.store.database import StoreError
from rca_api.shell.store.schema_check import SchemaCheck

router = APIRouter(tags=["operations"])
read_access = requires(Scope.read)


class Alive(BaseModel):
    """The process is alive."""

    status: Literal["ok"] = "ok"


class Check(BaseModel):
    """One precondition of a diagnosis."""

    name: Literal["model", "pool", "database"]
    ready: bool
    detail: str = Field(description="The state, or why it is not ready.")
    code: str | None = Field(None, description="Problem code of requests meanwhile.")


class Ready(BaseModel):
    """The service can diagnose, with this model."""

    status: Literal["ready"] = "ready"
    model: ModelVersion
    checks: list[Check]


@router.get(
    "/healthz",
    summary="Is the process alive?",
    responses=problem_responses("invalid-parameters", public=True),
)
async def healthz() -> Alive:
    """Answer as long as the event loop runs; the model may still be loading."""
    return Alive()


@router.get(
    "/readyz",
    summary="Is the service ready to diagnose?",
    responses=problem_responses(
        "bundle-error", "not-ready", "store-unavailable", "invalid-parameters", public=True
    ),
)
def readyz(request: Request) -> Ready:
    """Name the model bundle in use, or list the checks that fail and why."""
    state = State.of(request)
    held = [check_model(state.pool), check_processes(state.pool), check_database(state.schema_check)]
    model, failed = state.pool.model, [check for check in held if not check.ready]
    if model is None or failed:
        detail = "; ".join(f"{check.name}: {check.detail}" for check in failed)
        raise ProblemError(
            next((check.code for check in failed if check.code is not None), "not-ready"),
            detail,
            headers={"Retry-After": str(state.settings.retry_after_seconds)},
            checks=[check.model_dump() for check in held],
        )
    return Ready(model=model, checks=held)


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={
        200: {"description": "Prometheus text format", "content": {"text/plain": {}}},
        **problem_responses("invalid-parameters"),
    },
)
def exposition(request: Request) -> Response:
    """Give all metrics of this service; needs no key while `RCA_PUBLIC_METRICS` is on."""
    state = State.of(request)
    if not state.settings.public_metrics:
        read_access(request, None, None)
    return Response(state.metrics.exposition(), media_type=metrics.EXPOSITION_TYPE)


def check_model(pool: ComputePool) -> Check:
    """Check that the champion can be loaded."""
    if pool.failure is not None:
        return Check(name="model", ready=False, detail=pool.failure, code="bundle-error")
    if pool.model is None:
        return Check(name="model", ready=False, detail="it is being loaded", code="not-ready")
    return Check(name="model", ready=True, detail=str(pool.model))


def check_processes(pool: ComputePool) -> Check:
    """Check that a process of the pool has been warm; a replacement in progress does not fail the check."""
    load = pool.load()
    detail = f"{load.warm} of {load.size} processes are warm"
    # A pool whose last process is being replaced is back in a second: callers wait for it.
    if load.warm == 0 and pool.model is None:
        return Check(name="pool", ready=False, detail=detail, code="not-ready")
    return Check(name="pool", ready=True, detail=detail)


def check_database(held: SchemaCheck) -> Check:
    """Check that the database answers and has the tables that this version needs."""
    try:
        held.require()
    except StoreError as error:
        detail = error.message if error.hint is None else f"{error.message} ({error.hint})"
        return Check(name="database", ready=False, detail=detail, code="store-unavailable")
    return Check(name="database", ready=True, detail="it answers, and its schema is known")
