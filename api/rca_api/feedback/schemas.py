"""What feedback looks like to callers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from rca.telemetry.causes import FailureMode
from rca_api.feedback.labels import GivenLabel
from rca_api.feedback.repository import Side
from rca_api.feedback.tables import FeedbackRow

Verdict = Literal["confirmed", "corrected"]
Note = Annotated[str, StringConstraints(max_length=4000, pattern=r"^[^\x00]*$")]
Reporter = Annotated[str, StringConstraints(max_length=256, pattern=r"^[^\x00]*$")]


class NewFeedback(BaseModel):
    """What somebody says about a diagnosis."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"verdict": "confirmed", "reported_by": "on-call", "note": "cable replaced, fast again"},
                {
                    "verdict": "corrected",
                    "label": {
                        "failure_mode": "fail_slow",
                        "causes": [{"cause": "cpu_contention", "nodes": ["node-1"]}],
                    },
                    "note": "a backup ran on node-1",
                },
            ]
        },
    )

    verdict: Verdict = Field(description="`confirmed`: as diagnosed; `corrected`: as in `label`.")
    label: GivenLabel | None = Field(None, description="Of a corrected one; never of a confirmed one.")
    reported_by: Reporter | None = Field(
        None, description="Who found out, in your words: a person, a ticket."
    )
    note: Note = ""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.verdict == "corrected") != (self.label is not None):
            raise ValueError("label belongs to `corrected` feedback, and only there")
        return self


class Label(BaseModel):
    """The truth that feedback amounts to."""

    model_config = ConfigDict(extra="allow")

    failure_mode: FailureMode
    straggler_type: str | None = None
    pattern: str | None = None
    causes: list[dict[str, object]]


class Feedback(BaseModel):
    """One opinion, as it was given; it is kept, even withdrawn or followed by its author's next one."""

    id: str
    diagnosis_id: str
    created_at: datetime
    verdict: Verdict
    label: Label
    given_by: str | None = Field(description="Key or token subject; null where authentication is off.")
    given_by_name: str
    reported_by: str | None
    note: str
    withdrawn_at: datetime | None
    conflict: bool = Field(
        description="Whether authors disagree about the diagnosis, each by the newest word."
    )


class OpinionSide(BaseModel):
    """One side of a conflict."""

    label: Label
    feedback: list[str] = Field(
        description="Ids of the feedback on this side, the newest of each author "
        "(`given_by` with `reported_by`)."
    )


class DiagnosisFeedback(BaseModel):
    """All feedback on one diagnosis, newest first."""

    conflict: bool = Field(
        description="Whether authors disagree, each by the newest word; then nothing is learned from it."
    )
    sides: list[OpinionSide] = Field(description="Every different opinion, the one with most voices first.")
    items: list[Feedback]
    next: str | None


class FeedbackPage(BaseModel):
    """One page of feedback, newest first."""

    items: list[Feedback]
    next: str | None


def read_feedback(row: FeedbackRow, *, conflict: bool) -> Feedback:
    """Read one row."""
    names = set(Feedback.model_fields) - {"conflict", "label"}
    return Feedback(
        **{name: getattr(row, name) for name in names}, label=Label(**row.label), conflict=conflict
    )


def read_side(side: Side) -> OpinionSide:
    """Read one side."""
    return OpinionSide(label=Label(**side.label), feedback=side.ids)
