"""OIDC bearer tokens: signed by the issuer's keys, for our audience, not expired."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import GuestProtocol, KeySet
from joserfc.jwt import JWTClaimsRegistry

from rca_api.security.issuer import Fetch, IssuerKeys
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
        self._scope_claim = scope_claim
        self._keys = IssuerKeys(issuer, fetch, clock)
        self._claims = JWTClaimsRegistry(
            now=lambda: int(clock()),
            leeway=_LEEWAY_SECONDS,
            iss={"essential": True, "value": issuer},
            aud={"essential": True, "value": audience},
            exp={"essential": True},
            sub={"essential": True},
        )

    def prepare(self) -> None:
        """Ask for the issuer's keys, so that no caller has to wait for them.

        Raises
        ------
        IssuerError
        """
        self._keys.holding(None)

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
        return self._keys.holding(guest.headers().get("kid"))
