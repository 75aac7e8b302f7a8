"""A client of the HTTP service, on the standard library alone.

::

    from rca.client import Client

    diagnosis = Client("http://127.0.0.1:8080").diagnose("data/windows/healthy")
"""

from __future__ import annotations

import http.client
import json
import os
import random
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rca.errors import BundleError, InvalidInput, InvalidTrace, InvalidWindow, RcaError, SourceError, TooLarge

if TYPE_CHECKING:
    from rca.diagnosis.result import Diagnosis
    from rca.telemetry.window import Window

_RETRIED = frozenset({429, 502, 503, 504})
#: With ``Retry-After``: an earlier request with the same idempotency key is not answered yet.
_IN_PROGRESS = 409
_LONGEST_WAIT_SECONDS = 30.0
_SHORTEST_WAIT_SECONDS = 0.1
_LONGEST_KEY = 200
_KNOWN: dict[str, type[RcaError]] = {
    kind.code: kind for kind in (InvalidInput, InvalidTrace, TooLarge, BundleError)
}


class ServiceError(SourceError):
    """The service could not be reached, or refused for a reason that is not in the window.

    Attributes
    ----------
    code : str
        The problem's code, or ``service-unreachable``.
    status : int or None
        HTTP status, if there was an answer.
    """

    def __init__(
        self, message: str, *, code: str, status: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.status = status


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class Client:
    """Posts windows to a service and raises its refusals as the library's own errors.

    Parameters
    ----------
    base_url : str
        For example ``http://127.0.0.1:8080``; a path prefix is kept.
    timeout_seconds : float
        For connecting and for each wait for data.
    retries : int
        Further tries after 429, 502, 503, 504 or a failed connection, with growing, jittered waits
        or the wait of ``Retry-After``. Every try of a POST has the same ``Idempotency-Key``, so the
        service stores one diagnosis even if it answered a try whose connection failed.
    api_key : str, optional
        An API key or bearer token; ``RCA_API_KEY`` of the environment if not given.
    headers : mapping of str to str, optional
        Sent with every request, for example for a proxy that authenticates.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout_seconds: float = 60.0,
        retries: int = 3,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(f"{base_url!r} is not an http or https address")
        self._host, self._port = parts.hostname, parts.port
        self._secure = parts.scheme == "https"
        self._prefix = parts.path.rstrip("/")
        self._timeout = timeout_seconds
        self._retries = retries
        key = api_key or os.environ.get("RCA_API_KEY")
        given = dict(headers or {})
        own_keys = [given.pop(name) for name in list(given) if name.lower() == "idempotency-key"]
        #: The caller's own key for every POST, if the headers hold one.
        self._idempotency_key = own_keys[0] if own_keys else None
        self._headers = ({"Authorization": f"Bearer {key}"} if key else {}) | given

    def diagnose(
        self, window: Window | str | PathLike[str], *, idempotency_key: str | None = None
    ) -> Diagnosis:
        """Diagnose a window, or the window at a path, on the service.

        Parameters
        ----------
        window : Window, str or PathLike
        idempotency_key : str, optional
            1 to 200 visible ASCII characters, new for each window. A call that repeats an earlier one
            with its key gets the stored answer, also from another process. Random if not given.

        Raises
        ------
        InvalidWindow, InvalidInput, TooLarge
            As `rca.diagnose` would, with the service's evidence.
        ServiceError
            The service cannot be reached or failed.
        """
        from rca.diagnosis.result import Diagnosis

        content = self.render(window, "application/json", idempotency_key=idempotency_key)
        return Diagnosis.model_validate_json(content)

    def render(
        self,
        window: Window | str | PathLike[str],
        media_type: str = "text/markdown",
        *,
        idempotency_key: str | None = None,
    ) -> bytes:
        """Diagnose as `diagnose` does and return the answer as the service writes it in `media_type`."""
        import rca
        from rca.telemetry.encodings import arrow
        from rca.telemetry.window import Window

        loaded = window if isinstance(window, Window) else rca.read_window(window)
        headers = {"Content-Type": arrow.CONTENT_TYPE, "Accept": media_type}
        headers["Idempotency-Key"] = _checked_key(
            self._idempotency_key if idempotency_key is None else idempotency_key
        )
        return self._request("POST", "/v1/diagnoses", loaded.to_arrow(), headers)

    def get(self, path: str, media_type: str = "application/json") -> bytes:
        """Return what the service answers to a GET of `path`, such as ``/v1/incidents?state=open``.

        Raises
        ------
        ServiceError
            The service cannot be reached, or has no such thing.
        """
        return self._request("GET", path, None, {"Accept": media_type})

    def ready(self) -> dict[str, Any]:
        """Return the model in use; raises if the service cannot diagnose."""
        answer: dict[str, Any] = json.loads(self._request("GET", "/readyz", None, {}))
        return answer

    def _request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        attempt, waited = 0, 0.0
        while True:
            last = attempt == self._retries
            try:
                answer = self._once(method, path, body, headers)
            except (OSError, http.client.HTTPException) as error:
                if last or isinstance(error, TimeoutError):
                    raise self._unreachable(error) from error
                wait = _backoff(attempt)
            else:
                if answer.status < 400:
                    return answer.body
                retry_after = _retry_after_seconds(answer.headers.get("retry-after"))
                if answer.status == _IN_PROGRESS and retry_after is not None and waited < self._timeout:
                    # Not a failed try: the answer to the try before is on its way.
                    wait = max(retry_after, _SHORTEST_WAIT_SECONDS)
                    waited += wait
                    time.sleep(wait)
                    continue
                if answer.status not in _RETRIED or last:
                    raise _refusal(answer)
                wait = retry_after or _backoff(attempt)
            attempt += 1
            time.sleep(wait)

    def _once(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> _Answer:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout)
        try:
            try:
                connection.request(method, self._prefix + path, body, {**self._headers, **headers})
            except (BrokenPipeError, ConnectionResetError):
                # A service that refuses a body early closes its end; its reason may still be readable.
                if connection.sock is None:
                    raise
            response = connection.getresponse()
            received = {name.lower(): value for name, value in response.getheaders()}
            return _Answer(response.status, received, response.read())
        finally:
            connection.close()

    def _unreachable(self, error: Exception) -> ServiceError:
        where = f"{self._host}:{self._port}" if self._port else self._host
        reason = (
            "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        )
        return ServiceError(f"the service at {where} cannot be reached: {reason}", code="service-unreachable")


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


def _backoff(attempt: int) -> float:
    """Seconds before the next try; jittered so that many hooks do not return at the same moment."""
    return 0.25 * 2.0**attempt * random.uniform(0.5, 1.5)  # noqa: S311  (not a secret)


def _retry_after_seconds(header: str | None) -> float | None:
    return min(float(header), _LONGEST_WAIT_SECONDS) if header is not None and header.isdecimal() else None


def _place(problem: Mapping[str, Any]) -> str:
    """Where the service found the fault; it begins the problem's detail."""
    table, column = problem.get("table", ""), problem.get("column")
    return table if column is None else f"{table}.{column}"


def _refusal(answer: _Answer) -> RcaError:
    """Turn a problem document back into the error it was made from."""
    try:
        problem = json.loads(answer.body)
        code, detail = str(problem["code"]), str(problem["detail"])
    except (ValueError, TypeError, KeyError):
        return ServiceError(
            f"HTTP {answer.status} without a problem document; is this the right address?",
            code="http-error",
            status=answer.status,
        )
    hint = problem.get("hint")
    if code == InvalidWindow.code:
        return InvalidWindow(
            detail.removeprefix(_place(problem) + ": "),
            table=problem.get("table", "job"),
            column=problem.get("column"),
            rows=problem.get("rows", ()),
            n_rows=problem.get("n_rows", 0),
            expected=problem.get("expected", ""),
            hint=hint,
        )
    known = _KNOWN.get(code)
    return (
        known(detail, hint=hint)
        if known
        else ServiceError(detail, code=code, status=answer.status, hint=hint)
    )
