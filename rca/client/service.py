"""What the clients share: the address, each request with the reading of its answer, and repetition.

Nothing here waits: `Client` and `AsyncClient` do, each in its own way.
"""

from __future__ import annotations

import math
import os
import random
import re
import ssl
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import orjson

from rca.client.refusals import ServiceError, refusal, unreadable
from rca.errors import InvalidInput
from rca.timed_http import Answer, Exchange, whole

if TYPE_CHECKING:
    from rca.diagnosis.result import Diagnosis
    from rca.window.window import Window

T = TypeVar("T")

_RETRIED = frozenset({429, 502, 503, 504})
#: With ``Retry-After``: an earlier request with the same idempotency key is not answered yet.
_IN_PROGRESS = 409
_MAX_WAIT_SECONDS = 30.0
_MIN_WAIT_SECONDS = 0.1
_MAX_KEY_LENGTH = 200
#: Largest answer: a service stores no larger windows by default.
MAX_ANSWER_BYTES = 256 << 20


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and how the body of its answer is read."""

    method: str
    path: str
    read: Callable[[bytes], T]
    headers: Mapping[str, str]
    body: bytes | None = None


class Service:
    """The address and the settings of a service; its methods describe calls.

    Parameters
    ----------
    base_url : str
        For example ``http://127.0.0.1:8080``; a path prefix is kept.
    timeout_seconds : float
        For connecting and sending the request, and again for the whole answer.
    retries : int
        Further tries after 429, 502, 503, 504 or a failed connection, with growing, jittered waits
        or the wait of ``Retry-After``. Every try of a POST has the same ``Idempotency-Key``, so the
        service stores one diagnosis even if it answered a try whose connection failed.
    api_key : str, optional
        An API key or bearer token; ``RCA_API_KEY`` of the environment if not given.
    headers : mapping of str to str, optional
        Sent with every request, for example for a proxy that authenticates. An ``Authorization``
        header takes the place of the key.

    Raises
    ------
    InvalidInput
        If a parameter cannot be used. The message has neither the key nor a password of the address.
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
        if not 0.0 < timeout_seconds < math.inf:
            raise InvalidInput(f"timeout_seconds is {timeout_seconds!r}, and must be more than 0")
        if not retries >= 0:
            raise InvalidInput(f"retries is {retries!r}, and must be 0 or more")
        parts = _checked_address(base_url)
        self._address = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self.host = parts.netloc
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.timeout_seconds = timeout_seconds
        self.retries = retries
        given = _checked_headers(headers or {})
        #: The caller's own key for every POST, if the headers hold one.
        self._idempotency_key = given.pop("idempotency-key", None)
        key = (api_key or os.environ.get("RCA_API_KEY") or "").strip()
        if not _is_visible(key):
            raise InvalidInput(
                "the API key has a character that is not visible ASCII", hint="check api_key or RCA_API_KEY"
            )
        self._headers = ({"authorization": f"Bearer {key}"} if key else {}) | given
        #: When the service gave its last answer, Unix seconds on its clock; None if it did not say.
        self.answered_at: float | None = None

    def _diagnosis(
        self, window: Window | str | PathLike[str], idempotency_key: str | None
    ) -> Call[Diagnosis]:
        from rca.diagnosis.result import Diagnosis

        return self._posted(window, "application/json", idempotency_key, Diagnosis.model_validate_json)

    def _rendered(
        self, window: Window | str | PathLike[str], media_type: str, idempotency_key: str | None
    ) -> Call[bytes]:
        return self._posted(window, media_type, idempotency_key, _text)

    def _got(self, path: str, media_type: str) -> Call[bytes]:
        return Call("GET", _checked_path(path), bytes, _checked_headers({"Accept": media_type}))

    def _document(self, method: str, path: str, document: Mapping[str, Any]) -> Call[dict[str, Any]]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        return Call(method, _checked_path(path), _json_object, headers, orjson.dumps(dict(document)))

    def _telemetry(self, rows: Window) -> Call[dict[str, Any]]:
        from rca.window.encodings import arrow

        headers = {"Content-Type": arrow.CONTENT_TYPE, "Accept": "application/json"}
        path = f"{_job_path(rows.job.job_id)}/telemetry"
        return Call("POST", path, _json_object, headers, rows.to_arrow())

    def _job(self, job_id: str) -> Call[dict[str, Any]]:
        return Call("GET", f"{_job_path(job_id)}/telemetry", _json_object, {"Accept": "application/json"})

    def _end(self, job_id: str, reason: str | None) -> Call[dict[str, Any]]:
        query = "" if reason is None else f"?{urlencode({'reason': reason})}"
        path = f"{_job_path(job_id)}/end{query}"
        return Call("POST", path, _json_object, {"Accept": "application/json"}, b"")

    def _readiness(self) -> Call[dict[str, Any]]:
        return Call("GET", "/readyz", _json_object, {})

    def _posted(
        self,
        window: Window | str | PathLike[str],
        media_type: str,
        idempotency_key: str | None,
        read: Callable[[bytes], T],
    ) -> Call[T]:
        import rca
        from rca.window.encodings import arrow
        from rca.window.window import Window

        key = _checked_key(self._idempotency_key if idempotency_key is None else idempotency_key)
        loaded = window if isinstance(window, Window) else rca.read_window(window)
        headers = {"Content-Type": arrow.CONTENT_TYPE, "Accept": media_type, "Idempotency-Key": key}
        return Call("POST", "/v1/diagnoses", read, _checked_headers(headers), loaded.to_arrow())

    def _exchange(self, call: Call[Any]) -> Exchange[Answer]:
        return Exchange(
            call.method,
            self._address + call.path,
            whole(MAX_ANSWER_BYTES),
            lambda: self.timeout_seconds,
            headers={**self._headers, **call.headers},
            body=call.body,
            tls=self._tls,
        )


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
        if self._failed >= self._service.retries or isinstance(error, TimeoutError):
            late = isinstance(error, TimeoutError)
            reason = "no answer in time" if late else str(error) or type(error).__name__
            raise ServiceError(
                f"the service at {self._service.host} cannot be reached: {reason}", code="service-unreachable"
            ) from error
        return self._next()

    def after(self, answer: Answer) -> float | None:
        """Seconds to wait before the next try; None if the answer is final.

        Raises
        ------
        RcaError
            If the service refuses and another try would not help.
        """
        self._service.answered_at = _date_seconds(answer.headers.get("date"))
        if 200 <= answer.status < 300:
            return None
        retry_after = _retry_after_seconds(answer.headers.get("retry-after"))
        in_progress = answer.status == _IN_PROGRESS and retry_after is not None
        if in_progress and self._waited < self._service.timeout_seconds:
            # Not a failed try: the answer to the try before is on its way.
            wait = max(retry_after or 0.0, _MIN_WAIT_SECONDS)
            self._waited += wait
            return wait
        if answer.status not in _RETRIED or self._failed >= self._service.retries:
            raise refusal(answer)
        return self._next(retry_after)

    def _next(self, named: float | None = None) -> float:
        # Jittered, so that many hooks do not return at the same moment.
        backoff = 0.25 * 2.0**self._failed * random.uniform(0.5, 1.5)  # noqa: S311  (not a secret)
        self._failed += 1
        return named or backoff


def read(call: Call[T], answer: Answer) -> T:
    """Read the body of a final answer.

    Raises
    ------
    ServiceError
        If it is not what the call expects, such as the page of a proxy.
    """
    asked_for_html = "html" in call.headers.get("accept", "")
    if answer.headers.get("content-type", "").startswith("text/html") and not asked_for_html:
        raise unreadable(answer)
    try:
        return call.read(answer.body)
    # JSON and validation errors are of this kind.
    except (ValueError, RecursionError) as error:
        raise unreadable(answer) from error


def _job_path(job_id: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}"


def _json_object(body: bytes) -> dict[str, Any]:
    found = orjson.loads(body)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def _text(body: bytes) -> bytes:
    if not body:
        raise ValueError("empty")
    return body


def _checked_address(base_url: str) -> SplitResult:
    """The parts of the service's address."""
    try:
        parts = urlsplit(base_url)
        # Reading the port checks it.
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    # What stands before an @ may be a password.
    shown = base_url.rpartition("@")[2]
    if not usable or re.search(r"\s", parts.netloc):
        raise InvalidInput(f"{shown!r} is not an http or https address")
    if "@" in parts.netloc:
        raise InvalidInput(
            f"the address of {shown!r} has a user name, which would not be sent",
            hint="give api_key, or an Authorization header in headers",
        )
    _checked_path(parts.path or "/")
    return parts


def _checked_path(path: str) -> str:
    # A fragment is not sent, and dots would leave the address of the service.
    leaves = {".", ".."} & set(path.partition("?")[0].split("/"))
    if not path.startswith("/") or not _is_visible(path) or "#" in path or leaves:
        raise InvalidInput(
            f"{path!r} is not the path of a request",
            hint="begin with /, without . or .. as a part; write spaces, # and others as %20, %23 and such",
        )
    return path


def _checked_headers(given: Mapping[str, str]) -> dict[str, str]:
    """Headers that can be sent, with names in lower case so that none is sent twice."""
    for name, value in given.items():
        if not re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.ASCII) or re.search(r"[^\t -~\xa0-\xff]", value):
            raise InvalidInput(f"the header {name!r} has a character that no header can have")
    return {name.lower(): value for name, value in given.items()}


def _is_visible(text: str) -> bool:
    return all("!" <= character <= "~" for character in text)


def _checked_key(given: str | None) -> str:
    """The caller's key, or a new one.

    Raises
    ------
    InvalidInput
        If the service would refuse the key.
    """
    if given is None:
        return uuid.uuid4().hex
    if not 1 <= len(given) <= _MAX_KEY_LENGTH or not _is_visible(given):
        raise InvalidInput(f"an idempotency key needs 1 to {_MAX_KEY_LENGTH} visible ASCII characters")
    return given


def _retry_after_seconds(header: str | None) -> float | None:
    return min(float(header), _MAX_WAIT_SECONDS) if header is not None and header.isdecimal() else None


def _date_seconds(header: str | None) -> float | None:
    try:
        return parsedate_to_datetime(header or "").timestamp()
    except ValueError:
        return None
