"""Actions taken on incidents, in requests and answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    model_validator,
)

from rca.act.budget import ActionBudget
from rca.recovery.outcomes import Outcome
from rca.recovery.planner import ACTIONS
from rca_api.actions.tables import TakenActionRow
from rca_api.feedback.schemas import Note
from rca_api.shell.requests.parameters import GivenBody, Moment, Name
from rca_api.shell.store.base import values_of

OTHER = "other"
NAMES = (*(action.name for action in ACTIONS), OTHER)
_MOMENT: TypeAdapter[datetime] = TypeAdapter(Moment)
_MAX_LIST_LENGTH = 10_000


def _moment(value: Any) -> Any:
    return _MOMENT.validate_python(value) if isinstance(value, str) else value


def _known(name: str) -> str:
    if name not in NAMES:
        raise ValueError(f"is none of {', '.join(NAMES)}")
    return name


class GivenBudget(ActionBudget):
    """How many actions may begin on some jobs together."""

    jobs: list[Name] = Field(max_length=_MAX_LIST_LENGTH, description="The job of the incident counts, too.")


class NewAction(GivenBody):
    """An action that was taken on an incident."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "action": "drain_node",
                    "taken_at": "2026-11-21T20:11:00Z",
                    "nodes": ["node-12"],
                    "note": "cable replaced as well",
                }
            ]
        },
    )

    action: Annotated[str, AfterValidator(_known)] = Field(
        description="Name as in plans, or `other`.", json_schema_extra={"enum": list(NAMES)}
    )
    taken_at: Annotated[datetime, BeforeValidator(_moment)] | None = Field(
        None, description="When it took effect, on the clock of the job. By default now."
    )
    nodes: list[Name] = Field([], max_length=_MAX_LIST_LENGTH)
    ranks: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field([], max_length=_MAX_LIST_LENGTH)
    note: Note = ""
    diagnosis_id: Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")] | None = Field(
        None,
        description="The diagnosis whose prediction is kept. By default the newest one of the incident "
        "before `taken_at` that has the action.",
    )
    key: Name | None = Field(
        None,
        description="Name of the request. A repeated key is the same action, and so is the same content "
        "without a key.",
    )
    budget: GivenBudget | None = Field(
        None,
        description="The action is refused if those of the same `key` on these jobs have spent it. A program "
        "that asks before it acts never exceeds it, however many run. Needs `key`.",
    )

    @model_validator(mode="after")
    def _counted_by_key(self) -> NewAction:
        if self.budget is not None and self.key is None:
            raise ValueError("a budget counts the actions of a key: give one")
        return self


class PredictedGain(BaseModel):
    """What the diagnosis predicted."""

    seconds_per_step_saved: float
    interval: tuple[float, float] | None
    one_off_seconds: float | None = Field(description="Time that the action takes from the job once.")
    correction: float = Field(
        description="Factor from earlier actions that `seconds_per_step_saved` includes; 1 without."
    )


class ObservedGain(BaseModel):
    """What the windows after the action show."""

    seconds_per_step_saved: float = Field(description="Fall of the seconds lost per step.")
    interval: tuple[float, float]
    lost_before: float = Field(description="Mean seconds lost per step in the windows before.")
    lost_after: float = Field(description="Mean seconds lost per step in the windows after.")


class TakenAction(BaseModel):
    """An action that was taken on an incident, with its predicted and its observed gain."""

    id: str
    incident_id: str
    action: str
    taken_at: datetime
    nodes: list[str]
    ranks: list[int]
    note: str
    recorded_at: datetime
    recorded_by: str | None = Field(description="Key or token subject; null if authentication is off.")
    recorded_by_name: str
    diagnosis_id: str | None
    predicted: PredictedGain | None
    outcome: Outcome = Field(
        description="`pending` until three confident windows have followed. `unclear`: the interval is too "
        "wide, another action followed too soon, or no window of the incident lies before."
    )
    observed: ObservedGain | None
    windows_before: int = Field(ge=0, description="Confident windows of the incident before it; at most six.")
    windows_after: int = Field(ge=0, description="Confident windows of the job after it; at most six.")


class TakenActionPage(BaseModel):
    """One page of actions, newest first."""

    items: list[TakenAction]
    next: str | None = Field(description="Cursor of the next page; null on the last.")


def read_action(row: TakenActionRow) -> TakenAction:
    """Read one row."""
    gains = {"predicted": _predicted(row), "observed": _observed(row)}
    return TakenAction(**values_of(TakenAction, row) | gains)


def _predicted(row: TakenActionRow) -> PredictedGain | None:
    if row.predicted is None:
        return None
    low, high = row.predicted_low, row.predicted_high
    return PredictedGain(
        seconds_per_step_saved=row.predicted,
        interval=None if low is None or high is None else (low, high),
        one_off_seconds=row.one_off_seconds,
        correction=row.correction,
    )


def _observed(row: TakenActionRow) -> ObservedGain | None:
    if row.observed is None:
        return None
    return ObservedGain(
        seconds_per_step_saved=row.observed,
        interval=(row.observed_low or 0.0, row.observed_high or 0.0),
        lost_before=row.lost_before or 0.0,
        lost_after=row.lost_after or 0.0,
    )
