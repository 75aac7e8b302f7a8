"""The keys and addresses of a token issuer: one request fetches them, and the others do not wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

import orjson
import structlog
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from rca.deadline import Deadline
from rca.errors import SourceError, TooLarge, cut
from rca.timed_http import Exchange, whole

_log = structlog.stdlib.get_logger("rca_api.shell.security")
_LIVE_SECONDS = 3600.0
#: A token with an unknown key id makes the service fetch the keys again, but no sooner than this.
_REFRESH_SECONDS = 30.0
_FETCH_SECONDS = 5.0
_MAX_BYTES = 1 << 20

#: What `read_json` raises if an issuer does not answer, or not within the limits.
UNREACHABLE = (OSError, TooLarge)

Fetch = Callable[[str], dict[str, Any]]


class IssuerError(SourceError):
    """The keys of the token issuer are not available."""

    code = "issuer-unavailable"


class IssuerKeys:
    """The latest keys of one issuer.

    Parameters
    ----------
    issuer : str
        URL; its discovery document names where the keys are.
    fetch : callable, optional
        Gives the JSON document at a URL.
    clock : callable
        Seconds, monotonic.
    """

    def __init__(
        self, issuer: str, fetch: Fetch | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._issuer = issuer
        self._fetch = fetch or _fetched
        self._clock = clock
        self._fetching = threading.Lock()
        self._keys: KeySet | None = None
        self._discovery: dict[str, Any] = {}
        self._fetched_at = float("-inf")
        #: Whether the discovery document is of another issuer than the configured one.
        self._is_other = False

    def holding(self, key_id: str | None) -> KeySet:
        """The keys, fetched again if they are old or `key_id` is not among them.

        While another request fetches them, this gives the known keys.

        Raises
        ------
        IssuerError
            If no keys are known, or this key is not known while the keys are being fetched. A wrong setting
            is named as such.
        """
        if self._is_due(key_id) and self._fetching.acquire(blocking=False):
            try:
                # Another request may have fetched them meanwhile.
                if self._is_due(key_id):
                    self._refresh()
            finally:
                self._fetching.release()
        keys = self._keys
        if keys is None or (self._fetching.locked() and not _is_in(keys, key_id)):
            raise (
                _misconfigured()
                if self._is_other
                else IssuerError("the keys of the issuer are not loaded yet; try again")
            )
        return keys

    def address(self, name: str) -> str:
        """An address of the discovery document, such as ``token_endpoint``.

        Raises
        ------
        IssuerError
            If the document is not available, or has no such address of the issuer's scheme.
        """
        self.holding(None)
        try:
            return _same_scheme(self._issuer, self._discovery[name])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise IssuerError(f"the discovery document of the issuer has no usable {name}") from error

    def _is_due(self, key_id: str | None) -> bool:
        age = self._clock() - self._fetched_at
        known = self._keys is not None and _is_in(self._keys, key_id)
        return age > (_LIVE_SECONDS if known else _REFRESH_SECONDS)

    def _refresh(self) -> None:
        # Set before the fetch: otherwise every request would call an issuer that is down.
        self._fetched_at = self._clock()
        try:
            discovery = self._fetch(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
            self._is_other = discovery.get("issuer") != self._issuer
            if self._is_other:
                raise _OtherIssuerError(self._issuer, str(discovery.get("issuer")))
            self._keys = KeySet.import_key_set(self._fetch(_same_scheme(self._issuer, discovery["jwks_uri"])))  # type: ignore[arg-type]
            self._discovery = discovery
        except (
            *UNREACHABLE,
            JoseError,
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
        ) as error:
            _log.warning(
                "the keys of the issuer cannot be fetched",
                reason=cut(f"{type(error).__name__}: {error}", 500),
            )
            # Known keys stay in use while the issuer is away.
            if self._keys is None:
                if self._is_other:
                    raise _misconfigured() from error
                raise IssuerError(
                    f"the keys of the issuer cannot be fetched: {type(error).__name__}"
                ) from error


class _OtherIssuerError(ValueError):
    """Names both issuers, for the log."""

    def __init__(self, configured: str, stated: str) -> None:
        slash = configured.rstrip("/") == stated.rstrip("/")
        hint = "only the slash at the end differs; " if slash else ""
        super().__init__(
            f"RCA_OIDC_ISSUER is {configured!r}, and the issuer calls itself {cut(stated)!r}: {hint}set "
            "RCA_OIDC_ISSUER to exactly what the issuer calls itself"
        )


def _misconfigured() -> IssuerError:
    return IssuerError(
        "RCA_OIDC_ISSUER is not the name that the issuer has for itself",
        hint="an operator corrects it; the log of the service has both names",
    )


def _is_in(keys: KeySet, key_id: str | None) -> bool:
    return any(key_id in (None, key.kid) for key in keys)


def _same_scheme(issuer: str, uri: str) -> str:
    """Refuse plain HTTP, and other schemes, for an issuer that is reached over HTTPS."""
    if urlsplit(uri).scheme != urlsplit(issuer).scheme:
        raise ValueError(f"address {uri} of issuer {issuer}")
    return uri


def _fetched(url: str) -> dict[str, Any]:
    status, document = read_json("GET", url)
    if status != 200:
        raise ValueError(f"{url} answers {status}")
    held: dict[str, Any] = document
    return held


def read_json(method: str, url: str, form: Mapping[str, str] | None = None) -> tuple[int, Any]:
    """Send a request to the issuer, and read its JSON within limits of time and size.

    Parameters
    ----------
    form : mapping, optional
        Fields of a form.

    Returns
    -------
    status : int
    document : Any

    Raises
    ------
    OSError
        Without an answer in time, and for a redirect.
    TooLarge
        If the answer is too large.
    ValueError
        If it is not JSON.
    """
    body, headers = None, {"Accept": "application/json"}
    if form is not None:
        body, headers["Content-Type"] = urlencode(form).encode(), "application/x-www-form-urlencoded"
    # The issuer is reached directly, as always.
    seconds = Deadline.after(_FETCH_SECONDS).left
    answer = Exchange(method, url, whole(_MAX_BYTES), seconds, headers=headers, body=body).wait()
    if 300 <= answer.status < 400:
        raise ConnectionError(f"{url} redirects ({answer.status})")
    return answer.status, orjson.loads(answer.body)
