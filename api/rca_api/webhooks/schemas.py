"""Webhooks and deliveries in requests and answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self, get_args

from pydantic import BaseModel, Field, StringConstraints, field_validator, model_validator

from rca.window.causes import SPECS
from rca_api.incidents.schemas import EventType
from rca_api.shell.requests.parameters import GivenBody, Line, Name
from rca_api.shell.store.base import values_of
from rca_api.webhooks.messages import Form
from rca_api.webhooks.tables import DeliveryRow, WebhookRow

EVENT_TYPES: tuple[EventType, ...] = get_args(EventType)
Url = Annotated[str, StringConstraints(min_length=1, max_length=2048, pattern=r"^[\x21-\x7e]+$")]
_FORM = (
    "Form of the messages. `standard`: ours, signed. `slack`: an incoming webhook of Slack. `alertmanager`: "
    "`/api/v2/alerts` of Alertmanager. `pagerduty`: `https://events.pagerduty.com/v2/enqueue`."
)
CauseId = Annotated[str, Field(json_schema_extra={"enum": list(SPECS)})]


class WebhookFields(GivenBody):
    @field_validator("causes", check_fields=False)
    @classmethod
    def _known(cls, causes: list[str] | None) -> list[str] | None:
        for cause in causes or ():
            if cause not in SPECS:
                raise ValueError(f"{cause!r} is not in the cause catalogue")
        return causes


RoutingKey = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[0-9A-Za-z]+$")]


class NewWebhook(WebhookFields):
    """A new webhook: its address and its events."""

    url: Url = Field(
        description="Address of the receiver. It must be https and public unless the operator allows more.",
        examples=["https://hooks.example.org/rca"],
    )
    events: list[EventType] = Field(list(EVENT_TYPES), min_length=1, max_length=len(EVENT_TYPES))
    job_id: Name | None = Field(None, description="Only incidents of this job.")
    causes: list[CauseId] = Field(
        [], max_length=32, description="Only incidents with these causes; empty: all."
    )
    description: Line = ""
    form: Form = Field("standard", description=_FORM)
    routing_key: RoutingKey | None = Field(
        None, description="Integration key of a PagerDuty service, for the form `pagerduty` only."
    )

    @model_validator(mode="after")
    def _has_its_key(self) -> Self:
        if (self.form == "pagerduty") != (self.routing_key is not None):
            raise ValueError("routing_key: the form pagerduty needs it, and no other form takes it")
        return self


class WebhookChange(WebhookFields):
    """Fields to change; omitted fields stay."""

    url: Url | None = None
    events: list[EventType] | None = Field(None, min_length=1, max_length=len(EVENT_TYPES))
    job_id: Name | None = Field(None, description="null: incidents of all jobs.")
    causes: list[CauseId] | None = Field(None, max_length=32)
    description: Line | None = None
    routing_key: RoutingKey | None = Field(
        None, description="New key of a PagerDuty service. A new URL needs the key as well."
    )
    active: bool | None = Field(
        None, description="While false, nothing is sent or queued; pending deliveries stay pending."
    )


class Webhook(BaseModel):
    """A webhook, without its secret."""

    id: str
    created_at: datetime
    created_by: str | None
    url: str
    events: list[EventType]
    job_id: str | None
    causes: list[str]
    description: str
    active: bool = Field(description="Also false after the receiver answered 410 Gone.")
    form: Form = Field(description=_FORM)


class CreatedWebhook(Webhook):
    """A new webhook with its secret, which no other answer contains."""

    secret: str = Field(
        description="Key of the signatures (Standard Webhooks). The header `webhook-signature` is `v1,` and "
        "the base64 of the HMAC-SHA256 of `{webhook-id}.{webhook-timestamp}.{body}`. The key is the "
        "base64-decoded part after `whsec_`.",
        examples=["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo="],
    )


class WebhookPage(BaseModel):
    """One page of webhooks, newest first."""

    items: list[Webhook]
    next: str | None


class Delivery(BaseModel):
    """One event for one webhook."""

    id: str = Field(description="Header `webhook-id`; the same in every attempt, to recognise duplicates.")
    webhook_id: str
    event: EventType
    incident_id: str
    state: Literal["pending", "delivered", "dead"] = Field(
        description="`dead`: given up. `POST .../retry` sends it again."
    )
    attempts: int = Field(
        description="Attempts that have begun, one in progress included. `POST .../retry` sets it to 0."
    )
    created_at: datetime
    next_attempt_at: datetime | None = Field(description="Null unless the delivery is pending.")
    finished_at: datetime | None
    last_status: int | None = Field(description="HTTP status of the last answer.")
    last_error: str | None


class DeliveryPage(BaseModel):
    """One page of deliveries, newest first."""

    items: list[Delivery]
    next: str | None


def read_webhook(row: WebhookRow) -> Webhook:
    """Read a webhook without its secret."""
    return Webhook(**values_of(Webhook, row))


def read_delivery(row: DeliveryRow) -> Delivery:
    """Read a delivery without its body."""
    due = row.next_attempt_at if row.state == "pending" else None
    return Delivery(**values_of(Delivery, row) | {"next_attempt_at": due})
