"""Probes and metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from rca_api import metrics
from rca_api.health import checks
from rca_api.health.schemas import Alive, Ready
from rca_api.problems import ProblemError
from rca_api.responses import problem_responses
from rca_api.security.access import requires
from rca_api.security.principal import Scope
from rca_api.state import State

router = APIRouter(tags=["operations"])
read_access = requires(Scope.read)


@router.get("/healthz", summary="Is the process alive?")
async def healthz() -> Alive:
    """Answer as long as the event loop turns; says nothing about the model."""
    return Alive()


@router.get(
    "/readyz",
    summary="Can it diagnose?",
    responses=problem_responses("bundle-error", "not-ready", "store-unavailable", public=True),
)
def readyz(request: Request) -> Ready:
    """Name the model bundle in use, or say of everything that is needed why it is not there."""
    state = State.of(request)
    held = [checks.model(state.pool), checks.processes(state.pool), checks.database(state.database)]
    model, failed = state.pool.model, [check for check in held if not check.ready]
    if model is None or failed:
        told = "; ".join(f"{check.name}: {check.detail}" for check in failed)
        raise ProblemError(
            next((check.code for check in failed if check.code is not None), "not-ready"),
            told,
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
        **problem_responses(),
    },
)
def exposition(request: Request) -> Response:
    """Give all series of this service; without a key where `RCA_PUBLIC_METRICS` is on."""
    state = State.of(request)
    if not state.settings.public_metrics:
        read_access(request, None, None)
    return Response(state.metrics.exposition(), media_type=metrics.MEDIA_TYPE)
