"""Signatures of the Standard Webhooks specification, for which many languages have libraries.

The key is the base64-decoded part of the secret after ``whsec_``. A receiver computes
``base64(HMAC-SHA256(key, "{webhook-id}.{webhook-timestamp}." + body))``. It compares the result in constant
time with the part after ``v1,`` of each signature in ``webhook-signature``, which spaces separate. It also
refuses timestamps that differ from its clock by minutes, so that old messages cannot be sent again.

References
----------
https://www.standardwebhooks.com
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

PREFIX = "whsec_"
_KEY_BYTES = 32


def new_secret() -> str:
    """Make the secret of a webhook."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def headers(secret: str, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Headers that prove the origin and the time of `body`."""
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature(secret, message_id, timestamp, body)}",
    }


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Sign one message."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = f"{message_id}.{timestamp}.".encode() + body
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
