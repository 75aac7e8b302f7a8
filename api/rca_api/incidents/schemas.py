"""What incidents look like to callers and to receivers of webhooks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from rca.telemetry.causes import FailureMode
from rca_api.incidents.state_machine import Kind, Reason, Verdict
from rca_api.incidents.tables import IncidentEventRow, IncidentRow, ObservationRow

State = Literal["open", "resolved"]
SickMode = Literal["fail_slow", "fail_stop"]
EventType = Literal[
    "incident.opened",
    "incident.reopened",
    "incident.cause_changed",
    "incident.place_changed",
    "incident.cause_uncertain",
    "incident.resolved",
]

INCIDENT_EXAMPLE: JsonDict = {
    "id": "7d9f2c0e5b8a4f6d9e1c3b5a7f9e1d3c",
    "job_id": "llama-7b-17",
    "state": "open",
    "failure_mode": "fail_slow",
    "cause": "nic_degradation",
    "place": ["node-12"],
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


class SuspectNode(BaseModel):
    """A node that an incident's diagnoses blamed."""

    node: str
    probability: float = Field(ge=0, le=1, description="The highest that one of its diagnoses gave.")


class Incident(BaseModel):
    """What one job suffered from, over one or many windows."""

    model_config = ConfigDict(json_schema_extra={"examples": [INCIDENT_EXAMPLE]})

    id: str
    job_id: str
    state: State
    failure_mode: SickMode
    cause: str | None = Field(description="Catalogue id; null where no cause could be named.")
    place: list[str] = Field(
        description="Where the cause is now: nodes, else `rank 3` and so on; empty where that is not known."
    )
    uncertain: bool = Field(
        description="Its diagnoses name one cause or place after the other; those here are what they share."
    )
    reopened: int = Field(ge=0, description="Relapses soon after it was resolved.")
    opened_at: datetime = Field(description="When the service opened it.")
    resolved_at: datetime | None
    resolution: Reason | None = Field(
        description="`healthy`: enough healthy windows in a row; "
        "`silence`: no window for too long, so nobody knows."
    )
    began: datetime = Field(description="Begin of the first window, on the job's clock.")
    ended: datetime = Field(description="End of the last window so far, on the job's clock.")
    windows: int = Field(ge=0)
    seconds_lost: float = Field(
        description="Sum over windows of seconds per step times steps; overlapping windows count once."
    )
    gpu_hours_lost: float
    nodes: list[SuspectNode] = Field(description="Nodes blamed in it, the likeliest first.")


class IncidentEvent(BaseModel):
    """A step in an incident's life, as it was announced."""

    kind: Kind
    at: datetime = Field(description="When the service announced it.")
    window_end: datetime = Field(description="End of the window that decided, on the job's clock.")
    diagnosis_id: str | None
    failure_mode: SickMode
    cause: str | None
    previous_cause: str | None
    place: list[str]
    previous_place: list[str]
    reason: Reason | None = Field(description="Of a resolved one.")


class IncidentWindow(BaseModel):
    """One window of an incident, and what its diagnosis said."""

    diagnosis_id: str
    window_start: datetime
    window_end: datetime
    verdict: Verdict = Field(description="`unsure`: the diagnosis abstained.")
    failure_mode: FailureMode
    cause: str | None
    seconds_lost: float
    gpu_hours_lost: float


class Lemon(BaseModel):
    """A node that was at fault in other jobs, too."""

    node: str
    probability: float = Field(ge=0, le=1, description="That it is a lemon; see GET /v1/nodes.")


class IncidentDetail(Incident):
    """An incident with its timeline."""

    timeline: list[IncidentEvent]
    diagnoses: list[IncidentWindow] = Field(description="The newest windows, newest first; at most 200.")
    lemons: list[Lemon] = Field(
        default=[], description="Of `nodes`, those known as lemons; only with RCA_NODE_PRIORS=on."
    )


class IncidentPage(BaseModel):
    """One page of incidents, newest first."""

    items: list[Incident]
    next: str | None = Field(description="Cursor of the next page; null on the last.")


class NotificationData(BaseModel):
    """What happened, and the incident after it."""

    incident: Incident
    event: IncidentEvent


class IncidentNotification(BaseModel):
    """Body of a webhook."""

    type: EventType
    timestamp: AwareDatetime = Field(description="When it happened; later than that it may be sent.")
    data: NotificationData


def moment(seconds: float) -> datetime:
    """Unix seconds as a moment; what no calendar has is cut off."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), 253402300799.0), UTC)


def read_incident(row: IncidentRow, nodes: list[tuple[str, float]]) -> Incident:
    """Make the summary of an incident."""
    fields = {name: getattr(row, name) for name in _COPIED}
    return Incident(
        **fields,
        state="open" if row.open_job_id is not None else "resolved",
        place=row.place or [],
        began=moment(row.began),
        ended=moment(row.ended),
        nodes=[SuspectNode(node=node, probability=probability) for node, probability in nodes],
    )


_COPIED = (
    "id",
    "job_id",
    "failure_mode",
    "cause",
    "uncertain",
    "reopened",
    "opened_at",
    "resolved_at",
    "resolution",
    "windows",
    "seconds_lost",
    "gpu_hours_lost",
)


def read_event(row: IncidentEventRow) -> IncidentEvent:
    """Read one line of a timeline."""
    fields = ("kind", "at", "diagnosis_id", "failure_mode", "cause", "previous_cause", "reason")
    return IncidentEvent(
        **{name: getattr(row, name) for name in fields},
        place=row.place or [],
        previous_place=row.previous_place or [],
        window_end=moment(row.window_end),
    )


def read_window(row: ObservationRow) -> IncidentWindow:
    """Read one window of an incident."""
    fields = ("diagnosis_id", "verdict", "failure_mode", "cause", "seconds_lost", "gpu_hours_lost")
    return IncidentWindow(
        **{name: getattr(row, name) for name in fields},
        window_start=moment(row.window_start),
        window_end=moment(row.window_end),
    )
