"""The messages we send, for the `webhooks` section of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Header, status

from rca_api.incidents.schemas import IncidentNotification
from rca_api.webhooks.schemas import EVENT_TYPES

_MEANING = {
    "incident.opened": "A job became slow or stopped",
    "incident.reopened": "A job relapsed soon after its incident was resolved",
    "incident.cause_changed": "An open incident has another cause",
    "incident.place_changed": "The cause of an open incident is on other nodes or ranks",
    "incident.cause_uncertain": "Diagnoses of an open incident go on contradicting each other",
    "incident.resolved": "A job is healthy again, or silent",
}

Signature = Annotated[
    str,
    Header(
        description="Standard Webhooks: space-separated; one is `v1,` and the base64 of HMAC-SHA256 over "
        "`{webhook-id}.{webhook-timestamp}.{body}` with the base64-decoded part of the secret after `whsec_`."
    ),
]


def document_webhooks(app: FastAPI) -> None:
    """Describe every message; nothing is served here."""
    for event in EVENT_TYPES:
        app.webhooks.post(
            event,
            summary=_MEANING[event],
            tags=["webhooks"],
            operation_id=event.replace(".", "_"),
            status_code=status.HTTP_204_NO_CONTENT,
            responses={
                204: {"description": "Taken; any 2xx will do, and the body is not read."},
                410: {"description": "The receiver is gone: the webhook is switched off."},
            },
        )(_message)


def _message(
    message: IncidentNotification,
    webhook_id: Annotated[str, Header(description="The same in every attempt: what to deduplicate by.")],
    webhook_timestamp: Annotated[
        int, Header(description="Unix seconds of this attempt; refuse what is more than five minutes away.")
    ],
    webhook_signature: Signature,
) -> None:
    """Answer within the timeout (10 s unless set otherwise); redirects are not followed.

    Anything but 2xx, or none, is tried again after growing pauses; messages about one incident come in order.
    """
