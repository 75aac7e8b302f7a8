"""HTTP client of the Prometheus query API: credentials, retries, limits, and errors that say what to do.

Credentials are sent to the given address only: redirects are refused. No message holds them.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import sleep
from typing import IO, Any

import orjson

from rca.errors import InvalidInput, SourceError, cut
from rca.telemetry.sources.prometheus.credentials import (
    PASSWORD,
    TOKEN,
    USER,
    authorization,
    checked_headers,
    is_local,
    split_address,
    trust,
)

#: A larger answer is refused, bytes after decompression; the question is then split by time.
MAX_ANSWER_BYTES = 128 << 20
#: Further attempts after an error of the server, and the pause before the first, seconds. It doubles.
RETRIES, PAUSE_SECONDS = 3, 0.5
#: A server may name a pause; longer ones are cut to this, seconds.
LONGEST_PAUSE_SECONDS = 30.0
#: The server's time limit is shorter than the client's by this, seconds.
MARGIN_SECONDS = 5.0
#: Longest limit of one request, seconds. Sockets refuse much longer ones.
LONGEST_TIMEOUT = 86_400.0
#: Status codes after which the same request may succeed.
_TRANSIENT = frozenset({429, 500, 502, 503, 504})
#: Words of Prometheus, Thanos, Mimir and VictoriaMetrics for a question that selects too much.
_TOO_MUCH = (
    "too many samples",
    "maximum number of",
    "maxsamples",
    "max-samples",
    "limit exceeded",
    "exceeds",
)
_NOTICES = ("PromQL info", "PromQL warning")
_Headers = Mapping[str, str]
_GZIP = 16 + zlib.MAX_WBITS
_PIECE = 1 << 18


class TooMuchError(SourceError):
    """The server refuses the question because it selects too much, or the answer is too large."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Prometheus cannot answer so much at once: {reason}",
            hint="shorten --since, or select less with --match",
        )
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason,)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Follow no redirect: another server must not get the credentials."""


class Prometheus:
    """One server that speaks the Prometheus query API.

    Parameters
    ----------
    url : str
        Base address, with the path prefix if there is one. A user and a password in it are sent as basic
        authentication.
    token : str, optional
        Bearer token. Default: of the environment variable ``RCA_PROMETHEUS_TOKEN``.
    ca_file : path, optional
        Certificates of authorities to trust in place of the system's.
    timeout : float, seconds
        Of one request, one day at most.
    allow_partial : bool
        Collect the server's warnings in `warnings` in place of an error.
    headers : mapping of str to str, optional
        Sent with every request.

    Raises
    ------
    InvalidInput
        If the address, the file, the timeout or a header cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        timeout: float = 60.0,
        allow_partial: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if not 0.0 < timeout <= LONGEST_TIMEOUT:
            raise InvalidInput(
                f"a timeout of {timeout:g} s cannot be used",
                hint=f"give more than 0 and at most {LONGEST_TIMEOUT:,.0f} seconds (1 day)",
            )
        self.address, user, password = split_address(url)
        self.warnings: dict[str, None] = {}
        self._timeout = timeout
        self._allow_partial = allow_partial
        self._headers = {
            "Accept": "application/json",
            # Packing takes the server longer than sending within one machine.
            "Accept-Encoding": "identity" if is_local(self.address) else "gzip",
            "User-Agent": "straggler-rca",
        }
        self._headers |= authorization(token, user, password) | checked_headers(headers or {})
        handler = urllib.request.HTTPSHandler(context=trust(ca_file))
        self._opener = urllib.request.build_opener(handler, _NoRedirects)
        self._post = True

    def query(self, expression: str, at: float) -> list[dict[str, Any]]:
        """Result of an instant query: the series of a vector or of a matrix.

        Parameters
        ----------
        expression : str
            PromQL.
        at : float, Unix seconds

        Raises
        ------
        TooMuchError
            If the server or the client's limit refuses so much.
        SourceError
            If the server cannot be reached, refuses the credentials, or answers with something else.
        """
        server_limit = max(1.0, self._timeout - MARGIN_SECONDS)
        parameters = [("query", expression), ("time", f"{at:.3f}"), ("timeout", f"{server_limit:.0f}s")]
        data = self._ask("/api/v1/query", parameters)
        result = data.get("result") if isinstance(data, Mapping) else None
        if not isinstance(result, list):
            raise self._no_prometheus("its answer to a query has no result")
        return result

    def label_values(self, label: str, matches: Sequence[str], start: float, end: float) -> list[str]:
        """Values of a label among the series that a selector of `matches` selects."""
        data = self._ask(f"/api/v1/label/{label}/values", _span(matches, start, end), get=True)
        return [value for value in data if isinstance(value, str)] if isinstance(data, list) else []

    def series(self, matches: Sequence[str], start: float, end: float) -> list[dict[str, str]]:
        """Label sets of the series that a selector of `matches` selects."""
        data = self._ask("/api/v1/series", _span(matches, start, end))
        return [each for each in data if isinstance(each, dict)] if isinstance(data, list) else []

    def _ask(self, path: str, parameters: list[tuple[str, str]], *, get: bool = False) -> Any:
        """The member ``data`` of an answer; a transient failure is repeated."""
        pause = PAUSE_SECONDS
        for attempt in range(RETRIES + 1):
            last = attempt == RETRIES
            try:
                status, headers, body = self._send(path, parameters, get=get or not self._post)
            except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", error)
                if last or attempt >= _repetitions(reason):
                    raise self._unreachable(reason) from None
            else:
                if status == 405 and self._post and not get:
                    # Some proxies let no POST through.
                    self._post = False
                    return self._ask(path, parameters)
                if status not in _TRANSIENT or last or _selects_too_much(status, body):
                    return self._data(status, headers, body)
                pause = max(pause, _asked_pause(headers))
            sleep(min(pause, LONGEST_PAUSE_SECONDS))
            pause *= 2
        raise AssertionError("the last attempt returns or raises")

    def _send(
        self, path: str, parameters: list[tuple[str, str]], *, get: bool
    ) -> tuple[int, _Headers, bytes]:
        encoded = urllib.parse.urlencode(parameters)
        address = self.address + path
        request = urllib.request.Request(  # noqa: S310  (the scheme is checked)
            f"{address}?{encoded}" if get else address,
            data=None if get else encoded.encode(),
            headers=self._headers,
        )
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                headers = _named(answer.headers.items())
                return answer.status, headers, _content(answer, headers)
        except urllib.error.HTTPError as error:
            with error:
                headers = _named(error.headers.items())
                return error.code, headers, _content(error, headers)

    def _data(self, status: int, headers: _Headers, body: bytes) -> Any:
        if status in (401, 403):
            raise SourceError(
                f"{self.address} refuses the credentials ({status})",
                hint=f"set {TOKEN} or --token-file, or {USER} and {PASSWORD}",
            )
        if 300 <= status < 400:
            target = cut(headers.get("Location", "").split("?")[0])
            raise SourceError(
                f"{self.address} redirects to {target or 'another address'}",
                hint="give the address of the API itself; a login page in front needs a token",
            )
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            if _selects_too_much(status, body):
                raise TooMuchError(_text(body)) from None
            if status in _TRANSIENT:
                raise self._failed(status, _text(body)) from None
            kind = headers.get("Content-Type", "no type").split(";")[0]
            raise self._no_prometheus(f"it answers with status {status} and {cut(kind)}") from None
        if not isinstance(answer, dict) or "status" not in answer:
            raise self._no_prometheus(f"it answers with status {status} and other JSON")
        if answer["status"] != "success":
            self._refuse(status, answer, body)
        self._heed(answer.get("warnings") or [])
        return answer.get("data")

    def _refuse(self, status: int, answer: Mapping[str, Any], body: bytes) -> None:
        reason = cut(str(answer.get("error", "")), 300)
        if _selects_too_much(status, body):
            raise TooMuchError(reason)
        if status in _TRANSIENT:
            raise self._failed(status, reason)
        raise SourceError(f"{self.address} refuses the query ({status}): {reason}")

    def _failed(self, status: int, reason: str) -> SourceError:
        return SourceError(
            f"{self.address} failed {RETRIES + 1} times, at last with {status}: {' '.join(reason.split())}",
            hint="try again later, or shorten --since",
        )

    def _heed(self, warnings: Sequence[Any]) -> None:
        serious = [cut(str(each), 300) for each in warnings if not str(each).startswith(_NOTICES)]
        if serious and not self._allow_partial:
            raise SourceError(
                f"{self.address} answers with partial data: {serious[0]}",
                hint="missing series look like machines that ended: wait until all stores answer, or add "
                "--allow-partial",
            )
        self.warnings |= dict.fromkeys(serious)

    def _no_prometheus(self, reason: str) -> SourceError:
        return SourceError(
            f"{self.address} is no Prometheus API: {reason}",
            hint="give the base address, such as http://prometheus:9090, with its path prefix",
        )

    def _unreachable(self, reason: object) -> SourceError:
        if isinstance(reason, TimeoutError):
            return SourceError(
                f"{self.address} does not answer within {self._timeout:g} s",
                hint="shorten --since, or raise --timeout",
            )
        if isinstance(reason, ssl.SSLError):
            return SourceError(
                f"{self.address}: TLS fails: {reason.reason or reason}",
                hint="give the certificate of its authority with --ca-file",
            )
        text = getattr(reason, "strerror", None) or str(reason)
        return SourceError(
            f"{self.address} cannot be reached: {cut(text)}",
            hint="check the address, the port and the proxy; in Kubernetes: kubectl port-forward",
        )


def _span(matches: Sequence[str], start: float, end: float) -> list[tuple[str, str]]:
    return [*(("match[]", each) for each in matches), ("start", f"{start:.3f}"), ("end", f"{end:.3f}")]


def _named(headers: Iterable[tuple[str, str]]) -> _Headers:
    """Headers by their usual spelling."""
    return {name.title(): value for name, value in headers}


def _content(answer: IO[bytes], headers: _Headers) -> bytes:
    """The unpacked body, at most `MAX_ANSWER_BYTES`."""
    packed = (headers.get("Content-Encoding") or "").lower() == "gzip"
    unpack: Callable[[bytes], bytes] = zlib.decompressobj(_GZIP).decompress if packed else bytes
    pieces, size = [], 0
    try:
        while piece := answer.read(_PIECE):
            pieces.append(unpack(piece))
            size += len(pieces[-1])
            if size > MAX_ANSWER_BYTES:
                raise TooMuchError(f"the answer has more than {MAX_ANSWER_BYTES:,} bytes")
    except zlib.error:
        raise http.client.HTTPException("a damaged gzip body") from None
    return b"".join(pieces)


def _repetitions(reason: object) -> int:
    """How often to repeat a request whose connection failed."""
    if isinstance(reason, ssl.SSLError | ConnectionRefusedError | socket.gaierror):
        return 0
    # A server that hangs takes the whole time limit again.
    return 1 if isinstance(reason, TimeoutError) else RETRIES


def _selects_too_much(status: int, body: bytes) -> bool:
    text = body[:2000].lower()
    if status in (503, 504) and b'"timeout"' in text:
        # The query took too long for the server: half of it may not.
        return True
    # 429 limits the rate of requests: smaller ones would be more.
    return status in (400, 413, 422, 500, 503) and any(each.encode() in text for each in _TOO_MUCH)


def _text(body: bytes) -> str:
    return cut(body[:300].decode("utf-8", "replace"), 300)


def _asked_pause(headers: _Headers) -> float:
    asked = headers.get("Retry-After", "")
    return float(asked) if asked.isdigit() and len(asked) < 6 else 0.0
