"""Identification of callers: by API key, by a token of the issuer, or by loopback without either."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

import structlog
from fastapi import Request

from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.security import authority, keys
from rca_api.shell.security.issuer import IssuerError
from rca_api.shell.security.principal import ANYBODY, Principal
from rca_api.shell.security.rates import Rates
from rca_api.shell.security.sign_in import GivenCode, SignIn
from rca_api.shell.security.tokens import RefusedToken, TokenVerifier
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store.database import Database, StoreError

_log = structlog.stdlib.get_logger("rca_api.shell.security")
#: Wrong credentials allowed per address. Further ones get 429 and are not logged.
_FAILURE_RATE = "60/minute"
#: Sign-ins per address: each one sends a request to the issuer.
_SIGN_IN_RATE = "120/minute"


class Authority:
    """Identifies callers and counts their requests."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._off = settings.auth == "off"
        self._database = database
        self._rates = Rates(settings.rate_limit, settings.rate_limit_storage_url)
        self._failures = Rates(_FAILURE_RATE, of="failed attempts")
        self._tokens = (
            TokenVerifier(settings.oidc_issuer, settings.oidc_audience, scope_claim=settings.oidc_scope_claim)
            if settings.oidc_issuer
            else None
        )
        #: Sign-in of people at the issuer; None without a client there.
        self.sign_in = (
            SignIn(settings.oidc_client_id, settings.oidc_client_scope, self._tokens.keys, self._tokens)
            if self._tokens is not None and settings.oidc_client_id and not self._off
            else None
        )
        self._sign_ins = Rates(_SIGN_IN_RATE, of="sign-ins")

    def prepare(self) -> None:
        """Fetch the issuer's keys, or warn if there is no API key yet."""
        if self._off:
            return
        if self._tokens is not None:
            try:
                self._tokens.prepare()
            except IssuerError as error:
                _log.warning("tokens cannot be checked yet", reason=error.message)
            return
        try:
            with self._database.reading() as session:
                if not keys.listed(session):
                    _log.warning("there is no API key yet; create one: rca keys create --scope diagnose")
        except StoreError:
            # The service starts without its database as well; /readyz reports it.
            return

    def close(self) -> None:
        """Close the connections to the shared counts of requests."""
        self._rates.close()

    def identify(self, request: Request) -> Principal:
        """Identify the caller; a request is looked up and counted once.

        Raises
        ------
        ProblemError
            401 without a valid credential; 403 if authentication is off and the request comes from another
            machine; 429 for too many requests.
        """
        known: Principal | None = getattr(request.state, "principal", None)
        if known is None:
            known = request.state.principal = self._identified(request)
        return known

    def count(self, caller: Principal, n: int) -> None:
        """Count `n` more requests of an identified caller.

        Raises
        ------
        ProblemError
            429 if these are too many requests.
        """
        if caller.id is not None and n > 0:
            self._rates.hit(caller.id, n)

    def required_sign_in(self) -> SignIn:
        """The sign-in of people at the issuer.

        Raises
        ------
        ProblemError
            404 without one.
        """
        if self.sign_in is None:
            raise ProblemError("not-found", "this service has no sign-in at an issuer")
        return self.sign_in

    def exchange(self, request: Request, given: GivenCode) -> str:
        """Exchange the code of a sign-in for a token; the caller is not known yet.

        Raises
        ------
        ProblemError
            404 without sign-in; 401 if the issuer or this service refuses it; 429 for too many attempts; 503
            while other sign-ins wait for the issuer.
        """
        sign_in, address = self.required_sign_in(), address_of(request)
        self._sign_ins.hit(address)
        try:
            return sign_in.exchange(given)
        except RefusedToken as error:
            _log.warning("sign-in refused", address=address, reason=str(error))
            raise ProblemError(
                "unauthenticated",
                "the issuer refused the sign-in, or its token is not for this service",
                headers={"Connection": "close"},
                hint="sign in again; an operator finds the reason in the log of the service",
            ) from None

    def _identified(self, request: Request) -> Principal:
        address = address_of(request)
        if self._off:
            reason = authority.refusal(request)
            if reason is not None:
                raise ProblemError("forbidden", reason, headers={"Connection": "close"})
            return ANYBODY
        found = self._credential(request, address)
        self._rates.hit(found.id or address)
        return found

    def _credential(self, request: Request, address: str) -> Principal:
        given = _presented(request)
        if given is None:
            raise _unauthenticated("this needs an API key or a token")
        # Checked even after failures of this address: behind a proxy many callers share one.
        found = (
            keys.verified(self._database, given) if given.startswith(keys.KEY_PREFIX) else self._token(given)
        )
        if found is None:
            self._failures.hit(address)
            _log.warning("credential refused", address=address)
            raise _unauthenticated("the API key or token is not valid, or not valid any more")
        return found

    def _token(self, token: str) -> Principal | None:
        if self._tokens is None:
            return None
        try:
            return self._tokens.verify(token)
        except RefusedToken as error:
            _log.info("token refused", reason=str(error))
            return None


def address_of(request: Request) -> str:
    """The address of the caller, for limits and logs."""
    return request.client.host if request.client is not None else "unknown"


def _presented(request: Request) -> str | None:
    """The credential of ``Authorization: Bearer`` or ``X-API-Key``."""
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and value.strip():
        return value.strip()
    return request.headers.get("x-api-key")


def _unauthenticated(detail: str) -> ProblemError:
    return ProblemError(
        "unauthenticated",
        detail,
        headers={"WWW-Authenticate": 'Bearer realm="straggler-rca"', "Connection": "close"},
        hint="`rca keys create --scope diagnose` creates a key; send it as Authorization: Bearer <key>",
    )


#: Headers that proxies add to a request that they forward.
_FORWARDED = ("forwarded", "via", "x-real-ip")
_FORWARDED_PREFIX = "x-forwarded-"


def refusal(request: Request) -> str | None:
    """Why a request must not be answered without authentication; None if it may."""
    server = request.scope.get("server")
    if server is not None and not _is_here(server[0]):
        return f"authentication is off, which needs loopback, but the service listens on {server[0]}"
    # A web page whose host name resolves to 127.0.0.1 sends its own name as Host.
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    if not _is_here(host):
        return f"authentication is off, so the service answers to loopback names only, not to {host!r}"
    # A proxy on this machine that rewrites Host would open the service to its own clients.
    header = next((name for name in request.headers if _is_forwarding(name)), None)
    if header is not None:
        return f"authentication is off, so the service answers no proxy (the request has the header {header})"
    origin = request.headers.get("origin")
    if origin is not None and not _is_here(urlsplit(origin).hostname or ""):
        return "authentication is off, so the service answers no page of another site"
    return None


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address or its usual name."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_forwarding(header: str) -> bool:
    return header in _FORWARDED or header.startswith(_FORWARDED_PREFIX)


def _is_here(host: str) -> bool:
    """Whether `host` is loopback or a name without dots, which no public site has."""
    return is_loopback(host) or (host != "" and "." not in host and ":" not in host)
