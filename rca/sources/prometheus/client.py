"""HTTP client of the Prometheus query API: credentials, retries, one time limit, errors that say what to do.

Credentials are sent to the given address only: redirects are refused. No message holds them.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from time import sleep
from typing import Any, TypeVar

import orjson

from rca.deadline import Deadline
from rca.errors import InvalidInput, SourceError, cut
from rca.sources.prometheus.answers import PrometheusAnswer, TooMuchError
from rca.sources.prometheus.credentials import (
    PASSWORD,
    TOKEN,
    USER,
    authorization,
    checked_headers,
    is_local,
    split_address,
    trust,
)
from rca.sources.prometheus.matrix import SeriesMatrix, label_set
from rca.timed_http import Exchange

#: Time limit of all requests together unless one is given, and of one request, seconds.
USUAL_TIMEOUT, REQUEST_SECONDS = 300.0, 60.0
#: With less time left no request is sent, seconds.
MIN_REQUEST_SECONDS = 0.01
#: Further attempts after an error of the server, and the pause before the first, seconds. It doubles.
RETRIES, PAUSE_SECONDS = 3, 0.5
#: A server may name a pause; longer ones are cut to this, seconds.
MAX_PAUSE_SECONDS = 30.0
#: The server's time limit is shorter than the client's by this, seconds.
MARGIN_SECONDS = 5.0
#: Longest limit of all requests, seconds. Sockets refuse much longer ones.
MAX_TIMEOUT = 86_400.0
#: Status codes after which the same request may succeed.
_TRANSIENT = frozenset({429, 500, 502, 503, 504})
#: Warnings that are kept.
MAX_WARNINGS = 100
_NOTICES = ("PromQL info", "PromQL warning")
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}
_Parameters = list[tuple[str, str]]
T = TypeVar("T")


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
        Of all requests together, from now on; one day at most.
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
        timeout: float = USUAL_TIMEOUT,
        allow_partial: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if not 0.0 < timeout <= MAX_TIMEOUT:
            raise InvalidInput(
                f"a timeout of {timeout:g} s cannot be used",
                hint=f"give more than 0 and at most {MAX_TIMEOUT:,.0f} seconds (1 day)",
            )
        self.address, user, password = split_address(url)
        self.warnings: dict[str, None] = {}
        self._timeout = timeout
        self._deadline = Deadline.after(timeout)
        self._parsing = threading.Lock()
        self._allow_partial = allow_partial
        self._headers = {
            "Accept": "application/json",
            # Packing takes the server longer than sending within one machine.
            "Accept-Encoding": "identity" if is_local(self.address) else "gzip",
            "User-Agent": "straggler-rca",
        }
        self._headers |= authorization(token, user, password) | checked_headers(headers or {})
        self._trust = trust(ca_file)
        self._post = True

    def query(self, expression: str, at: float) -> list[dict[str, Any]]:
        """Result of an instant query: the labels (``metric``) and the ``value`` of each series.

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
            If the server cannot be reached, refuses the credentials, or answers with something else. Also if
            the time limit of all requests is over.
        """
        return self._ask("/api/v1/query", self._instant(expression, at), self._vector)

    def samples(self, expression: str, start: float, end: float) -> SeriesMatrix:
        """Samples of a range vector, ``start <= time < end``; errors as of `query`.

        Parameters
        ----------
        expression : str
            PromQL of a range vector that ends at `end`.
        start, end : float, Unix seconds
        """
        return self._ask(
            "/api/v1/query",
            self._instant(expression, end),
            lambda data: SeriesMatrix.from_result(self._result(data), start, end),
        )

    def label_values(self, label: str, matches: Sequence[str], start: float, end: float) -> list[str]:
        """Values of a label among the series that a selector of `matches` selects."""
        asked = _span(matches, start, end)
        return self._ask(f"/api/v1/label/{label}/values", asked, _texts, get=True)

    def series(self, matches: Sequence[str], start: float, end: float) -> list[dict[str, str]]:
        """Label sets of the series that a selector of `matches` selects."""
        return self._ask("/api/v1/series", _span(matches, start, end), _label_sets)

    def _instant(self, expression: str, at: float) -> _Parameters:
        server_limit = max(1.0, self._seconds_of_request() - MARGIN_SECONDS)
        return [("query", expression), ("time", f"{at:.3f}"), ("timeout", f"{server_limit:.0f}s")]

    def _seconds_of_request(self) -> float:
        return min(REQUEST_SECONDS, self._deadline.left())

    def _result(self, data: Any) -> list[Any]:
        result = data.get("result") if isinstance(data, Mapping) else None
        if not isinstance(result, list):
            raise self._no_prometheus("its answer to a query has no result")
        return result

    def _vector(self, data: Any) -> list[dict[str, Any]]:
        return [
            {"metric": label_set(each["metric"]), "value": float(each["value"][1])}
            for each in self._result(data)
        ]

    def _ask(self, path: str, parameters: _Parameters, read: Callable[[Any], T], *, get: bool = False) -> T:
        """What `read` makes of the member ``data`` of an answer; a transient failure is repeated."""
        pause = PAUSE_SECONDS
        for attempt in range(RETRIES + 1):
            try:
                answer = self._send(path, parameters, get=get or not self._post)
            except OSError as error:
                if attempt >= _repetitions(error) or not self._has_left(pause):
                    raise self._unreachable(error) from None
            else:
                if answer.status == 405 and self._post and not get:
                    # Some proxies let no POST through.
                    self._post = False
                    return self._ask(path, parameters, read)
                pause = min(max(pause, answer.asked_pause), MAX_PAUSE_SECONDS)
                is_final = answer.status not in _TRANSIENT or answer.selects_too_much
                if is_final or attempt == RETRIES or not self._has_left(pause):
                    return self._read(answer, attempt + 1, read)
            sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)
        raise AssertionError("the last attempt returns or raises")

    def _has_left(self, seconds: float) -> bool:
        """Whether so much is left of the time for all requests."""
        return self._deadline.left() > seconds

    def _read(self, answer: PrometheusAnswer, attempts: int, read: Callable[[Any], T]) -> T:
        # The objects of one answer exist at a time: several would need several times the memory.
        with self._parsing:
            try:
                return read(self._data(answer, attempts))
            except (IndexError, KeyError, TypeError, ValueError):
                raise self._no_prometheus("its answer has another form than that of Prometheus") from None

    def _send(self, path: str, parameters: _Parameters, *, get: bool) -> PrometheusAnswer:
        encoded = urllib.parse.urlencode(parameters)
        address = self.address + path
        seconds = self._seconds_of_request()
        if seconds < MIN_REQUEST_SECONDS:
            raise TimeoutError
        return Exchange(
            "GET" if get else "POST",
            f"{address}?{encoded}" if get else address,
            PrometheusAnswer.read,
            Deadline.after(seconds).left,
            headers=self._headers if get else self._headers | _FORM,
            body=None if get else encoded.encode(),
            tls=self._trust,
            use_proxies=True,
        ).wait()

    def _data(self, answer: PrometheusAnswer, attempts: int) -> Any:
        status = answer.status
        if status in (401, 403):
            raise SourceError(
                f"{self.address} refuses the credentials ({status})",
                hint=f"set {TOKEN} or --token-file, or {USER} and {PASSWORD}",
            )
        if 300 <= status < 400:
            target = cut(answer.headers.get("Location", "").split("?")[0])
            raise SourceError(
                f"{self.address} redirects to {target or 'another address'}",
                hint="give the address of the API itself; a login page in front needs a token",
            )
        try:
            document = answer.parsed()
        except orjson.JSONDecodeError as error:
            if answer.selects_too_much:
                raise TooMuchError(answer.text) from None
            if status in _TRANSIENT:
                raise self._failed(attempts, status, answer.text) from None
            kind = cut(answer.headers.get("Content-Type", "no type").split(";")[0])
            wrong = f" that cannot be read: {error.msg}" if "json" in kind else ""
            raise self._no_prometheus(f"it answers with status {status} and {kind}{wrong}") from None
        if not isinstance(document, dict) or "status" not in document:
            raise self._no_prometheus(f"it answers with status {status} and other JSON")
        if document["status"] != "success":
            self._refuse(answer, document, attempts)
        self._heed(document.get("warnings"))
        return document.get("data")

    def _refuse(self, answer: PrometheusAnswer, document: Mapping[str, Any], attempts: int) -> None:
        reason = cut(str(document.get("error", "")), 300)
        if answer.selects_too_much:
            raise TooMuchError(reason)
        if answer.status in _TRANSIENT:
            raise self._failed(attempts, answer.status, reason)
        raise SourceError(f"{self.address} refuses the query ({answer.status}): {reason}")

    def _failed(self, attempts: int, status: int, reason: str) -> SourceError:
        times = "once," if attempts == 1 else f"{attempts} times, at last"
        return SourceError(
            f"{self.address} failed {times} with {status}: {' '.join(reason.split())}",
            hint="try again later, or shorten --since",
        )

    def _heed(self, warnings: Any) -> None:
        texts = warnings[:MAX_WARNINGS] if isinstance(warnings, list) else []
        serious = [cut(str(each), 300) for each in texts if not str(each).startswith(_NOTICES)]
        if serious and not self._allow_partial:
            raise SourceError(
                f"{self.address} answers with partial data: {serious[0]}",
                hint="missing series look like machines that ended: wait until all stores answer, or add "
                "--allow-partial",
            )
        for each in serious:
            if len(self.warnings) < MAX_WARNINGS:
                self.warnings[each] = None

    def _no_prometheus(self, reason: str) -> SourceError:
        return SourceError(
            f"{self.address} is no Prometheus API: {reason}",
            hint="give the base address, such as http://prometheus:9090, with its path prefix",
        )

    def _unreachable(self, reason: OSError) -> SourceError:
        if isinstance(reason, TimeoutError):
            if self._has_left(MIN_REQUEST_SECONDS):
                return SourceError(
                    f"{self.address} does not answer a request within {REQUEST_SECONDS:g} s",
                    hint="shorten --since, or select less with --match",
                )
            return SourceError(
                f"{self.address} does not answer within {self._timeout:g} s, with all requests together",
                hint="shorten --since, select less with --match, or raise --timeout",
            )
        if isinstance(reason, ssl.SSLError):
            return SourceError(
                f"{self.address}: TLS fails: {reason.reason or reason}",
                hint="give the certificate of its authority with --ca-file",
            )
        text = reason.strerror or str(reason)
        return SourceError(
            f"{self.address} cannot be reached: {cut(text)}",
            hint="check the address, the port and the proxy; in Kubernetes: kubectl port-forward",
        )


def _span(matches: Sequence[str], start: float, end: float) -> list[tuple[str, str]]:
    return [*(("match[]", each) for each in matches), ("start", f"{start:.3f}"), ("end", f"{end:.3f}")]


def _repetitions(reason: OSError) -> int:
    """How often to repeat a request whose connection failed."""
    if isinstance(reason, ssl.SSLError | ConnectionRefusedError | socket.gaierror):
        return 0
    # A server that hangs takes the whole time limit again.
    return 1 if isinstance(reason, TimeoutError) else RETRIES


def _texts(data: Any) -> list[str]:
    return [value for value in data if isinstance(value, str)] if isinstance(data, list) else []


def _label_sets(data: Any) -> list[dict[str, str]]:
    return [label_set(each) for each in data] if isinstance(data, list) else []
