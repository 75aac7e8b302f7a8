"""Reading, promoting and rolling back versions of the model."""

from __future__ import annotations

from typing import Any, Literal

from rca.errors import InvalidInput
from rca_api.models import schemas
from rca_api.models.current import Choice
from rca_api.models.shadow_comparison import summary
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.security.principal import Principal
from rca_api.shell.state import State
from rca_api.training_runs import service as training_runs
from rca_api.training_runs.schemas import TrainingRun


def models(state: State) -> schemas.Models:
    """All versions, and the one that answers; without a registry only the latter."""
    choice = state.models.choice
    found = state.registry.versions() if state.settings.has_registry else []
    return schemas.Models(answering=_answering(choice), items=[_schema(each, choice) for each in found])


def model(state: State, version: str) -> schemas.RegisteredModel:
    """One version, by number or alias."""
    found = state.registry.version(version) if state.settings.has_registry else None
    if found is None:
        raise _unknown(version)
    return _schema(found, state.models.choice)


def card(state: State, version: str) -> str:
    """The model card of a version."""
    found = state.registry.card(version) if state.settings.has_registry else None
    if not found:
        raise _unknown(version)
    return found


def promote(
    state: State, version: str, request: schemas.PromotionRequest, caller: Principal
) -> schemas.RegisteredModel | TrainingRun:
    """Promote by the present gate verdict, or order the comparison if there is none."""
    number = model(state, version).version
    done = _promoted(state, str(number), caller.name, request.force)
    if done["unjudged"]:
        return training_runs.order_promotion(state, str(number), request.windows, caller)
    found = _schema(done["version"], state.models.choice)
    if not done["promoted"]:
        gate = found.gate
        raise ProblemError(
            "gate-refused",
            f"version {number} is not promoted: {gate.reasons if gate else 'the gate refuses it'}",
            hint="`force` with a reason promotes it without passing the gate",
        )
    return found


def _promoted(state: State, version: str, by: str, force: str | None) -> dict[str, Any]:
    try:
        return state.registry.promote(version, by, force)
    except InvalidInput as error:
        raise ProblemError("conflict", error.message, hint=error.hint) from None


def retry(state: State, version: str) -> schemas.RegisteredModel:
    """Request another trial of a version on every replica that has rejected it."""
    number = model(state, version).version
    return _schema(state.registry.retry(str(number)), state.models.choice)


def rollback(state: State, request: schemas.RollbackRequest, caller: Principal) -> schemas.RolledBack:
    """Move the champion back to the previous version, if it is still the given one."""
    if not state.settings.has_registry:
        raise ProblemError("conflict", "there is no registry, so there is no champion to roll back")
    try:
        done = state.registry.rollback(f"{request.reason} ({caller.name})", request.from_version)
    except InvalidInput as error:
        raise ProblemError("conflict", error.message, hint=error.hint) from None
    return schemas.RolledBack.model_validate(done)


def shadow(state: State, version: int) -> schemas.ShadowSummary:
    """How often a version agreed with the champion."""
    with state.database.reading() as session:
        return schemas.ShadowSummary.model_validate(summary(session, version))


def _answering(choice: Choice) -> schemas.Answering:
    own: Literal["operator", "shipped"] = "shipped" if choice.champion.folder is None else "operator"
    return schemas.Answering(
        version=choice.champion.version,
        source=own if choice.champion.version is None else "registry",
        sha256=choice.champion.sha256,
        previous=choice.previous.version if choice.previous else None,
        challenger=choice.challenger.version if choice.challenger else None,
        registry_failure=choice.failure,
    )


def _schema(found: dict[str, Any], choice: Choice) -> schemas.RegisteredModel:
    return schemas.RegisteredModel.model_validate(
        {
            **found,
            "answers": choice.champion.version == found["version"],
            "rejected": choice.rejected.get(found["sha256"]),
            "postponed": choice.postponed.get(found["sha256"]),
        }
    )


def _unknown(version: str) -> ProblemError:
    return ProblemError("not-found", f"there is no version {version!r}", hint="GET /v1/models lists them")
