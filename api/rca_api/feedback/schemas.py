"""Feedback in requests and answers."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from rca.window.causes import FailureMode
from rca.window.names import one_line
from rca_api.feedback.labels import GivenLabel
from rca_api.feedback.repository import Side
from rca_api.feedback.tables import FeedbackRow
from rca_api.shell.requests.parameters import GivenBody, Line
from rca_api.shell.store.base import values_of

Verdict = Literal["confirmed", "corrected"]


def _lines(text: str) -> str:
    one_line(re.sub(r"[\t\r\n]", " ", text))
    return text


#: Of any number of lines, without other control and formatting characters than tabs.
Note = Annotated[
    str,
    StringConstraints(max_length=4000, pattern=r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]*$"),
    AfterValidator(_lines),
]


class NewFeedback(GivenBody):
    """Feedback on a diagnosis."""

    model_config = ConfigDict(
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

    verdict: Verdict = Field(description="`confirmed`: the diagnosis is right; `corrected`: `label` is.")
    label: GivenLabel | None = Field(None, description="The true label; only with the verdict `corrected`.")
    reported_by: Line | None = Field(
        None, description="Source of the feedback, as free text: a person, a ticket."
    )
    note: Note = ""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.verdict == "corrected") != (self.label is not None):
            raise ValueError("label is required with `corrected` and not allowed with `confirmed`")
        return self


class Label(BaseModel):
    """The label of feedback."""

    model_config = ConfigDict(extra="allow")

    failure_mode: FailureMode
    straggler_type: str | None = None
    pattern: str | None = None
    causes: list[dict[str, object]]


class Feedback(BaseModel):
    """Feedback of one author; it is kept, also after it was withdrawn or replaced."""

    id: str
    diagnosis_id: str
    created_at: datetime
    verdict: Verdict
    label: Label
    given_by: str | None = Field(description="Key or token subject; null if authentication is off.")
    given_by_name: str
    reported_by: str | None
    note: str
    withdrawn_at: datetime | None
    conflict: bool = Field(
        description="Whether authors disagree about the diagnosis; the newest feedback of each counts."
    )


class OpinionSide(BaseModel):
    """One side of a conflict."""

    label: Label
    feedback: list[str] = Field(
        description="Ids of the feedback on this side: the newest of each author "
        "(`given_by` with `reported_by`)."
    )


class DiagnosisFeedback(BaseModel):
    """All feedback on one diagnosis, newest first."""

    conflict: bool = Field(description="Whether authors disagree; such feedback is not used in training.")
    sides: list[OpinionSide] = Field(description="The different labels, the one of most authors first.")
    items: list[Feedback]
    next: str | None


class FeedbackPage(BaseModel):
    """One page of feedback, newest first."""

    items: list[Feedback]
    next: str | None


def read_feedback(row: FeedbackRow, *, conflict: bool) -> Feedback:
    """Read one row."""
    return Feedback(**values_of(Feedback, row) | {"label": Label(**row.label), "conflict": conflict})


def read_side(side: Side) -> OpinionSide:
    """Read one side."""
    return OpinionSide(label=Label(**side.label), feedback=side.ids)
