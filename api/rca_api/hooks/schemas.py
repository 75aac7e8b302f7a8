"""Alertmanager's webhook message, version 4, and our answer to it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from rca.diagnosis.result import Verdict

MAX_ALERTS = 1000
LabelName = Annotated[str, StringConstraints(min_length=1, max_length=256)]
LabelValue = Annotated[str, StringConstraints(max_length=4096)]
#: Alertmanager writes this moment where an alert has no end.
_NO_TIME = datetime(1, 1, 1, tzinfo=UTC)


class Alert(BaseModel):
    """One alert of a group."""

    model_config = ConfigDict(extra="ignore")

    status: Literal["firing", "resolved"]
    labels: dict[LabelName, LabelValue] = Field(max_length=256)
    startsAt: AwareDatetime = Field(_NO_TIME)  # noqa: N815  (Alertmanager's name)
    fingerprint: str = Field("", max_length=64)


class AlertGroup(BaseModel):
    """What Alertmanager posts to a webhook receiver; other members are ignored."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={
            "examples": [
                {
                    "version": "4",
                    "status": "firing",
                    "receiver": "straggler-rca",
                    "alerts": [
                        {
                            "status": "firing",
                            "labels": {"alertname": "SlowTraining", "job_id": "llama-7b-17"},
                            "startsAt": "2026-11-21T20:00:00Z",
                            "fingerprint": "c4ca4238a0b92382",
                        }
                    ],
                }
            ]
        },
    )

    version: Literal["4"]
    alerts: list[Alert] = Field(min_length=1, max_length=MAX_ALERTS)


class AlertAnswer(BaseModel):
    """What came of the alerts about one job."""

    fingerprints: list[str] = Field(description="The alerts, as Alertmanager names them.")
    state: Literal["diagnosed", "queued", "skipped", "failed"] = Field(
        description="`queued`: the diagnosis goes on. `skipped`: the alert is resolved or names no job. "
        "`failed`: its window cannot be read."
    )
    detail: str | None = Field(default=None, description="Why there is no diagnosis, or no verdict of it.")
    hint: str | None = None
    job_id: str | None = None
    diagnosis_id: str | None = None
    verdict: Verdict | None = None
    headline: str | None = Field(default=None, description="The diagnosis in one line.")
    incident_id: str | None = Field(default=None, description="The open incident of the job.")
    url: str | None = Field(default=None, description="Address of the incident, with RCA_PUBLIC_URL.")


class AlertAnswers(BaseModel):
    """The answer to one message."""

    items: list[AlertAnswer]
