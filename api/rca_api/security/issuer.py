"""The keys of a token issuer: asked for by one request at a time, and never waited for by the others."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import urllib3
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from rca.errors import SourceError

_LIVE_SECONDS = 3600.0
#: A token with an unknown key id makes us ask the issuer again, but not more often than this.
_REFRESH_SECONDS = 30.0
_ANSWER_SECONDS = 5.0
_MAX_BYTES = 1 << 20

Fetch = Callable[[str], dict[str, Any]]


class IssuerError(SourceError):
    """The token issuer's keys cannot be had at the moment."""

    code = "issuer-unavailable"


class IssuerKeys:
    """The keys one issuer published last.

    Parameters
    ----------
    issuer : str
        URL; its discovery document names where the keys are.
    fetch : callable, optional
        Gives the JSON document at a URL.
    clock : callable
        Seconds.
    """

    def __init__(
        self, issuer: str, fetch: Fetch | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._issuer = issuer
        self._fetch = fetch or _fetched
        self._clock = clock
        self._asking = threading.Lock()
        self._keys: KeySet | None = None
        self._asked_at = float("-inf")

    def holding(self, key_id: str | None) -> KeySet:
        """The keys, asked for again where they are old or `key_id` is not among them.

        Whoever comes while another request asks the issuer is answered with what is known.

        Raises
        ------
        IssuerError
            If no keys are known, or this one is not and the issuer is being asked.
        """
        if self._is_due(key_id) and self._asking.acquire(blocking=False):
            try:
                # Somebody else may have asked between our look and our turn.
                if self._is_due(key_id):
                    self._ask()
            finally:
                self._asking.release()
        keys = self._keys
        if keys is None or (self._asking.locked() and not _is_in(keys, key_id)):
            raise IssuerError("the issuer's keys are not here yet; try again")
        return keys

    def _is_due(self, key_id: str | None) -> bool:
        age = self._clock() - self._asked_at
        known = self._keys is not None and _is_in(self._keys, key_id)
        return age > (_LIVE_SECONDS if known else _REFRESH_SECONDS)

    def _ask(self) -> None:
        # Counted before asking: an issuer that is down is not asked once per request.
        self._asked_at = self._clock()
        try:
            discovery = self._fetch(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
            if discovery.get("issuer") != self._issuer:
                raise ValueError("the discovery document is of another issuer")
            self._keys = KeySet.import_key_set(self._fetch(_same_scheme(self._issuer, discovery["jwks_uri"])))  # type: ignore[arg-type]
        except (
            urllib3.exceptions.HTTPError,
            JoseError,
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
        ) as error:
            # Keys once fetched go on being used while the issuer is away.
            if self._keys is None:
                raise IssuerError(f"the issuer's keys cannot be had: {type(error).__name__}") from error


def _is_in(keys: KeySet, key_id: str | None) -> bool:
    return any(key_id in (None, key.kid) for key in keys)


def _same_scheme(issuer: str, uri: str) -> str:
    """Refuse to fetch keys over plain HTTP for an issuer that is reached over HTTPS."""
    if urlsplit(uri).scheme != urlsplit(issuer).scheme:
        raise ValueError(f"keys at {uri} for issuer {issuer}")
    return uri


def _fetched(url: str) -> dict[str, Any]:
    deadline = time.monotonic() + _ANSWER_SECONDS
    with urllib3.PoolManager(timeout=_ANSWER_SECONDS, retries=urllib3.Retry(0, redirect=0)) as http:
        answer = http.request("GET", url, preload_content=False)
        try:
            if answer.status != 200:
                raise ValueError(f"{url} answers {answer.status}")
            body = b""
            while piece := answer.read1(_MAX_BYTES):
                body += piece
                if len(body) > _MAX_BYTES:
                    raise ValueError(f"{url} is larger than {_MAX_BYTES} bytes")
                # Each read has its own time-out: an issuer that sends a byte now and then meets none.
                if time.monotonic() > deadline:
                    raise ValueError(f"{url} has not answered within {_ANSWER_SECONDS:g} s")
        finally:
            answer.close()
    document: dict[str, Any] = json.loads(body)
    return document
