"""Bearer tokens of an OIDC issuer."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

from rca_api.security.principal import Scope
from rca_api.security.tokens import IssuerError, RefusedToken, TokenVerifier

ISSUER, AUDIENCE, NOW = "https://id.example", "straggler-rca", 1_800_000_000.0


class Issuer:
    """An issuer with one key, which it can replace."""

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "one"})
        self.asked: list[str] = []
        self.away = False
        self.discovery: dict[str, Any] = {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/keys"}

    def fetch(self, url: str) -> dict[str, Any]:
        self.asked.append(url)
        if self.away:
            raise ValueError("away")
        return self.discovery if url.endswith("openid-configuration") else KeySet([self.key]).as_dict()  # type: ignore[return-value]

    def token(self, *, key: Any = None, algorithm: str = "RS256", **claims: Any) -> str:
        held = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "u1",
            "exp": NOW + 600,
            "scope": "openid rca:read diagnose",
        }
        signer = key or self.key
        header = {"alg": algorithm, "kid": signer.kid}
        present = {name: value for name, value in (held | claims).items() if value is not None}
        return jwt.encode(header, present, signer, algorithms=[algorithm])


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def moment() -> list[float]:
    return [NOW]


@pytest.fixture
def verifier(issuer: Issuer, moment: list[float]) -> TokenVerifier:
    return TokenVerifier(ISSUER, AUDIENCE, fetch=issuer.fetch, clock=lambda: moment[0])


def test_a_good_token_names_its_subject_and_scopes(issuer: Issuer, verifier: TokenVerifier) -> None:
    found = verifier.verify(issuer.token(email="ada@example.org"))
    assert (found.id, found.name) == ("oidc:u1", "ada@example.org")
    assert found.scopes == {Scope.read, Scope.diagnose}


def test_scopes_may_be_a_list_of_roles(issuer: Issuer) -> None:
    verifier = TokenVerifier(ISSUER, AUDIENCE, scope_claim="roles", fetch=issuer.fetch, clock=lambda: NOW)
    assert verifier.verify(issuer.token(roles=["rca:train", "other"])).scopes == {Scope.train}


@pytest.mark.parametrize("claims", [{"scope": None}, {"scope": 7}, {"scope": {"read": True}}])
def test_odd_scope_claims_give_no_scope(
    issuer: Issuer, verifier: TokenVerifier, claims: dict[str, Any]
) -> None:
    assert verifier.verify(issuer.token(**claims)).scopes == frozenset()


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": NOW - 61},
        {"exp": None},
        {"nbf": NOW + 61},
        {"iss": "https://evil.example"},
        {"aud": "other"},
        {"aud": None},
        {"sub": None},
    ],
)
def test_claims_that_do_not_hold(issuer: Issuer, verifier: TokenVerifier, claims: dict[str, Any]) -> None:
    with pytest.raises(RefusedToken):
        verifier.verify(issuer.token(**claims))


def unsigned(issuer: Issuer) -> str:
    _, payload, _ = issuer.token().split(".")
    header = base64.urlsafe_b64encode(json.dumps({"alg": "none", "kid": "one"}).encode()).decode().rstrip("=")
    return f"{header}.{payload}."


def signed_with_the_public_key(issuer: Issuer) -> str:
    # By hand: the library refuses to make such a token.
    header = (
        base64.urlsafe_b64encode(json.dumps({"alg": "HS256", "kid": "one"}).encode()).decode().rstrip("=")
    )
    signed = f"{header}.{issuer.token().split('.')[1]}"
    mac = hmac.digest(issuer.key.as_pem(private=False), signed.encode(), "sha256")
    return f"{signed}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


def signed_by_another(issuer: Issuer) -> str:
    return issuer.token(key=RSAKey.generate_key(2048, {"kid": "one"}))


def signed_with_a_curve_nobody_published(issuer: Issuer) -> str:
    return issuer.token(key=ECKey.generate_key("P-256", {"kid": "one"}), algorithm="ES256")


def with_other_claims(issuer: Issuer) -> str:
    head, _, signature = issuer.token().split(".")
    return ".".join((head, issuer.token(scope="admin").split(".")[1], signature))


@pytest.mark.parametrize(
    "forge",
    [
        unsigned,
        signed_with_the_public_key,
        signed_by_another,
        signed_with_a_curve_nobody_published,
        with_other_claims,
    ],
)
@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
def test_forged_tokens(issuer: Issuer, verifier: TokenVerifier, forge: Callable[[Issuer], str]) -> None:
    with pytest.raises(RefusedToken):
        verifier.verify(forge(issuer))


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "....", "\udcff.a.b", "é" * 100])
def test_what_is_no_token(verifier: TokenVerifier, token: str) -> None:
    with pytest.raises(RefusedToken):
        verifier.verify(token)


def test_keys_are_asked_for_once(issuer: Issuer, verifier: TokenVerifier) -> None:
    for _ in range(5):
        verifier.verify(issuer.token())
    assert len(issuer.asked) == 2


def test_a_new_key_of_the_issuer_is_found(
    issuer: Issuer, verifier: TokenVerifier, moment: list[float]
) -> None:
    verifier.verify(issuer.token())
    issuer.key = RSAKey.generate_key(2048, {"kid": "two"})
    moment[0] += 31
    assert verifier.verify(issuer.token()).id == "oidc:u1"


def test_made_up_key_ids_do_not_make_us_ask_again(
    issuer: Issuer, verifier: TokenVerifier, moment: list[float]
) -> None:
    verifier.verify(issuer.token())
    forged = [issuer.token(key=RSAKey.generate_key(2048, {"kid": f"k{number}"})) for number in range(3)]
    moment[0] += 31
    for token in forged:
        with pytest.raises(RefusedToken):
            verifier.verify(token)
    assert len(issuer.asked) == 4


def test_known_keys_outlive_their_issuer(
    issuer: Issuer, verifier: TokenVerifier, moment: list[float]
) -> None:
    token = issuer.token(exp=NOW + 1e6)
    verifier.verify(token)
    issuer.away = True
    moment[0] += 7200
    assert verifier.verify(token).id == "oidc:u1"


def test_an_issuer_that_was_never_reached_is_not_the_callers_fault(
    issuer: Issuer, verifier: TokenVerifier, moment: list[float]
) -> None:
    issuer.away = True
    for _ in range(3):
        with pytest.raises(IssuerError):
            verifier.verify(issuer.token())
    assert len(issuer.asked) == 1
    issuer.away = False
    moment[0] += 31
    assert verifier.verify(issuer.token()).id == "oidc:u1"


@pytest.mark.parametrize(
    "discovery",
    [
        {"issuer": "https://evil.example", "jwks_uri": f"{ISSUER}/keys"},
        {"issuer": ISSUER, "jwks_uri": "http://id.example/keys"},
        {"issuer": ISSUER},
        {},
    ],
)
def test_a_discovery_document_of_somebody_else(
    issuer: Issuer, verifier: TokenVerifier, discovery: dict[str, Any]
) -> None:
    issuer.discovery = discovery
    with pytest.raises(IssuerError):
        verifier.verify(issuer.token())
