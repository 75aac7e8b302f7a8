"""The code of a sign-in at an issuer becomes a token of this service; `test_ui.py` does it in a browser."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from httpx2 import Response
from oidc_provider import AUDIENCE, CLIENT, Provider, provided
from starlette.testclient import TestClient

from rca_api.shell.app import create_app
from rca_api.shell.settings.settings import Settings

pytestmark = [pytest.mark.system, pytest.mark.smoke]

VERIFIER = "v" * 43
BACK = "https://rca.example.org/ui"


@pytest.fixture
def provider() -> Iterator[Provider]:
    with provided() as held:
        yield held


def service(folder: Path, provider: Provider | None, **settings: Any) -> TestClient:
    issuer = {"oidc_issuer": provider.issuer, "oidc_client_id": CLIENT} if provider else {}
    client = TestClient(create_app(Settings(data_dir=folder, auth="keys", **issuer, **settings)))
    client.app.state.parts.database.upgrade()  # type: ignore[attr-defined]
    return client


def code(provider: Provider, **changes: str) -> str:
    """A code as the issuer gives it to a browser that has the verifier."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).decode().rstrip("=")
    asked = {"client_id": CLIENT, "redirect_uri": BACK, "code_challenge": digest, "nonce": digest}
    return provider.code(asked | changes)


def exchange(client: TestClient, code: str, **changes: Any) -> Response:
    return client.post(
        "/ui/sign-in", json={"code": code, "verifier": VERIFIER, "redirect_uri": BACK} | changes
    )


def allowed(client: TestClient, answer: Response) -> int:
    headers = {"Authorization": f"Bearer {answer.json()['token']}"}
    return client.get("/v1/diagnoses", headers=headers).status_code


def test_the_code_of_the_browser_that_began_becomes_a_token_once(tmp_path: Path, provider: Provider) -> None:
    client = service(tmp_path, provider, oidc_client_scope="openid rca:read")
    assert client.get("/ui/sign-in").json() == {
        "address": f"{provider.issuer}/authorize",
        "client_id": CLIENT,
        "scope": "openid rca:read",
    }
    given = code(provider)
    answer = exchange(client, given)
    assert (answer.status_code, allowed(client, answer)) == (200, 200)
    again = exchange(client, given)
    assert (again.status_code, again.json()["code"]) == (401, "unauthenticated")


@pytest.mark.parametrize("changes", [{"verifier": "w" * 43}, {"redirect_uri": "https://evil.example/ui"}])
def test_a_code_of_another_browser_is_refused(
    tmp_path: Path, provider: Provider, changes: dict[str, str]
) -> None:
    answer = exchange(service(tmp_path, provider), code(provider), **changes)
    assert answer.status_code == 401
    assert "token" not in answer.json()


def test_an_id_token_is_taken_only_if_the_client_is_the_audience(tmp_path: Path, provider: Provider) -> None:
    provider.audience = "another service"
    client = service(tmp_path / "one", provider, oidc_audience=AUDIENCE)
    assert exchange(client, code(provider)).status_code == 401
    same = service(tmp_path / "other", provider, oidc_audience=CLIENT)
    assert allowed(same, exchange(same, code(provider))) == 200


def test_an_id_token_of_another_sign_in_is_refused(tmp_path: Path, provider: Provider) -> None:
    provider.audience = None
    client = service(tmp_path, provider, oidc_audience=CLIENT)
    assert exchange(client, code(provider, nonce="of another sign-in")).status_code == 401
    assert exchange(client, code(provider)).status_code == 200


def test_a_token_without_scopes_signs_in_and_may_do_nothing(tmp_path: Path, provider: Provider) -> None:
    provider.scope = "openid"
    client = service(tmp_path, provider)
    assert allowed(client, exchange(client, code(provider))) == 403


def test_a_broken_issuer_is_not_the_fault_of_the_person(tmp_path: Path, provider: Provider) -> None:
    client = service(tmp_path, provider)
    provider.broken = True
    answer = exchange(client, code(provider))
    assert (answer.status_code, answer.json()["code"]) == (503, "issuer-unavailable")


def test_a_body_without_a_code_is_refused_and_not_shown(tmp_path: Path, provider: Provider) -> None:
    client = service(tmp_path, provider)
    short = b'{"code": "c", "verifier": "short", "redirect_uri": "u"}'
    for body, status in (
        (b"", 422),
        (b"[]", 422),
        (b'{"code": "c"}', 422),
        (short, 422),
        (b"x" * 20_000, 413),
    ):
        answer = client.post("/ui/sign-in", content=body)
        assert answer.status_code == status, body[:40]
        assert "short" not in answer.text


def test_an_issuer_that_hangs_holds_few_threads(
    tmp_path: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, asked, answers = service(tmp_path, provider), threading.Semaphore(0), threading.Event()

    def hang(_: dict[str, str]) -> tuple[int, dict[str, Any]]:
        asked.release()
        answers.wait(4.0)
        return 400, {"error": "invalid_grant"}

    # The addresses of the issuer are known from here on.
    assert exchange(client, "made up").status_code == 401
    monkeypatch.setattr(provider, "tokens", hang)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(exchange, client, "made up") for _ in range(4)]
        assert all(asked.acquire(timeout=4.0) for _ in waiting)
        refused = exchange(client, "made up")
        answers.set()
        assert [each.result().status_code for each in waiting] == [401] * 4
    assert (refused.status_code, refused.json()["code"]) == (503, "busy")
    assert int(refused.headers["Retry-After"]) >= 1
    assert exchange(client, "made up").status_code == 401


def test_attempts_are_limited(tmp_path: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rca_api.shell.security.authority._SIGN_IN_RATE", "2/minute")
    client = service(tmp_path, provider)
    assert [exchange(client, "made up").status_code for _ in range(3)] == [401, 401, 429]


def test_without_an_issuer_there_is_no_sign_in(tmp_path: Path) -> None:
    client = service(tmp_path, None)
    assert client.get("/ui/access").json() == {"keys": True, "sign_in": False}
    assert client.get("/ui/sign-in").status_code == 404
    assert exchange(client, "code").status_code == 404
