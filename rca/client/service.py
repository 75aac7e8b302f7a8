"""What the clients share: the address, each request with the reading of its answer, and repetition.

Nothing here sends, receives or waits. `Client` and `AsyncClient` do that, each in its own way.
"""

from __future__ import annotations

import functools
import http.client
import json
import os
import random
import ssl
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

from rca.client.refusals import Answer, ServiceError, refusal
from rca.errors import InvalidInput

if TYPE_CHECKING:
    from rca.diagnosis.result import Diagnosis
    from rca.telemetry.window import Window

T = TypeVar("T")

_RETRIED = frozenset({429, 502, 503, 504})
#: With ``Retry-After``: an earlier request with the same idempotency key is not answered yet.
_IN_PROGRESS = 409
_LONGEST_WAIT_SECONDS = 30.0
_SHORTEST_WAIT_SECONDS = 0.1
_LONGEST_KEY = 200
#: What a failed exchange raises, at any point of it.
FAILURES = (OSError, http.client.HTTPException)


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and how the body of its answer is read."""

    method: str
    path: str
    read: Callable[[bytes], T]
    headers: Mapping[str, str]
    body: bytes | None = None


class Service:
    """Address and settings of a service; its methods describe calls.

    Parameters
    ----------
    base_url, timeout_seconds, retries, api_key, headers
        Those of `Client`.

    Raises
    ------
    InvalidInput
        If the address is not one of http or https.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout_seconds: float,
        retries: int,
        api_key: str | None,
        headers: Mapping[str, str] | None,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(f"{base_url!r} is not an http or https address")
        self.host = parts.hostname
        self.secure = parts.scheme == "https"
        self.port = parts.port
        self.timeout_seconds = timeout_seconds
        self.retries = retries
        self._prefix = parts.path.rstrip("/")
        key = api_key or os.environ.get("RCA_API_KEY")
        given = dict(headers or {})
        own_keys = [given.pop(name) for name in list(given) if name.lower() == "idempotency-key"]
        #: The caller's own key for every POST, if the headers hold one.
        self._idempotency_key = own_keys[0] if own_keys else None
        self._headers = ({"Authorization": f"Bearer {key}"} if key else {}) | given

    def diagnose(self, window: Window | str | PathLike[str], idempotency_key: str | None) -> Call[Diagnosis]:
        """Describe the diagnosis of a window; a window at a path is read for it."""
        from rca.diagnosis.result import Diagnosis

        return self._posted_window(window, "application/json", idempotency_key, Diagnosis.model_validate_json)

    def render(
        self, window: Window | str | PathLike[str], media_type: str, idempotency_key: str | None
    ) -> Call[bytes]:
        """Describe a diagnosis that the service writes in `media_type`."""
        return self._posted_window(window, media_type, idempotency_key, bytes)

    def get(self, path: str, media_type: str) -> Call[bytes]:
        """Describe a GET of `path`."""
        return Call("GET", path, bytes, {"Accept": media_type})

    def ready(self) -> Call[dict[str, Any]]:
        """Describe the request for the model in use."""
        return Call("GET", "/readyz", json.loads, {})

    def _posted_window(
        self,
        window: Window | str | PathLike[str],
        media_type: str,
        idempotency_key: str | None,
        read: Callable[[bytes], T],
    ) -> Call[T]:
        import rca
        from rca.telemetry.encodings import arrow
        from rca.telemetry.window import Window

        key = _checked_key(self._idempotency_key if idempotency_key is None else idempotency_key)
        loaded = window if isinstance(window, Window) else rca.read_window(window)
        headers = {"Content-Type": arrow.CONTENT_TYPE, "Accept": media_type, "Idempotency-Key": key}
        return Call("POST", "/v1/diagnoses", read, headers, loaded.to_arrow())

    @functools.cached_property
    def tls(self) -> ssl.SSLContext | None:
        """The check of the service's certificate; None without TLS."""
        if not self.secure:
            return None
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        return context

    def connection(self) -> http.client.HTTPConnection:
        """A connection that is not open yet."""
        if self.secure:
            return http.client.HTTPSConnection(
                self.host, self.port, timeout=self.timeout_seconds, context=self.tls
            )
        return http.client.HTTPConnection(self.host, self.port, timeout=self.timeout_seconds)

    def write(self, connection: http.client.HTTPConnection, call: Call[Any], **headers: str) -> None:
        """Write a call to a connection."""
        connection.request(
            call.method, self._prefix + call.path, call.body, {**self._headers, **call.headers, **headers}
        )

    def unreachable(self, error: Exception) -> ServiceError:
        """Say that an exchange failed."""
        where = f"{self.host}:{self.port}" if self.port else self.host
        reason = (
            "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        )
        return ServiceError(f"the service at {where} cannot be reached: {reason}", code="service-unreachable")


class Tries:
    """The tries of one call: says after each whether the answer is final, and how long to wait if not."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._failed = 0
        self._waited = 0.0

    def after_failure(self, error: Exception) -> float:
        """Seconds to wait after an exchange that failed.

        Raises
        ------
        ServiceError
            If it was the last try, or if no answer came in time.
        """
        if self._failed == self._service.retries or isinstance(error, TimeoutError):
            raise self._service.unreachable(error) from error
        return self._next()

    def after(self, answer: Answer) -> float | None:
        """Seconds to wait before the next try; None if the answer is final.

        Raises
        ------
        RcaError
            If the service refuses and another try would not help.
        """
        if answer.status < 400:
            return None
        retry_after = _retry_after_seconds(answer.headers.get("retry-after"))
        in_progress = answer.status == _IN_PROGRESS and retry_after is not None
        if in_progress and self._waited < self._service.timeout_seconds:
            # Not a failed try: the answer to the try before is on its way.
            wait = max(retry_after or 0.0, _SHORTEST_WAIT_SECONDS)
            self._waited += wait
            return wait
        if answer.status not in _RETRIED or self._failed == self._service.retries:
            raise refusal(answer)
        return self._next(retry_after)

    def _next(self, named: float | None = None) -> float:
        # Jittered, so that many hooks do not return at the same moment.
        backoff = 0.25 * 2.0**self._failed * random.uniform(0.5, 1.5)  # noqa: S311  (not a secret)
        self._failed += 1
        return named or backoff


def received(response: http.client.HTTPResponse) -> Answer:
    """Read an answer to its end."""
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, headers, response.read())


def _checked_key(given: str | None) -> str:
    """The caller's key, or a new one.

    Raises
    ------
    InvalidInput
        If the service would refuse the key.
    """
    if given is None:
        return uuid.uuid4().hex
    if not 1 <= len(given) <= _LONGEST_KEY or not all("!" <= character <= "~" for character in given):
        raise InvalidInput(f"an idempotency key needs 1 to {_LONGEST_KEY} visible ASCII characters")
    return given


def _retry_after_seconds(header: str | None) -> float | None:
    return min(float(header), _LONGEST_WAIT_SECONDS) if header is not None and header.isdecimal() else None
