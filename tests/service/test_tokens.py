"""Bearer tokens of an OIDC issuer."""

from __future__ import annotations

import base64
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import structlog
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

from rca_api.shell.security import issuer as issuer_keys
from rca_api.shell.security.issuer import IssuerError
from rca_api.shell.security.principal import Scope
from rca_api.shell.security.tokens import RefusedToken, TokenVerifier
from tests.for_each import for_each
from tests.telemetry.prometheus_servers import dripping, talking
from tests.waiting import until

ISSUER, AUDIENCE, NOW = "https://id.example", "straggler-rca", 1_800_000_000.0


class Issuer:
    """An issuer with one key, which it can replace."""

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "one"})
        self.asked: list[str] = []
        self.away = False
        self.hanging: threading.Event | None = None
        self.discovery: dict[str, Any] = {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/keys"}

    def fetch(self, url: str) -> dict[str, Any]:
        self.asked.append(url)
        if self.hanging is not None:
            self.hanging.wait(20.0)
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
    return TokenVerifier(
        ISSUER, AUDIENCE, fetch=issuer.fetch, clock=lambda: moment[0], ticks=lambda: moment[0]
    )


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


@for_each(
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


@for_each(
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


@for_each("token", ["", "x", "a.b.c", "....", "\udcff.a.b", "é" * 100])
def test_what_is_no_token(verifier: TokenVerifier, token: str) -> None:
    with pytest.raises(RefusedToken):
        verifier.verify(token)


def test_keys_are_fetched_once(issuer: Issuer, verifier: TokenVerifier) -> None:
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


def test_a_new_key_is_found_after_the_clock_was_put_back(issuer: Issuer, moment: list[float]) -> None:
    ticks = [0.0]
    verifier = TokenVerifier(
        ISSUER, AUDIENCE, fetch=issuer.fetch, clock=lambda: moment[0], ticks=lambda: ticks[0]
    )
    verifier.verify(issuer.token())
    issuer.key = RSAKey.generate_key(2048, {"kid": "two"})
    moment[0] -= 5 * 3600
    ticks[0] += 31
    assert verifier.verify(issuer.token(exp=moment[0] + 60)).id == "oidc:u1"


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


@pytest.mark.parametrize(("stated", "is_slash"), [(f"{ISSUER}/", True), ("https://other.example", False)])
def test_a_wrong_name_of_the_issuer_is_named_in_the_log(
    issuer: Issuer, verifier: TokenVerifier, stated: str, is_slash: bool
) -> None:
    issuer.discovery["issuer"] = stated
    with structlog.testing.capture_logs() as logged:
        for _ in range(2):
            # The second one does not fetch again, and names the setting all the same.
            with pytest.raises(IssuerError, match="RCA_OIDC_ISSUER"):
                verifier.verify(issuer.token())
    (line,) = logged
    assert f"{ISSUER!r}, and the issuer calls itself {stated!r}" in line["reason"]
    assert ("only the slash at the end differs" in line["reason"]) == is_slash


@pytest.fixture
def hanging(issuer: Issuer, verifier: TokenVerifier, moment: list[float]) -> Iterator[threading.Event]:
    """An issuer that hangs until the event is set, and a request that fetches its keys."""
    verifier.verify(issuer.token())
    moment[0] += 31
    issuer.hanging = let_go = threading.Event()
    forged = issuer.token(key=RSAKey.generate_key(2048, {"kid": "made up"}))

    def ask() -> None:
        with pytest.raises(RefusedToken):
            verifier.verify(forged)

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: len(issuer.asked) >= 3, pause=0.001)
    yield let_go
    let_go.set()
    asking.join()


def test_requests_do_not_wait_for_a_fetch_by_another_request(
    issuer: Issuer, verifier: TokenVerifier, hanging: threading.Event
) -> None:
    assert verifier.verify(issuer.token()).id == "oidc:u1"
    with pytest.raises(IssuerError, match="not loaded yet"):
        verifier.verify(issuer.token(key=RSAKey.generate_key(2048, {"kid": "other"})))
    assert not hanging.is_set()
    assert len(issuer.asked) == 3


def test_a_hanging_issuer_is_called_by_one_request(issuer: Issuer, verifier: TokenVerifier) -> None:
    issuer.hanging = threading.Event()
    asking = threading.Thread(target=verifier.prepare)
    asking.start()
    until(lambda: issuer.asked, pause=0.001)
    with pytest.raises(IssuerError):
        verifier.verify(issuer.token())
    issuer.hanging.set()
    asking.join()
    assert verifier.verify(issuer.token()).id == "oidc:u1"
    assert len(issuer.asked) == 2


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


class Dripping(BaseHTTPRequestHandler):
    """Answers with a byte now and then, for ever."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            while True:
                self.wfile.write(b" ")
                time.sleep(0.02)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.system
@for_each(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 500_000,
        b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (2 << 20),
        b'HTTP/1.1 200 OK\r\n\r\n{"issuer": ' + b"9" * 5000 + b"}",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n",
        b"no HTTP",
    ],
    ids=["nested", "large", "digits", "redirect", "other"],
)
def test_an_odd_answer_of_the_issuer_is_an_error(answer: bytes) -> None:
    with talking(lambda connection: connection.sendall(answer)) as url, pytest.raises(IssuerError):
        issuer_keys.IssuerKeys(url).holding(None)


@pytest.mark.system
def test_headers_of_the_issuer_byte_by_byte_end_with_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuer_keys, "_FETCH_SECONDS", 0.3)
    began = time.monotonic()
    slow = dripping(b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 500)
    with talking(slow) as url, pytest.raises(IssuerError):
        issuer_keys.IssuerKeys(url).holding(None)
    assert time.monotonic() - began < 5


@pytest.mark.system
def test_an_issuer_that_never_comes_to_an_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuer_keys, "_FETCH_SECONDS", 0.3)
    with ThreadingHTTPServer(("127.0.0.1", 0), Dripping) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(IssuerError):
            issuer_keys.IssuerKeys(f"http://127.0.0.1:{server.server_port}").holding(None)
        server.shutdown()
