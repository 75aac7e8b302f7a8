"""The HTTP request of a delivery, with a time limit for the whole exchange."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from rca_api.webhooks.addresses import Policy, Refused, Resolve, WebhookTarget, look_up
from rca_api.webhooks.outbox import ClaimedMessage
from rca_api.webhooks.signing import headers

USER_AGENT = "straggler-rca"
_GONE = 410
#: 4xx statuses that are about the time, not about the message.
_PASSING = (408, 425, 429)


@dataclass(frozen=True)
class Outcome:
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

    def send(self, claimed: ClaimedMessage, timestamp: int) -> Outcome:
        """Send a delivery once; failures of the receiver or the network are outcomes, not exceptions."""
        try:
            target = self.policy.resolve(claimed.url, self.look_up)
        except Refused as error:
            return Outcome(None, error.message)
        except (OSError, UnicodeError):
            return Outcome(None, "the host was not found")
        sent = {
            "Host": target.authority,
            "Content-Type": "application/json",
            "User-Agent": USER_AGENT,
            "Connection": "close",
            **headers(claimed.secret, claimed.id, timestamp, claimed.body),
        }
        connection = _connection(target, target.address(claimed.attempt), self.timeout_seconds)
        return self._exchanged(connection, target.request, claimed.body, sent)

    def _exchanged(self, connection: HTTPConnection, path: str, body: bytes, sent: dict[str, str]) -> Outcome:
        overdue = threading.Event()

        def cut() -> None:
            overdue.set()
            _shut(connection)

        timer = threading.Timer(self.timeout_seconds, cut)
        timer.daemon = True
        timer.start()
        try:
            connection.request("POST", path, body=body, headers=sent, preload_content=False)
            response = connection.getresponse()
            if overdue.is_set():
                # A connection cut in the middle of the headers looks like their end.
                return self._late()
            # The body is not needed, so it is not read, however long it is.
            return _judged(response.status, response.headers.get("Retry-After"))
        except (HTTPError, OSError, ValueError) as error:
            if overdue.is_set() or isinstance(error, TimeoutError):
                return self._late()
            return Outcome(None, f"{type(error).__name__}: the connection failed")
        except Exception as error:
            # http.client raises many types for answers that are not HTTP.
            return Outcome(None, f"{type(error).__name__}: the answer is not HTTP")
        finally:
            timer.cancel()
            connection.close()

    def _late(self) -> Outcome:
        return Outcome(None, f"no answer within {self.timeout_seconds:g} s")


def _connection(target: WebhookTarget, address: str, timeout: float) -> HTTPConnection:
    """A connection to the checked address that verifies the certificate of the host name."""
    if target.scheme == "http":
        return HTTPConnection(address, target.port, timeout=timeout)
    return HTTPSConnection(
        address,
        target.port,
        timeout=timeout,
        server_hostname=target.host,
        assert_hostname=target.host,
        cert_reqs="CERT_REQUIRED",
    )


def _shut(connection: HTTPConnection) -> None:
    link = getattr(connection, "sock", None)
    if link is not None:
        try:
            link.shutdown(socket.SHUT_RDWR)
        except OSError:
            # Closed meanwhile.
            return


def _judged(status: int, retry_after: str | None) -> Outcome:
    if 200 <= status < 300:
        return Outcome(status, None)
    wait = float(retry_after) if retry_after is not None and retry_after.strip().isdecimal() else None
    what = "redirects are not followed" if 300 <= status < 400 else "the receiver refused it"
    refused = 300 <= status < 500 and status not in _PASSING
    return Outcome(status, f"status {status}: {what}", wait, refused=refused, gone=status == _GONE)
