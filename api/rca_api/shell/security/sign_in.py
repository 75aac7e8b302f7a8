"""Sign-in of people at the token issuer: authorization code with PKCE (RFC 7636).

The page sends the browser to the issuer and gets a code back. The service exchanges it, so the page needs no
access to other hosts. Only the browser that began the sign-in has the code's verifier.
"""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import StringConstraints

from rca_api.shell.requests.parameters import GivenBody
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.security.issuer import UNREACHABLE, IssuerError, IssuerKeys, read_json
from rca_api.shell.security.tokens import RefusedToken, TokenVerifier

#: Codes that are exchanged at once. Each one takes a thread of the service while the issuer answers.
_MAX_EXCHANGES = 4
_RETRY_SECONDS = 5

#: Status and JSON document of a form that is posted to a URL.
Post = Callable[[str, Mapping[str, str]], tuple[int, dict[str, Any]]]


_Text = Annotated[str, StringConstraints(min_length=1, max_length=8192)]


class GivenCode(GivenBody):
    """What the browser brings back from the issuer, and the address that it came back to."""

    code: _Text
    #: Secret of the browser; the issuer has its digest. RFC 7636 has these lengths and characters.
    verifier: Annotated[str, StringConstraints(pattern="^[A-Za-z0-9._~-]{43,128}$")]
    redirect_uri: _Text

    @property
    def nonce(self) -> str:
        """The nonce of the ID token: the digest of the verifier, as the challenge of PKCE."""
        digest = hashlib.sha256(self.verifier.encode()).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


class SignIn:
    """The client of the page at the token issuer.

    Parameters
    ----------
    client_id : str
        Public client: it has no secret.
    scope : str
        Scopes to request, separated by spaces.
    keys : IssuerKeys
        Has the issuer's addresses.
    verifier : TokenVerifier
        Chooses the token that this service takes.
    """

    def __init__(
        self, client_id: str, scope: str, keys: IssuerKeys, verifier: TokenVerifier, post: Post | None = None
    ) -> None:
        self.client_id = client_id
        self.scope = scope
        self._keys = keys
        self._verifier = verifier
        self._post = post or _posted
        self._exchanges = threading.BoundedSemaphore(_MAX_EXCHANGES)

    @property
    def address(self) -> str:
        """Where the browser goes to sign in.

        Raises
        ------
        IssuerError
            If the issuer is not available.
        """
        return self._keys.address("authorization_endpoint")

    def exchange(self, given: GivenCode) -> str:
        """Exchange a code for a token of this service: the access token, else the ID token.

        An ID token is for the client. It is accepted only if the client id is this service's audience.

        Raises
        ------
        RefusedToken
            If the issuer refuses the code, or none of its tokens is for this service.
        IssuerError
            If the issuer does not answer, or not in its protocol.
        ProblemError
            503 while as many other codes as allowed are exchanged.
        """
        # Without a wait: a caller who waits takes a thread as well.
        if not self._exchanges.acquire(blocking=False):
            raise ProblemError(
                "busy",
                f"{_MAX_EXCHANGES} sign-ins wait for the issuer; retry after {_RETRY_SECONDS} s",
                headers={"Retry-After": str(_RETRY_SECONDS), "Connection": "close"},
            )
        try:
            return self._exchanged(given)
        finally:
            self._exchanges.release()

    def _exchanged(self, given: GivenCode) -> str:
        form = {
            "grant_type": "authorization_code",
            "client_id": self.client_id,
            "code": given.code,
            "code_verifier": given.verifier,
            "redirect_uri": given.redirect_uri,
        }
        try:
            status, answer = self._post(self._keys.address("token_endpoint"), form)
        except (*UNREACHABLE, ValueError) as error:
            raise IssuerError(f"the issuer gives no token: {type(error).__name__}") from error
        if status >= 500:
            raise IssuerError(f"the issuer gives no token: it answers {status}")
        if status != 200:
            raise RefusedToken(f"the issuer refuses the code: {status} {answer.get('error')!r}")
        reasons = []
        for name, nonce in (("access_token", None), ("id_token", given.nonce)):
            token = answer.get(name)
            if not isinstance(token, str):
                continue
            try:
                self._verifier.verify(token, nonce=nonce)
            except RefusedToken as error:
                reasons.append(f"{name}: {error}")
            else:
                return token
        raise RefusedToken("; ".join(reasons) or "the issuer's answer has no token")


def _posted(url: str, form: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    status, document = read_json("POST", url, form)
    if not isinstance(document, dict):
        raise ValueError("the answer is no object")
    return status, document
