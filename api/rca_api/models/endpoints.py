"""`/v1/models`: versions, scores, promotion, rollback, another trial, shadow mode.

The endpoints are plain functions: FastAPI runs them in threads, where they may wait for the registry.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path, Request, Response, Security
from pydantic import Field

from rca_api.models import schemas, service
from rca_api.shell.requests.negotiation import choose
from rca_api.shell.requests.parameters import WHOLE
from rca_api.shell.requests.problems import problem_responses
from rca_api.shell.requests.request_bodies import BODY_PROBLEMS, READ_PROBLEMS, SmallBodies
from rca_api.shell.security.access import requires
from rca_api.shell.security.principal import Principal, Scope
from rca_api.shell.state import State
from rca_api.training_runs.schemas import TrainingRun

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=SmallBodies)
Version = Annotated[
    str,
    Path(
        pattern=r"^[a-z0-9]{1,20}$", description="Number or alias of the version.", examples=["champion", "3"]
    ),
]
_REGISTRY = (
    "unauthenticated",
    "forbidden",
    "rate-limited",
    "registry-unavailable",
    "missing-extra",
    "bundle-error",
)


@router.get(
    "",
    summary="List the versions of the model",
    dependencies=[Security(requires(Scope.read))],
    responses=problem_responses(*_REGISTRY, "invalid-parameters"),
)
def list_models(request: Request) -> schemas.Models:
    """List the versions with scores, intervals and gate verdict, and the one that answers now."""
    return service.models(State.of(request))


@router.post(
    "/rollback",
    summary="Roll back to the previous champion",
    responses=problem_responses(*_REGISTRY, *BODY_PROBLEMS, "conflict", "invalid-parameters"),
)
def rollback(
    request: Request,
    order: schemas.RollbackRequest,
    caller: Annotated[Principal, Security(requires(Scope.rollback))],
) -> schemas.RolledBack:
    """Move the alias `champion` back. Replicas follow at their next poll. The gate is not used."""
    return service.rollback(State.of(request), order, caller)


@router.get(
    "/{version:id}",
    summary="Show a version",
    dependencies=[Security(requires(Scope.read))],
    response_class=Response,
    responses={
        200: {
            "description": "The version, or its model card if Accept is `text/markdown`.",
            "model": schemas.RegisteredModel,
            "content": {"text/markdown": {"schema": {"type": "string"}}},
        },
        **problem_responses(*_REGISTRY, "not-found", "not-acceptable", "invalid-parameters"),
    },
)
def get_model(request: Request, version: Version) -> Response:
    """Show scores, tags and gate verdict of one version, or its model card."""
    accept = choose(request.headers.get("accept"), ("application/json", "text/markdown"))
    state = State.of(request)
    if accept == "text/markdown":
        return Response(service.card(state, version), media_type=accept)
    return Response(service.model(state, version).model_dump_json(), media_type=accept)


@router.post(
    "/{version}/promote",
    summary="Make a version the champion",
    responses={
        200: {"description": "The version is the champion now.", "model": schemas.RegisteredModel},
        202: {
            "description": "The gate has not compared it with the present champion yet. The run at "
            "Location compares it, and promotes it if it passes.",
            "model": TrainingRun,
        },
        **problem_responses(
            *_REGISTRY,
            "not-found",
            "conflict",
            "gate-refused",
            *BODY_PROBLEMS,
            "store-unavailable",
            "invalid-parameters",
        ),
    },
)
def promote(
    request: Request,
    response: Response,
    version: Version,
    caller: Annotated[Principal, Security(requires(Scope.promote))],
    order: Annotated[schemas.PromotionRequest | None, Body(examples=schemas.PROMOTION_EXAMPLES)] = None,
) -> schemas.RegisteredModel | TrainingRun:
    """Promote a version that passes the gate. `force` with a reason promotes it without passing."""
    done = service.promote(State.of(request), version, order or schemas.PromotionRequest(), caller)
    if isinstance(done, TrainingRun):
        response.status_code = 202
        response.headers["Location"] = f"/v1/training-runs/{done.id}"
    return done


@router.post(
    "/{version}/retry",
    summary="Request another trial of a rejected version",
    dependencies=[Security(requires(Scope.promote))],
    responses=problem_responses(*_REGISTRY, *READ_PROBLEMS, "not-found", "invalid-parameters"),
)
def retry(request: Request, version: Version) -> schemas.RegisteredModel:
    """Request another trial after the cause of a rejection is fixed. Replicas try it at the next poll."""
    return service.retry(State.of(request), version)


@router.get(
    "/{version}/shadow",
    summary="Show how a version compares in shadow mode",
    dependencies=[Security(requires(Scope.read))],
    responses=problem_responses(
        "unauthenticated", "forbidden", "rate-limited", "store-unavailable", "invalid-parameters"
    ),
)
def get_shadow(
    request: Request, version: Annotated[int, Field(ge=1, le=2**31 - 1), WHOLE, Path()]
) -> schemas.ShadowSummary:
    """Show on how many windows this version agrees with the champion, and where it does not."""
    return service.shadow(State.of(request), version)
