"""Probes and metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from rca_api import metrics
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
    """Name the model bundle in use, or say why nothing can be diagnosed."""
    state = State.of(request)
    retry = {"Retry-After": str(state.settings.retry_after_seconds)}
    if state.pool.failure is not None:
        raise ProblemError("bundle-error", state.pool.failure, headers=retry)
    if state.pool.model is None:
        raise ProblemError("not-ready", "no process is warm yet", headers=retry)
    state.database.check()
    return Ready(model=state.pool.model)


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
    return Response(State.of(request).metrics.exposition(), media_type=metrics.MEDIA_TYPE)
