"""`/v1/models`: versions, scores, promotion, rollback, another trial, shadow mode.

The endpoints are plain functions: FastAPI runs them in threads, where they may wait for the registry.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Path, Request, Response, Security
from pydantic import Field

from rca.errors import InvalidInput
from rca_api.models import schemas
from rca_api.models.shadow_comparison import summary
from rca_api.shell.requests.negotiation import choose
from rca_api.shell.requests.parameters import WHOLE
from rca_api.shell.requests.problems import ProblemError, problem_responses
from rca_api.shell.requests.request_bodies import BODY_PROBLEMS, READ_PROBLEMS, SmallBodies
from rca_api.shell.security.access import requires
from rca_api.shell.security.principal import Principal, Scope
from rca_api.shell.state import State
from rca_api.training_runs.endpoints import ordered
from rca_api.training_runs.schemas import PromotionOrder, TrainingRun

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
    state = State.of(request)
    answering = _answering(state)
    found = state.registry.versions() if state.settings.has_registry else []
    return schemas.Models(answering=answering, items=[_schema(each, state) for each in found])


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
    state = State.of(request)
    if not state.settings.has_registry:
        raise ProblemError("conflict", "there is no registry, so there is no champion to roll back")
    with _conflicts():
        done = state.registry.rollback(f"{order.reason} ({caller.name})", order.from_version)
    return schemas.RolledBack.model_validate(done)


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
    if accept == "application/json":
        return Response(_model(state, version).model_dump_json(), media_type=accept)
    card = state.registry.card(version) if state.settings.has_registry else None
    if not card:
        raise _unknown(version)
    return Response(card, media_type=accept)


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
    state, order = State.of(request), order or schemas.PromotionRequest()
    number = str(_model(state, version).version)
    with _conflicts():
        done = state.registry.promote(number, caller.name, order.force)
    if done["unjudged"]:
        run = ordered(state, "promotion", PromotionOrder(version=number, gate_windows=order.windows), caller)
        response.status_code = 202
        response.headers["Location"] = f"/v1/training-runs/{run.id}"
        return run
    found = _schema(done["version"], state)
    if not done["promoted"]:
        reasons = found.gate.reasons if found.gate else "the gate refuses it"
        raise ProblemError(
            "gate-refused",
            f"version {number} is not promoted: {reasons}",
            hint="`force` with a reason promotes it without passing the gate",
        )
    return found


@router.post(
    "/{version}/retry",
    summary="Request another trial of a rejected version",
    dependencies=[Security(requires(Scope.promote))],
    responses=problem_responses(*_REGISTRY, *READ_PROBLEMS, "not-found", "invalid-parameters"),
)
def retry(request: Request, version: Version) -> schemas.RegisteredModel:
    """Request another trial after the cause of a rejection is fixed. Replicas try it at the next poll."""
    state = State.of(request)
    number = _model(state, version).version
    return _schema(state.registry.retry(str(number)), state)


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
    with State.of(request).database.reading() as session:
        return schemas.ShadowSummary.model_validate(summary(session, version))


def _model(state: State, version: str) -> schemas.RegisteredModel:
    """One version, by number or alias."""
    found = state.registry.version(version) if state.settings.has_registry else None
    if found is None:
        raise _unknown(version)
    return _schema(found, state)


@contextmanager
def _conflicts() -> Iterator[None]:
    """What the registry refuses is a conflict with its state."""
    try:
        yield
    except InvalidInput as error:
        raise ProblemError("conflict", error.message, hint=error.hint) from None


def _answering(state: State) -> schemas.Answering:
    choice = state.models.choice
    # A bundle of the operator is known when it is loaded.
    model = state.pool.model_of(choice.champion)
    own: Literal["operator", "shipped"] = "shipped" if choice.champion.folder is None else "operator"
    return schemas.Answering(
        version=choice.champion.version if model is None else model.registry_version,
        source=own if choice.champion.version is None else "registry",
        sha256=choice.champion.sha256 if model is None else model.sha256,
        previous=choice.previous.version if choice.previous else None,
        challenger=choice.challenger.version if choice.challenger else None,
        registry_failure=choice.failure,
    )


def _schema(found: dict[str, Any], state: State) -> schemas.RegisteredModel:
    choice = state.models.choice
    return schemas.RegisteredModel.model_validate(
        {
            **found,
            "answers": _answering(state).version == found["version"],
            "rejected": choice.rejected.get(found["sha256"]),
            "postponed": choice.postponed.get(found["sha256"]),
        }
    )


def _unknown(version: str) -> ProblemError:
    return ProblemError("not-found", f"there is no version {version!r}", hint="GET /v1/models lists them")
