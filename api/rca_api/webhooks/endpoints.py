"""`/v1/webhooks`: subscriptions to incidents, their deliveries, and the messages in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, FastAPI, Header, Path, Query, Request, Response, status
from sqlalchemy import select
from sqlalchemy.orm import Session

from rca_api.incidents.schemas import IncidentNotification
from rca_api.shell.requests.pagination import Paging
from rca_api.shell.requests.problems import COMMON, ProblemError, problem_responses
from rca_api.shell.requests.request_bodies import BODY_PROBLEMS, READ_PROBLEMS, SmallBodies
from rca_api.shell.security.access import Admin
from rca_api.shell.state import State
from rca_api.shell.store.base import now
from rca_api.webhooks import outbox
from rca_api.webhooks.addresses import Policy, Refused
from rca_api.webhooks.delivery import new_secret
from rca_api.webhooks.schemas import (
    EVENT_TYPES,
    CreatedWebhook,
    Delivery,
    DeliveryPage,
    NewWebhook,
    Webhook,
    WebhookChange,
    WebhookPage,
    read_delivery,
    read_webhook,
)
from rca_api.webhooks.tables import DeliveryRow, WebhookRow

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=SmallBodies)

_MEANING = {
    "incident.opened": "A job became slow or stopped",
    "incident.suspected": "A fault without a certain cause, or one that exporters alone show",
    "incident.confirmed": "The cause of a suspected incident is certain",
    "incident.reopened": "A job became slow or stopped again soon after its incident was resolved",
    "incident.cause_changed": "An open incident has another cause",
    "incident.place_changed": "The cause of an open incident is on other nodes or ranks",
    "incident.cause_uncertain": "Diagnoses of an open incident contradict each other",
    "incident.mute_ended": "The mute of an open incident is over",
    "incident.resolved": "A job is healthy again, or sends no windows",
}

Signature = Annotated[
    str,
    Header(
        description="Signatures of Standard Webhooks, separated by spaces. One is `v1,` and the base64 of "
        "the HMAC-SHA256 of `{webhook-id}.{webhook-timestamp}.{body}`. The key is the "
        "base64-decoded part of the secret after `whsec_`."
    ),
]
Id = Annotated[str, Path(max_length=32, pattern="^[0-9a-f]{32}$")]
_LISTED = problem_responses(*COMMON)
_ONE = problem_responses(*COMMON, "not-found")
_GIVEN = problem_responses(*COMMON, *BODY_PROBLEMS)
_CHANGED = problem_responses(*COMMON, *BODY_PROBLEMS, "not-found")


@router.post(
    "",
    status_code=status.HTTP_201_CREATED,
    summary="Subscribe to incidents",
    responses=_GIVEN,
)
def create_webhook(request: Request, response: Response, given: NewWebhook, caller: Admin) -> CreatedWebhook:
    """Create a webhook. Only this answer contains its secret."""
    state = State.of(request)
    _check(state.webhook_policy, given.url)
    once = {"events": list(dict.fromkeys(given.events)), "causes": list(dict.fromkeys(given.causes))}
    row = WebhookRow(**given.model_dump() | once, secret=new_secret(), created_by=caller.id)
    with state.database.session() as session:
        session.add(row)
        session.flush()
        made = CreatedWebhook(**read_webhook(row).model_dump(), secret=row.secret)
    response.headers["Location"] = f"{router.prefix}/{made.id}"
    # The secret must not stay in a cache.
    response.headers["Cache-Control"] = "no-store"
    return made


@router.get("", summary="List webhooks", responses=_LISTED)
def list_webhooks(request: Request, _: Admin, paging: Paging) -> WebhookPage:
    """List webhooks, newest first."""
    with State.of(request).database.reading() as session:
        keys = (WebhookRow.created_at, WebhookRow.id)
        found = paging.read(session, select(WebhookRow), keys, read_webhook)
    return WebhookPage(items=found.items, next=found.next)


@router.get("/{webhook_id}", summary="Show a webhook", responses=_ONE)
def show_webhook(request: Request, webhook_id: Id, _: Admin) -> Webhook:
    """Show a webhook, without its secret."""
    with State.of(request).database.reading() as session:
        return read_webhook(_webhook(session, webhook_id))


@router.patch(
    "/{webhook_id}",
    summary="Change a webhook",
    responses=_CHANGED,
)
def change_webhook(request: Request, webhook_id: Id, given: WebhookChange, _: Admin) -> Webhook:
    """Change the given fields. A new URL also applies to pending deliveries."""
    state = State.of(request)
    if given.url is not None:
        _check(state.webhook_policy, given.url)
    changes = given.model_dump(exclude_unset=True)
    with state.database.session() as session:
        row = _webhook(session, webhook_id)
        _check_key(row, given)
        for name, value in changes.items():
            # Null has a meaning only for the job: all jobs.
            if value is not None or name == "job_id":
                setattr(row, name, value)
        session.flush()
        return read_webhook(row)


@router.delete(
    "/{webhook_id}", status_code=status.HTTP_204_NO_CONTENT, summary="Delete a webhook", responses=_ONE
)
def delete_webhook(request: Request, webhook_id: Id, _: Admin) -> None:
    """Delete a webhook and all its deliveries, also the pending ones."""
    with State.of(request).database.session() as session:
        session.delete(_webhook(session, webhook_id))


@router.get("/{webhook_id}/deliveries", summary="List deliveries of a webhook", responses=_ONE)
def list_deliveries(
    request: Request,
    webhook_id: Id,
    _: Admin,
    paging: Paging,
    state: Annotated[Literal["pending", "delivered", "dead"] | None, Query()] = None,
) -> DeliveryPage:
    """List deliveries, newest first. Deliveries that were given up have the state `dead`."""
    with State.of(request).database.reading() as session:
        _webhook(session, webhook_id)
        statement = select(DeliveryRow).where(DeliveryRow.webhook_id == webhook_id)
        if state is not None:
            statement = statement.where(DeliveryRow.state == state)
        found = paging.read(session, statement, (DeliveryRow.number,), read_delivery)
    return DeliveryPage(items=found.items, next=found.next)


@router.post(
    "/{webhook_id}/deliveries/{delivery_id}/retry",
    status_code=status.HTTP_202_ACCEPTED,
    summary="Send a dead delivery again",
    responses=problem_responses(*COMMON, *READ_PROBLEMS, "not-found", "conflict"),
)
def retry_delivery(request: Request, webhook_id: Id, delivery_id: Id, _: Admin) -> Delivery:
    """Queue a dead delivery again, before later deliveries of its incident."""
    with State.of(request).database.session() as session:
        statement = select(DeliveryRow).where(
            DeliveryRow.webhook_id == webhook_id, DeliveryRow.id == delivery_id
        )
        row = session.scalars(statement.with_for_update()).one_or_none()
        if row is None:
            raise ProblemError("not-found", f"there is no delivery {delivery_id} of this webhook")
        if row.state != "dead":
            raise ProblemError(
                "conflict", f"the delivery is {row.state}; only dead deliveries can be sent again"
            )
        outbox.ready_again(row, now())
        session.flush()
        return read_delivery(row)


def _webhook(session: Session, webhook_id: str) -> WebhookRow:
    row = session.get(WebhookRow, webhook_id)
    if row is None:
        raise ProblemError("not-found", f"there is no webhook {webhook_id}")
    return row


def _check_key(row: WebhookRow, given: WebhookChange) -> None:
    """Keep the key of a PagerDuty service from a URL whose author does not have it."""
    if row.form != "pagerduty" and given.routing_key is not None:
        raise ProblemError("invalid-parameters", "body.routing_key: only the form pagerduty takes it")
    if row.form == "pagerduty" and given.url is not None and given.routing_key is None:
        raise ProblemError("invalid-parameters", "body.routing_key: a new url of this form needs it as well")


def _check(policy: Policy, url: str) -> None:
    try:
        policy.check(url)
    except Refused as error:
        raise ProblemError("invalid-parameters", f"body.url: {error.message}", hint=error.hint) from None


def document_messages(app: FastAPI) -> None:
    """Describe each message in the OpenAPI document."""
    for event in EVENT_TYPES:
        app.webhooks.post(
            event,
            summary=_MEANING[event],
            tags=["webhooks"],
            operation_id=event.replace(".", "_"),
            status_code=status.HTTP_204_NO_CONTENT,
            responses={
                204: {"description": "Accepted. Any 2xx status means the same; the body is not read."},
                410: {"description": "The receiver no longer exists. The webhook is switched off."},
            },
        )(_message)


def _message(
    message: IncidentNotification,
    webhook_id: Annotated[
        str, Header(description="The same in every attempt; use it to recognise duplicates.")
    ],
    webhook_timestamp: Annotated[
        int, Header(description="Unix seconds of this attempt. Refuse times more than five minutes away.")
    ],
    webhook_signature: Signature,
) -> None:
    """Answer within the timeout (10 s by default). Redirects are not followed.

    After any other status, or no answer, the message is sent again with growing pauses. Messages about one
    incident arrive in order.
    """
