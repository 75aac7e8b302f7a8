"""One HTTP request of one webhook delivery, with an end in any case."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from rca_api.webhooks.addresses import Policy, Refused, Resolve, Target, look_up
from rca_api.webhooks.outbox import Claimed
from rca_api.webhooks.signing import headers

USER_AGENT = "straggler-rca"
_GONE = 410
#: Answers of the 4xx that speak of the moment, not of the message.
_PASSING = (408, 425, 429)


@dataclass(frozen=True)
class Outcome:
    """How one attempt ended.

    Attributes
    ----------
    status : int or None
        Of the HTTP answer, if one came.
    error : str or None
        None if the receiver took it.
    retry_after_seconds : float or None
        What the receiver asked for.
    refused : bool
        The receiver does not want this message, and will hardly want it later.
    gone : bool
        The receiver says that it is there no more.
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
        For the whole exchange: a receiver that answers a byte now and then is cut off as well.
    """

    policy: Policy
    timeout_seconds: float
    look_up: Resolve = look_up

    def send(self, claimed: Claimed, timestamp: int) -> Outcome:
        """Send one delivery once; never raises for what a receiver or a network may do."""
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
                # Headers that were cut off look as if they had ended.
                return self._late()
            # The body of the answer says nothing we need; it is not read, however long it is.
            return _judged(response.status, response.headers.get("Retry-After"))
        except (HTTPError, OSError, ValueError) as error:
            if overdue.is_set() or isinstance(error, TimeoutError):
                return self._late()
            return Outcome(None, f"{type(error).__name__}: the connection failed")
        except Exception as error:
            # http.client raises many kinds for answers that are not HTTP.
            return Outcome(None, f"{type(error).__name__}: the answer is not HTTP")
        finally:
            timer.cancel()
            connection.close()

    def _late(self) -> Outcome:
        return Outcome(None, f"no answer within {self.timeout_seconds:g} s")


def _connection(target: Target, address: str, timeout: float) -> HTTPConnection:
    """Connect to the checked address, but speak to the host: its certificate has to be the host's."""
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
    held = getattr(connection, "sock", None)
    if held is not None:
        try:
            held.shutdown(socket.SHUT_RDWR)
        except OSError:
            # It was closed meanwhile, which is as good.
            return


def _judged(status: int, retry_after: str | None) -> Outcome:
    if 200 <= status < 300:
        return Outcome(status, None)
    wait = float(retry_after) if retry_after is not None and retry_after.strip().isdecimal() else None
    what = "redirects are not followed" if 300 <= status < 400 else "the receiver refused it"
    refused = 300 <= status < 500 and status not in _PASSING
    return Outcome(status, f"status {status}: {what}", wait, refused=refused, gone=status == _GONE)
