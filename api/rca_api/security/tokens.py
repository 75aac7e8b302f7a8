"""OIDC bearer tokens: signed by the issuer's keys, for our audience, not expired."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import urllib3
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import GuestProtocol, KeySet
from joserfc.jwt import JWTClaimsRegistry

from rca.errors import SourceError
from rca_api.security.principal import Principal, Scope

#: Asymmetric only: with a symmetric one, whoever can check a token can forge it.
ALGORITHMS = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "Ed25519",
    "EdDSA",
)
_LEEWAY_SECONDS = 60
_KEYS_LIVE_SECONDS = 3600.0
#: A token with an unknown key id makes us ask the issuer again, but not more often than this.
_REFRESH_SECONDS = 30.0
_TIMEOUT = urllib3.Timeout(connect=3.0, read=5.0)
_MAX_BYTES = 1 << 20

Fetch = Callable[[str], dict[str, Any]]


class IssuerError(SourceError):
    """The token issuer's keys cannot be had at the moment."""

    code = "issuer-unavailable"


class RefusedToken(Exception):
    """The token proves nothing; the reason is for our log, callers are told no more than that."""


class TokenVerifier:
    """Checks the tokens of one issuer.

    Parameters
    ----------
    issuer : str
        URL as it stands in the tokens; its discovery document names where the keys are.
    audience : str
        What `aud` has to contain.
    scope_claim : str
        Claim that lists scopes: a string with spaces between, or a list. Entries may have the prefix
        ``rca:``; those that are no scope of ours are left out.
    """

    def __init__(
        self,
        issuer: str,
        audience: str,
        *,
        scope_claim: str = "scope",
        fetch: Fetch | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._issuer = issuer
        self._scope_claim = scope_claim
        self._fetch = fetch or _fetched
        self._clock = clock
        self._claims = JWTClaimsRegistry(
            now=lambda: int(clock()),
            leeway=_LEEWAY_SECONDS,
            iss={"essential": True, "value": issuer},
            aud={"essential": True, "value": audience},
            exp={"essential": True},
            sub={"essential": True},
        )
        self._lock = threading.Lock()
        self._keys: KeySet | None = None
        self._fetched_at = float("-inf")

    def verify(self, token: str) -> Principal:
        """Whose token this is.

        Raises
        ------
        RefusedToken
            If it is malformed, wrongly signed, expired or meant for somebody else.
        IssuerError
            If the issuer's keys are needed and cannot be had.
        """
        try:
            claims = jwt.decode(token, self._key, algorithms=ALGORITHMS).claims
            self._claims.validate(claims)
        except (JoseError, ValueError, TypeError) as error:
            raise RefusedToken(f"{type(error).__name__}: {error}") from error
        name = next((claims[key] for key in ("email", "preferred_username", "name") if key in claims), None)
        subject = str(claims["sub"])
        return Principal(f"oidc:{subject}"[:128], str(name or subject)[:128], self._scopes(claims))

    def _scopes(self, claims: dict[str, Any]) -> frozenset[Scope]:
        given = claims.get(self._scope_claim, ())
        names = given.split() if isinstance(given, str) else given if isinstance(given, list) else ()
        plain = {str(name).removeprefix("rca:") for name in names}
        return frozenset(scope for scope in Scope if scope.value in plain)

    def _key(self, guest: GuestProtocol) -> KeySet:
        key_id = guest.headers().get("kid")
        with self._lock:
            age = self._clock() - self._fetched_at
            unknown = self._keys is None or not any(key_id in (None, key.kid) for key in self._keys)
            if age > _KEYS_LIVE_SECONDS or (unknown and age > _REFRESH_SECONDS):
                self._refresh()
            if self._keys is None:
                raise IssuerError("the issuer's keys could not be had; it is asked again soon")
            return self._keys

    def _refresh(self) -> None:
        # Counted before asking: an issuer that is down is not asked once per request.
        self._fetched_at = self._clock()
        try:
            discovery = self._fetch(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
            if discovery.get("issuer") != self._issuer:
                raise IssuerError("the discovery document is of another issuer")
            self._keys = KeySet.import_key_set(self._fetch(_same_scheme(self._issuer, discovery["jwks_uri"])))  # type: ignore[arg-type]
        except (urllib3.exceptions.HTTPError, JoseError, KeyError, TypeError, ValueError) as error:
            # Keys once fetched go on being used while the issuer is away.
            if self._keys is None:
                raise IssuerError(f"the issuer's keys cannot be had: {type(error).__name__}") from error


def _same_scheme(issuer: str, uri: str) -> str:
    """Refuse to fetch keys over plain HTTP for an issuer that is reached over HTTPS."""
    if urlsplit(uri).scheme != urlsplit(issuer).scheme:
        raise ValueError(f"keys at {uri} for issuer {issuer}")
    return uri


def _fetched(url: str) -> dict[str, Any]:
    with urllib3.PoolManager(timeout=_TIMEOUT, retries=urllib3.Retry(2, redirect=0)) as http:
        answer = http.request("GET", url, preload_content=False)
        try:
            if answer.status != 200:
                raise ValueError(f"{url} answers {answer.status}")
            body = answer.read(_MAX_BYTES + 1)
        finally:
            answer.release_conn()
    if len(body) > _MAX_BYTES:
        raise ValueError(f"{url} is larger than {_MAX_BYTES} bytes")
    document: dict[str, Any] = json.loads(body)
    return document
