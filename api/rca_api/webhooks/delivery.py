"""The HTTP request of a delivery, with a time limit for the whole exchange."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rca.deadline import Deadline
from rca.timed_http import BrokenAnswerError, Exchange
from rca_api.webhooks.addresses import Policy, Refused, Resolve, look_up
from rca_api.webhooks.outbox import ClaimedMessage

if TYPE_CHECKING:
    import httpx2


_GONE = 410
#: 4xx statuses that are about the time, not about the message.
_PASSING = (408, 425, 429)


@dataclass(frozen=True)
class AttemptOutcome:
    """Outcome of one attempt.

    Attributes
    ----------
    status : int or None
        HTTP status, if there was an answer.
    error : str or None
        None if the receiver accepted the message.
    retry_after_seconds : float or None
        From the header ``Retry-After``.
    refused : bool
        The receiver rejects this message; later attempts will hardly succeed.
    gone : bool
        The receiver no longer exists.
    """

    status: int | None
    error: str | None
    retry_after_seconds: float | None = None
    refused: bool = False
    gone: bool = False


@dataclass(frozen=True)
class Sender:
    """Sends deliveries.

    Attributes
    ----------
    timeout_seconds : float
        Limit for the whole exchange, also if the receiver keeps sending single bytes.
    """

    policy: Policy
    timeout_seconds: float
    look_up: Resolve = look_up

    def send(self, claimed: ClaimedMessage, timestamp: int) -> AttemptOutcome:
        """Send a delivery once; failures of the receiver or the network are outcomes, not exceptions."""
        try:
            target = self.policy.resolve(claimed.url, self.look_up)
        except Refused as error:
            return AttemptOutcome(None, error.message)
        except (OSError, UnicodeError):
            return AttemptOutcome(None, "the host was not found")
        sent = {
            "Host": target.authority,
            "Content-Type": "application/json",
            **headers(claimed.secret, claimed.id, timestamp, claimed.body),
        }
        # To the checked address; the certificate is that of the host.
        exchange = Exchange(
            "POST",
            target.url(claimed.attempt),
            _judged,
            Deadline.after(self.timeout_seconds).left,
            headers=sent,
            body=claimed.body,
            server_name=target.host.rstrip("."),
        )
        try:
            return exchange.wait()
        except TimeoutError:
            return AttemptOutcome(None, f"no answer within {self.timeout_seconds:g} s")
        except OSError as error:
            what = (
                "the answer is not HTTP" if isinstance(error, BrokenAnswerError) else "the connection failed"
            )
            return AttemptOutcome(None, f"{type(error).__name__}: {what}")


def _judged(response: httpx2.Response) -> AttemptOutcome:
    """Judge an answer by its head. Its body is not needed, so it is not read, however long it is."""
    status, retry_after = response.status_code, response.headers.get("Retry-After")
    if 200 <= status < 300:
        return AttemptOutcome(status, None)
    wait = float(retry_after) if retry_after is not None and retry_after.strip().isdecimal() else None
    what = "redirects are not followed" if 300 <= status < 400 else "the receiver refused it"
    refused = 300 <= status < 500 and status not in _PASSING
    return AttemptOutcome(status, f"status {status}: {what}", wait, refused=refused, gone=status == _GONE)


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
