"""`/v1/webhooks`: who is told of incidents, and what became of each delivery."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response, Security, status
from sqlalchemy import select
from sqlalchemy.orm import Session

from rca_api.pagination import Cursor, Limit, link_next, page
from rca_api.problems import ProblemError, problem_responses
from rca_api.request_bodies import BODY_PROBLEMS, SmallBodies
from rca_api.security.access import requires
from rca_api.security.principal import Principal, Scope
from rca_api.state import State
from rca_api.store.base import now
from rca_api.webhooks import outbox
from rca_api.webhooks.addresses import Policy, Refused
from rca_api.webhooks.schemas import (
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
from rca_api.webhooks.signing import new_secret
from rca_api.webhooks.tables import DeliveryRow, WebhookRow

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=SmallBodies)

Admin = Annotated[Principal, Security(requires(Scope.admin))]
Id = Annotated[str, Path(max_length=32, pattern="^[0-9a-f]{32}$")]
_COMMON = ("invalid-parameters", "unauthenticated", "forbidden", "rate-limited", "store-unavailable")
_LISTED = problem_responses(*_COMMON)
_ONE = problem_responses(*_COMMON, "not-found")
_GIVEN = problem_responses(*_COMMON, *BODY_PROBLEMS)
_CHANGED = problem_responses(*_COMMON, *BODY_PROBLEMS, "not-found")


@router.post(
    "",
    status_code=status.HTTP_201_CREATED,
    summary="Subscribe to incidents",
    responses=problem_responses(*_COMMON, *BODY_PROBLEMS),
)
def create_webhook(request: Request, response: Response, given: NewWebhook, caller: Admin) -> CreatedWebhook:
    """Add a webhook. Its secret is in this answer and in no other."""
    state = State.of(request)
    _check(state.webhook_policy, given.url)
    row = WebhookRow(
        url=given.url,
        secret=new_secret(),
        events=list(dict.fromkeys(given.events)),
        job_id=given.job_id,
        causes=list(dict.fromkeys(given.causes)),
        description=given.description,
        active=True,
        created_by=caller.id,
    )
    with state.database.session() as session:
        session.add(row)
        session.flush()
        made = CreatedWebhook(**read_webhook(row).model_dump(), secret=row.secret)
    response.headers["Location"] = f"{router.prefix}/{made.id}"
    # No cache on the way may keep the secret.
    response.headers["Cache-Control"] = "no-store"
    return made


@router.get("", summary="List webhooks", responses=_LISTED)
def list_webhooks(
    request: Request, response: Response, _: Admin, limit: Limit = 50, cursor: Cursor = None
) -> WebhookPage:
    """List webhooks, newest first."""
    with State.of(request).database.reading() as session:
        found = page(
            session,
            select(WebhookRow),
            keys=(WebhookRow.created_at, WebhookRow.id),
            limit=limit,
            cursor=cursor,
            read=read_webhook,
        )
    link_next(request, response, found.next)
    return WebhookPage(items=found.items, next=found.next)


@router.get("/{webhook_id}", summary="Show a webhook", responses=_ONE)
def show_webhook(request: Request, webhook_id: Id, _: Admin) -> Webhook:
    """Show a webhook, without its secret."""
    with State.of(request).database.reading() as session:
        return read_webhook(_webhook(session, webhook_id))


@router.patch(
    "/{webhook_id}",
    summary="Change a webhook",
    responses=problem_responses(*_COMMON, *BODY_PROBLEMS, "not-found"),
)
def change_webhook(request: Request, webhook_id: Id, given: WebhookChange, _: Admin) -> Webhook:
    """Change what is given. A new URL holds for deliveries that wait, too."""
    state = State.of(request)
    if given.url is not None:
        _check(state.webhook_policy, given.url)
    changes = given.model_dump(exclude_unset=True)
    with state.database.session() as session:
        row = _webhook(session, webhook_id)
        for name, value in changes.items():
            # Only the job has "none" as a meaning of its own.
            if value is not None or name == "job_id":
                setattr(row, name, value)
        session.flush()
        return read_webhook(row)


@router.delete(
    "/{webhook_id}", status_code=status.HTTP_204_NO_CONTENT, summary="Delete a webhook", responses=_ONE
)
def delete_webhook(request: Request, webhook_id: Id, _: Admin) -> None:
    """Delete a webhook with all its deliveries, those that wait included."""
    with State.of(request).database.session() as session:
        session.delete(_webhook(session, webhook_id))


@router.get("/{webhook_id}/deliveries", summary="List deliveries of a webhook", responses=_ONE)
def list_deliveries(
    request: Request,
    response: Response,
    webhook_id: Id,
    _: Admin,
    state: Annotated[Literal["pending", "delivered", "dead"] | None, Query()] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> DeliveryPage:
    """List deliveries, newest first; `state=dead` are those that were given up."""
    with State.of(request).database.reading() as session:
        _webhook(session, webhook_id)
        statement = select(DeliveryRow).where(DeliveryRow.webhook_id == webhook_id)
        if state is not None:
            statement = statement.where(DeliveryRow.state == state)
        keys = (DeliveryRow.number,)
        found = page(session, statement, keys=keys, limit=limit, cursor=cursor, read=read_delivery)
    link_next(request, response, found.next)
    return DeliveryPage(items=found.items, next=found.next)


@router.post(
    "/{webhook_id}/deliveries/{delivery_id}/retry",
    status_code=status.HTTP_202_ACCEPTED,
    summary="Send a dead delivery again",
    responses=problem_responses(*_COMMON, *BODY_PROBLEMS, "not-found", "conflict"),
)
def retry_delivery(request: Request, webhook_id: Id, delivery_id: Id, _: Admin) -> Delivery:
    """Queue a delivery that was given up once more, before the younger ones of its incident."""
    with State.of(request).database.session() as session:
        statement = select(DeliveryRow).where(
            DeliveryRow.webhook_id == webhook_id, DeliveryRow.id == delivery_id
        )
        row = session.scalars(statement.with_for_update()).one_or_none()
        if row is None:
            raise ProblemError("not-found", f"there is no delivery {delivery_id} of this webhook")
        if row.state != "dead":
            raise ProblemError("conflict", f"the delivery is {row.state}; only dead ones are sent again")
        outbox.ready_again(row, now())
        session.flush()
        return read_delivery(row)


def _webhook(session: Session, webhook_id: str) -> WebhookRow:
    row = session.get(WebhookRow, webhook_id)
    if row is None:
        raise ProblemError("not-found", f"there is no webhook {webhook_id}")
    return row


def _check(policy: Policy, url: str) -> None:
    try:
        policy.check(url)
    except Refused as error:
        raise ProblemError("invalid-parameters", f"body.url: {error.message}", hint=error.hint) from None
