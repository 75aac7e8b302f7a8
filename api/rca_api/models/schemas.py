"""Schemas of `/v1/models`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rca.window.causes import FailureMode
from rca.window.names import Line
from rca_api.shell.requests.parameters import GivenBody

Reason = Annotated[Line, Field(min_length=3, max_length=500, examples=["blames healthy nodes"])]
Sha256 = Annotated[str, Field(description="SHA-256 of the bundle's manifest.")]


class Score(BaseModel):
    """A score on held-out windows with its 95 % interval."""

    value: float
    low: float | None = None
    high: float | None = None
    n: float | None = Field(None, description="Number of windows it was measured on.")


class GateVerdict(BaseModel):
    """The last verdict of the promotion gate. All its checks are an artifact of the MLflow run."""

    outcome: str = Field(description="`better`, `as good` or `worse`.")
    passed: bool
    against: str = Field(description="Version that it was compared with, or `shipped`.")
    reasons: str
    forced: str | None = Field(None, description="Reason of a promotion without passing the gate.")
    promoted_by: str | None = None


class RegisteredModel(BaseModel):
    """A registered version of the model."""

    version: int
    aliases: list[str] = Field(description="Any of `champion`, `challenger`, `previous`.")
    sha256: Sha256
    created_at: datetime
    mlflow_run_id: str
    tags: dict[str, str]
    scores: dict[str, Score]
    gate: GateVerdict | None
    answers: bool = Field(description="Whether this replica answers with it now.")
    rejected: str | None = Field(
        None,
        description="Why this replica does not use it. `POST .../retry` or a promotion starts a new trial.",
    )
    postponed: str | None = Field(
        None, description="Why the trial on this replica is not complete. The replica repeats it."
    )


class Answering(BaseModel):
    """The bundle that answers on this replica."""

    version: int | None = Field(
        description="Its number in the registry; null for the shipped bundle and others without one."
    )
    source: Literal["registry", "operator", "shipped"] = Field(
        description="`operator`: the folder of RCA_BUNDLE. `shipped`: the bundle of this package."
    )
    sha256: str
    previous: int | None
    challenger: int | None = Field(description="Version that diagnoses in shadow mode.")
    registry_failure: str | None = Field(description="Why the last poll of the registry failed.")


class Models(BaseModel):
    """All versions, newest first, and the one that answers."""

    answering: Answering
    items: list[RegisteredModel]


class PromotionRequest(GivenBody):
    """How to promote."""

    force: Reason | None = Field(
        None, description="Promote without passing the gate, for this reason. The reason is stored."
    )
    windows: int | None = Field(
        None, ge=20, le=20_000, description="Number of frozen test windows, if the gate has to run first."
    )


class RollbackRequest(GivenBody):
    """What to roll back from, and why."""

    model_config = ConfigDict(populate_by_name=True)

    from_version: int = Field(
        alias="from",
        ge=1,
        le=2**31 - 1,
        examples=[7],
        description="The present champion. 409 if the champion is another version by now, so that two "
        "rollbacks at once go back one version only.",
    )
    reason: Reason


class RolledBack(BaseModel):
    """A completed rollback."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    from_version: int = Field(alias="from")
    to_version: int | None = Field(alias="to", description="Null if the shipped bundle answers now.")


class AnswerFacts(BaseModel):
    """The main facts of an answer."""

    failure_mode: FailureMode
    probability: float
    abstained: bool
    cause: str | None
    ranks: list[int]
    seconds_per_step: float | None


class Disagreement(BaseModel):
    """A window on which champion and challenger disagree."""

    diagnosis_id: str
    at: datetime
    champion: AnswerFacts
    challenger: AnswerFacts


class ShadowSummary(BaseModel):
    """How often a version agreed with the champion in shadow mode."""

    version: int
    windows: int = Field(description="Windows that both have diagnosed.")
    mode_agrees: int
    cause_agrees: int
    ranks_agree: int
    disagreements: list[Disagreement] = Field(description="The newest 50.")


PROMOTION_EXAMPLES: list[Any] = [{}, {"force": "the champion is broken on the new cluster"}]
