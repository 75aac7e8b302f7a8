"""Schemas of incidents, for callers and for receivers of webhooks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints
from pydantic.config import JsonDict

from rca.runbook.phrases import plain
from rca.runbook.summary import Summary
from rca.window.causes import FailureMode
from rca_api.actions.schemas import TakenAction
from rca_api.incidents.observation import Verdict
from rca_api.incidents.state_machine import EventKind, Reason
from rca_api.incidents.tables import IncidentEventRow, IncidentRow, ObservationRow
from rca_api.shell.store.base import values_of

State = Literal["open", "resolved"]
Person = Annotated[str, StringConstraints(min_length=1, max_length=128, strip_whitespace=True)]
StageName = Literal["detected", "localised", "explained", "recovered"]
FaultMode = Literal["fail_slow", "fail_stop"]
EventType = Literal[
    "incident.opened",
    "incident.suspected",
    "incident.confirmed",
    "incident.reopened",
    "incident.cause_changed",
    "incident.place_changed",
    "incident.cause_uncertain",
    "incident.mute_ended",
    "incident.resolved",
]

INCIDENT_EXAMPLE: JsonDict = {
    "id": "7d9f2c0e5b8a4f6d9e1c3b5a7f9e1d3c",
    "job_id": "llama-7b-17",
    "state": "open",
    "failure_mode": "fail_slow",
    "cause": "nic_degradation",
    "place": ["node-12"],
    "suspected": False,
    "confidence": "confirmed",
    "uncertain": False,
    "reopened": 0,
    "opened_at": "2026-11-21T20:00:05Z",
    "resolved_at": None,
    "resolution": None,
    "began": "2026-11-21T19:58:00Z",
    "ended": "2026-11-21T20:10:00Z",
    "windows": 6,
    "seconds_lost": 184.2,
    "gpu_hours_lost": 3.27,
    "nodes": [{"node": "node-12", "probability": 0.93}],
}


class IncidentChange(BaseModel):
    """What a person does about an incident; members that are left out stay as they are."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"acknowledged": True, "assigned_to": "ana"}]}
    )

    acknowledged: bool = Field(False, description="Whether it was seen.")
    assigned_to: Person | None = Field(None, description="Who works on it; null for none.")
    muted_until: AwareDatetime | None = Field(
        None, description="Webhooks get no message before, except of its resolution; null for messages."
    )
    close: Annotated[str, StringConstraints(min_length=1, max_length=2000, strip_whitespace=True)] | None = (
        Field(None, description="Why it is closed. A fault that goes on reopens it: mute it instead.")
    )


class SuspectNode(BaseModel):
    """A node that diagnoses of the incident blamed."""

    node: str
    probability: float = Field(ge=0, le=1, description="Highest probability in one of its diagnoses.")


class Incident(BaseModel):
    """The fault of one job over one or more windows."""

    model_config = ConfigDict(json_schema_extra={"examples": [INCIDENT_EXAMPLE]})

    id: str
    job_id: str
    state: State
    failure_mode: FaultMode
    cause: str | None = Field(description="Catalogue id; null if no cause is named.")
    place: list[str] = Field(
        description="Place of the cause now: nodes, or ranks such as `rank 3`; empty if it is not known."
    )
    suspected: bool = Field(
        description="Whether its windows are certain of a fault, and none is certain of the cause yet. Or "
        "exporters alone show it, without step times."
    )
    confidence: Literal["suspected", "confirmed"] = Field(
        description="`suspected` in words. Step times or a certain cause confirm an incident."
    )
    uncertain: bool = Field(
        description="Whether its diagnoses name different causes or places. It shows what they share."
    )
    reopened: int = Field(ge=0, description="How often it was reopened soon after its resolution.")
    opened_at: datetime = Field(description="When the service opened it.")
    resolved_at: datetime | None
    resolution: Reason | None = Field(
        description="`healthy`: enough healthy windows in a row. "
        "`silence`: no window for too long, so the state of the job is unknown. "
        "`deleted`: the diagnoses of all its windows were deleted. `closed`: a person closed it."
    )
    acknowledged_at: datetime | None = Field(None, description="When a person said that it was seen.")
    acknowledged_by: str | None = Field(None, description="Name of that person's key or account.")
    assigned_to: str | None = Field(None, description="Who works on it.")
    muted_until: datetime | None = Field(
        None, description="Webhooks get no message before, except of its resolution."
    )
    closing_note: str | None = Field(
        None, description="Why a person closed it, or how the end of its job is known."
    )
    began: datetime = Field(
        description="Onset: when its stragglers began to be late, on the clock of the job. Without a known "
        "onset it is the begin of its first window."
    )
    ended: datetime = Field(description="End of its last window so far, on the clock of the job.")
    windows: int = Field(ge=0)
    seconds_lost: float = Field(
        description="Sum over windows of lost seconds per step times steps. Overlapping windows count once."
    )
    gpu_hours_lost: float
    nodes: list[SuspectNode] = Field(description="Nodes blamed in it, highest probability first.")


class IncidentEvent(BaseModel):
    """An event of an incident, as announced."""

    kind: EventKind
    at: datetime = Field(description="When the service announced it.")
    window_end: datetime = Field(
        description="End of the window that caused the event, on the clock of the job."
    )
    diagnosis_id: str | None
    failure_mode: FaultMode
    cause: str | None
    previous_cause: str | None
    place: list[str]
    previous_place: list[str]
    reason: Reason | None = Field(description="Reason of the resolution, for `resolved`.")


class IncidentWindow(BaseModel):
    """One window of an incident, and its verdict."""

    diagnosis_id: str
    window_start: datetime
    window_end: datetime
    verdict: Verdict = Field(
        description="`sick`: slow or stopped. `suspect`: slow or stopped, and the cause is open. "
        "`unsure`: it is not certain whether the job is slow."
    )
    failure_mode: FailureMode
    cause: str | None
    seconds_lost: float
    gpu_hours_lost: float


class SummaryPart(BaseModel):
    """One part of a summary, such as *Do this*."""

    title: str
    lines: list[str]


class IncidentSummary(BaseModel):
    """A diagnosis with the fault: since when, what to do, what to check, why, how sure."""

    diagnosis_id: str
    headline: str
    parts: list[SummaryPart]

    @classmethod
    def of(cls, diagnosis_id: str, summary: Summary) -> Self:
        """The plain text of a summary."""
        return cls(
            diagnosis_id=diagnosis_id,
            headline=plain(summary.headline),
            parts=[SummaryPart(title=title, lines=list(map(plain, lines))) for title, lines in summary.rows],
        )


class Stage(BaseModel):
    """One stage of the recovery from an incident."""

    name: StageName = Field(
        description="`detected`: announced. `localised`: a node or rank is named. `explained`: a cause is "
        "named. `recovered`: the first of the healthy windows that resolved it."
    )
    at: datetime | None = Field(description="On the clock of the job; null if it is not reached yet.")
    seconds: float | None = Field(description="Since the incident's `began`.")


class Delay(BaseModel):
    """One stage from the onset of a fault to its announcement."""

    name: Literal["arrived", "noticed", "diagnosed", "announced"] = Field(
        description="`arrived`: the last rows of the first faulty window. `noticed`: its diagnosis was asked "
        "for, by a change of the telemetry or by a request. `diagnosed`: answered. `announced`: the incident "
        "was opened."
    )
    at: datetime = Field(description="On the clock of the service.")
    seconds: float = Field(description="Since the incident's `began`, on the clock of the job.")


class Lemon(BaseModel):
    """A node that had faults in other jobs as well."""

    node: str
    probability: float = Field(ge=0, le=1, description="Probability that it is a lemon, see `GET /v1/nodes`.")


class IncidentDetail(Incident):
    """An incident with its timeline."""

    summary: IncidentSummary | None = Field(
        default=None, description="Null if no diagnosis with the fault is left."
    )
    stages: list[Stage] = Field(
        default=[], description="Detected, localised, explained and recovered, with their durations."
    )
    delays: list[Delay] = Field(
        default=[],
        description="Stages from the onset to the announcement. Empty without its first diagnosis.",
    )
    url: str | None = Field(default=None, description="Its address, if RCA_PUBLIC_URL names the service.")
    timeline: list[IncidentEvent]
    diagnoses: list[IncidentWindow] = Field(description="The newest windows, newest first; at most 200.")
    actions: list[TakenAction] = Field(
        default=[], description="The newest actions that were taken, newest first; at most 200."
    )
    runbook: str | None = Field(
        default=None,
        description="Path of the runbook of its cause, filled from the newest window with it. Null without "
        "a cause.",
    )
    lemons: list[Lemon] = Field(
        default=[], description="Those of `nodes` that are lemons. Only with RCA_NODE_PRIORS=on."
    )


class IncidentPage(BaseModel):
    """One page of incidents, newest first."""

    items: list[Incident]
    next: str | None = Field(description="Cursor of the next page; null on the last.")


class NotificationData(BaseModel):
    """The event, and the incident after it."""

    incident: Incident
    event: IncidentEvent
    summary: IncidentSummary | None = Field(
        default=None, description="Of the diagnosis of the event. Null if there is none, as after silence."
    )
    url: str | None = Field(
        default=None, description="Address of the incident, if RCA_PUBLIC_URL names the service."
    )


class IncidentNotification(BaseModel):
    """Body of a webhook."""

    type: EventType
    timestamp: AwareDatetime = Field(description="Time of the event. The delivery may be later.")
    data: NotificationData


def moment(seconds: float) -> datetime:
    """Unix seconds as a date and time, cut off at the ends of the calendar."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), 253402300799.0), UTC)


def read_incident(row: IncidentRow, nodes: list[tuple[str, float]]) -> Incident:
    """The summary of an incident."""
    shown = {
        "state": "open" if row.open_job_id is not None else "resolved",
        "place": row.place or [],
        "confidence": "suspected" if row.suspected else "confirmed",
        "began": moment(row.began if row.onset is None else row.onset),
        "ended": moment(row.ended),
        "nodes": [SuspectNode(node=node, probability=probability) for node, probability in nodes],
    }
    return Incident(**values_of(Incident, row) | shown)


def read_event(row: IncidentEventRow) -> IncidentEvent:
    """Read one line of a timeline."""
    places = {"place": row.place or [], "previous_place": row.previous_place or []}
    return IncidentEvent(**values_of(IncidentEvent, row) | places | {"window_end": moment(row.window_end)})


def read_window(row: ObservationRow) -> IncidentWindow:
    """Read one window of an incident."""
    bounds = {"window_start": moment(row.window_start), "window_end": moment(row.window_end)}
    return IncidentWindow(**values_of(IncidentWindow, row) | bounds)
