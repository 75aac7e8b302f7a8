"""OIDC bearer tokens: signed with a key of the issuer, for our audience, not expired."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import GuestProtocol, KeySet
from joserfc.jwt import JWTClaimsRegistry

from rca_api.shell.security.issuer import Fetch, IssuerKeys
from rca_api.shell.security.principal import Principal, Scope

#: Asymmetric only: with a symmetric algorithm, a service that checks tokens could forge them.
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
    """The token is not valid; the reason is logged, and callers do not get it."""


class TokenVerifier:
    """Checks the tokens of one issuer.

    Parameters
    ----------
    issuer : str
        URL exactly as in the tokens; its discovery document names the address of the keys.
    audience : str
        Audience that `aud` must contain.
    scope_claim : str
        Claim with the scopes: a string separated by spaces, or a list. Entries may have the prefix ``rca:``;
        unknown ones are ignored.
    clock, ticks : callable
        Wall clock and monotonic clock, seconds.
    """

    def __init__(
        self,
        issuer: str,
        audience: str,
        *,
        scope_claim: str = "scope",
        fetch: Fetch | None = None,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scope_claim = scope_claim
        #: Keys and addresses of the issuer.
        self.keys = IssuerKeys(issuer, fetch, ticks)
        self._claims = JWTClaimsRegistry(
            now=lambda: int(clock()),
            leeway=_LEEWAY_SECONDS,
            iss={"essential": True, "value": issuer},
            aud={"essential": True, "value": audience},
            exp={"essential": True},
            sub={"essential": True},
        )

    def prepare(self) -> None:
        """Fetch the keys of the issuer, so that no caller has to wait for them.

        Raises
        ------
        IssuerError
        """
        self.keys.holding(None)

    def verify(self, token: str, nonce: str | None = None) -> Principal:
        """The caller with this token.

        Parameters
        ----------
        nonce : str, optional
            Nonce that the token must have, as the ID token of a sign-in.

        Raises
        ------
        RefusedToken
            If it is malformed, wrongly signed, expired or for another audience.
        IssuerError
            If the keys of the issuer are needed and not available.
        """
        try:
            claims = jwt.decode(token, self._key, algorithms=ALGORITHMS).claims
            self._claims.validate(claims)
            if nonce is not None and claims.get("nonce") != nonce:
                raise ValueError("the nonce is not that of this sign-in")
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
        return self.keys.holding(guest.headers().get("kid"))
