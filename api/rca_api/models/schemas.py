"""Models as the service tells them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from rca.telemetry.causes import FailureMode

Reason = Annotated[str, Field(min_length=3, max_length=500, examples=["blames healthy nodes"])]
Sha256 = Annotated[str, Field(description="Of the bundle's manifest.")]


class Score(BaseModel):
    """A score on held-out windows with its 95 % interval."""

    value: float
    low: float | None = None
    high: float | None = None
    n: float | None = Field(None, description="Windows it was measured on.")


class GateVerdict(BaseModel):
    """What the promotion gate said the last time; all checks are an artifact of the MLflow run."""

    outcome: str = Field(description="better, as good or worse.")
    passed: bool
    against: str = Field(description="Version it was compared with, or `shipped`.")
    reasons: str
    forced: str | None = Field(None, description="Why it was promoted all the same.")
    promoted_by: str | None = None


class RegisteredModel(BaseModel):
    """A registered version of the model."""

    version: int
    aliases: list[str] = Field(description="`champion`, `challenger`, `previous`.")
    sha256: Sha256
    created_at: datetime
    mlflow_run_id: str
    tags: dict[str, str]
    scores: dict[str, Score]
    gate: GateVerdict | None
    answers: bool = Field(description="Whether this replica answers with it now.")
    rejected: str | None = Field(
        None, description="Why this replica does not use it, until `POST .../retry` or another promotion."
    )
    postponed: str | None = Field(
        None, description="Why this replica could not try it to the end; it does so again by itself."
    )


class Answering(BaseModel):
    """Which bundle this replica answers with."""

    version: int | None = Field(description="Null for the operator's own or the shipped bundle.")
    sha256: str
    previous: int | None
    challenger: int | None = Field(description="Asked in shadow mode.")
    registry_failure: str | None = Field(description="Why the registry could not be followed the last time.")


class Models(BaseModel):
    """All versions, the newest first, and which one answers."""

    answering: Answering
    items: list[RegisteredModel]


class PromotionRequest(BaseModel):
    """How to promote."""

    model_config = ConfigDict(extra="forbid")

    force: Reason | None = Field(
        None, description="Promote whatever the gate says, for this reason, which is kept."
    )
    windows: int | None = Field(
        None, ge=20, le=20_000, description="Frozen test windows, if the gate has to run first."
    )


class RollbackRequest(BaseModel):
    """What to roll back from, and why."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    from_version: int = Field(
        alias="from",
        ge=1,
        le=2**31 - 1,
        examples=[7],
        description="The champion that is not wanted any more. 409 if another one is by now, so that two who "
        "roll back at once go back one version.",
    )
    reason: Reason


class RolledBack(BaseModel):
    """A rollback that was done."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    from_version: int = Field(alias="from")
    to_version: int | None = Field(alias="to", description="Null: the shipped bundle is what is left.")


class AnswerFacts(BaseModel):
    """What an answer comes down to."""

    failure_mode: FailureMode
    probability: float
    abstained: bool
    cause: str | None
    ranks: list[int]
    seconds_per_step: float | None


class Disagreement(BaseModel):
    """A window that champion and challenger see differently."""

    diagnosis_id: str
    at: datetime
    champion: AnswerFacts
    challenger: AnswerFacts


class ShadowSummary(BaseModel):
    """How often a version agreed with the champion in shadow mode."""

    version: int
    windows: int = Field(description="That both have diagnosed.")
    mode_agrees: int
    cause_agrees: int
    ranks_agree: int
    disagreements: list[Disagreement] = Field(description="The newest fifty.")


PROMOTION_EXAMPLES: list[Any] = [{}, {"force": "the champion is broken on the new cluster"}]
