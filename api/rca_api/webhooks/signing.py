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
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping

PREFIX = "whsec_"
_KEY_BYTES = 32
#: Seconds a receiver should allow between its clock and the timestamp.
TOLERANCE_SECONDS = 300.0


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


def verified(
    secret: str, received: Mapping[str, str], body: bytes, now: float, tolerance: float = TOLERANCE_SECONDS
) -> bool:
    """Whether a message is ours and recent: what a receiver does.

    Parameters
    ----------
    received : mapping
        Headers, with names in lower case.
    now : float
        Unix seconds.
    """
    try:
        timestamp = int(received["webhook-timestamp"])
        expected = signature(secret, received["webhook-id"], timestamp, body)
        given = received["webhook-signature"].split()
    except (KeyError, ValueError, binascii.Error):
        return False
    mine = [each.removeprefix("v1,") for each in given if each.startswith("v1,")]
    fits = any(hmac.compare_digest(each.encode(), expected.encode()) for each in mine)
    return fits and abs(now - timestamp) <= tolerance
