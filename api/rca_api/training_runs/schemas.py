"""Training runs in requests and answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rca_api.models.schemas import GateVerdict, Score, Sha256
from rca_api.shell.requests.parameters import GivenBody
from rca_api.shell.store.base import values_of

#: The defaults of `rca train`, copied because importing it is slow; a test keeps them equal.
DEFAULT_WINDOWS, DEFAULT_SEED = 96_000, 20_261_121
CollectionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
RunState = Literal["queued", "running", "succeeded", "failed", "cancelled"]


class TrainingOrder(GivenBody):
    """What a run trains on."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"windows": 96000, "collections": ["my-incidents"], "include_feedback": True}]
        },
    )

    windows: int = Field(DEFAULT_WINDOWS, ge=200, le=200_000, description="Simulated windows.")
    seed: int = Field(
        DEFAULT_SEED,
        ge=0,
        le=2**31 - 1,
        description="On one kind of processor, the same order and seed give the same bundle.",
    )
    collections: list[CollectionName] = Field(
        [], max_length=20, description="Names of labelled collections in the operator's folder."
    )
    include_feedback: bool = Field(False, description="Also train on windows with feedback.")
    gate_windows: int | None = Field(
        None,
        ge=20,
        le=20_000,
        description="Number of frozen windows in the promotion gate; null: the operator's setting.",
    )


class PromotionOrder(BaseModel):
    """The version to compare with the champion and to promote if it passes."""

    version: str
    gate_windows: int | None = None


class TrainingResult(BaseModel):
    """Result of a run."""

    mlflow_run_id: str
    version: int = Field(description="Registered version.")
    sha256: Sha256
    scores: dict[str, Score] = Field(description="On held-out windows, with 95 % intervals.")
    gate: GateVerdict | None
    promoted: bool


class RunProblem(BaseModel):
    """Why a run failed."""

    model_config = ConfigDict(extra="allow")

    code: str
    detail: str


class TrainingRun(BaseModel):
    """One run: its order, its progress, its result."""

    id: str
    kind: Literal["train", "promotion"]
    order: TrainingOrder | PromotionOrder
    state: RunState
    phase: str
    completed: int
    total: int = Field(description="0 if the phase has no amount.")
    unit: str | None = Field(description="Unit of `completed` and `total`.", examples=["windows"])
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    heartbeat_at: datetime | None = Field(description="Last heartbeat of its worker.")
    cancel_requested_at: datetime | None
    asked_by: str
    attempts: int = Field(description="Number of workers that have claimed it.")
    result: TrainingResult | None
    problem: RunProblem | None

    @classmethod
    def of(cls, row: Any) -> TrainingRun:
        """Read a row."""
        order = TrainingOrder if row.kind == "train" else PromotionOrder
        unit = "windows" if row.total else None
        shown = {"order": order.model_validate(row.order), "asked_by": row.asked_by_name, "unit": unit}
        return cls.model_validate(values_of(cls, row) | shown)


class TrainingRuns(BaseModel):
    """A page of runs, newest first."""

    items: list[TrainingRun]
    next: str | None
