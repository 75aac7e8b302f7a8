"""Authentication and scopes of every route."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import structlog
from httpx2 import Response
from starlette.testclient import TestClient

from rca.errors import InvalidInput
from rca_api.shell.app import create_app
from rca_api.shell.observability import logs
from rca_api.shell.observability.logs import hidden, redact
from rca_api.shell.security import keys
from rca_api.shell.security.principal import Scope
from rca_api.shell.security.rates import Rates
from rca_api.shell.settings.settings import Settings
from rca_api.shell.state import State
from tests.for_each import for_each

OPEN_TO_ALL = {"/healthz", "/readyz", "/metrics"}


class Service:
    """A service with authentication on, and keys for it."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.settings = Settings(data_dir=folder, auth="keys", **settings)
        self.app = create_app(self.settings)
        self.parts: State = self.app.state.parts
        self.parts.database.upgrade()
        self.client = TestClient(self.app, raise_server_exceptions=False)

    def post(self, headers: Mapping[str, str] | None = None) -> Response:
        """Post a body that gets 415, but only with the right scope."""
        sent = {"Content-Type": "text/plain"} | dict(headers or {})
        return self.client.post("/v1/diagnoses", content=b"window", headers=sent)

    def key(self, *scopes: Scope) -> dict[str, str]:
        with self.parts.database.session() as session:
            return {"Authorization": f"Bearer {keys.create(session, 'test', scopes)[1]}"}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    held = Service(tmp_path)
    yield held
    held.parts.database.close()


@pytest.mark.system
def test_every_route_except_probes_requires_a_credential(service: Service) -> None:
    paths = service.app.openapi()["paths"]
    open_ones = {path for path, held in paths.items() for told in held.values() if not told.get("security")}
    assert open_ones == OPEN_TO_ALL
    assert len(paths) > len(OPEN_TO_ALL)


def test_a_request_without_credential_gets_401_and_a_hint(service: Service) -> None:
    answer = service.post()
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert answer.json()["code"] == "unauthenticated"
    assert "rca keys create" in answer.json()["hint"]


def test_a_key_of_another_scope_gets_403(service: Service) -> None:
    answer = service.post(service.key(Scope.read))
    assert answer.status_code == 403
    assert "'diagnose'" in answer.json()["detail"]


def operations_of_scopes() -> dict[str, set[str]]:
    """Operations by the title under which the page of scopes lists them."""
    page = Path("docs/reference/scopes.md").read_text(encoding="utf-8")
    sections = [section.partition("\n") for section in page.split("\n## ")[1:]]
    return {title: set(re.findall(r"^- `(.+)`$", held, re.MULTILINE)) for title, _, held in sections}


def status_of(service: Service, operation: str, headers: Mapping[str, str]) -> int:
    """Status of an operation that is asked about things that are not there."""
    method, _, path = operation.partition(" ")
    known = {"digest": "0" * 64, "cause": "hang", "version": "1"}
    place = re.sub(r"\{(\w+)\}", lambda found: known.get(found[1], "0" * 32), path)
    return service.client.request(method, place, headers=headers, follow_redirects=False).status_code


@pytest.mark.system
def test_the_page_of_scopes_lists_every_operation(service: Service) -> None:
    listed = operations_of_scopes()
    documented = {
        f"{method.upper()} {path}" for path, held in service.app.openapi()["paths"].items() for method in held
    }
    assert documented - set().union(*listed.values()) == set()
    assert [*listed][:-1] == [scope.value for scope in Scope]


@pytest.mark.system
def test_a_key_with_one_scope_may_do_what_the_page_of_scopes_lists(tmp_path: Path) -> None:
    service = Service(tmp_path, rate_limit="")
    *_, without_key = listed = operations_of_scopes()
    open_to_all = listed.pop(without_key)
    wrong = {each for each in open_to_all if status_of(service, each, {}) == 401}
    for operation in set().union(*listed.values()):
        allowed = {scope for scope in Scope if operation in listed[scope]}
        others = set(Scope) - allowed - {Scope.admin}
        wrong |= {operation} if status_of(service, operation, {}) != 401 else set()
        wrong |= {operation} if status_of(service, operation, service.key(*others)) != 403 else set()
        for scope in allowed:
            if status_of(service, operation, service.key(scope)) in (401, 403):
                wrong.add(operation)
    assert wrong == set()


def test_a_single_diagnosis_can_be_read_with_diagnose_or_feedback(service: Service) -> None:
    place = f"/v1/diagnoses/{'0' * 32}"
    codes = {scope: service.client.get(place, headers=service.key(scope)).status_code for scope in Scope}
    assert {scope for scope, code in codes.items() if code == 404} == {
        Scope.diagnose,
        Scope.read,
        Scope.feedback,
        Scope.admin,
    }
    assert set(codes.values()) == {403, 404}
    assert service.client.get("/v1/diagnoses", headers=service.key(Scope.diagnose)).status_code == 403


@pytest.mark.parametrize("scope", [Scope.diagnose, Scope.admin])
def test_the_right_key_gets_to_the_window(service: Service, scope: Scope) -> None:
    assert service.post(service.key(scope)).status_code == 415


def test_the_other_header_works_as_well(service: Service) -> None:
    key = service.key(Scope.diagnose)["Authorization"].removeprefix("Bearer ")
    assert service.post({"X-API-Key": key}).status_code == 415


def test_a_wrong_key_is_refused_whatever_is_posted(service: Service) -> None:
    headers = {"Authorization": "Bearer rca_" + "0" * 16 + "_" + "A" * 43, "Content-Type": "application/json"}
    assert service.client.post("/v1/diagnoses", content=b"{" * 1000, headers=headers).status_code == 401


def test_who_guesses_is_not_listened_to_for_a_while(service: Service) -> None:
    wrong = {"Authorization": "Bearer rca_" + "0" * 16 + "_" + "A" * 43}
    codes = [service.post(wrong).status_code for _ in range(62)]
    assert codes[:60] == [401] * 60
    assert set(codes[60:]) == {429}


def test_who_has_a_key_is_listened_to_whatever_others_of_its_address_did(service: Service) -> None:
    wrong = {"Authorization": "Bearer rca_" + "0" * 16 + "_" + "A" * 43}
    assert [service.post(wrong).status_code for _ in range(61)][-1] == 429
    assert service.post(service.key(Scope.diagnose)).status_code == 415
    assert service.post(wrong).status_code == 429


def test_too_many_requests_get_429_with_retry_after(tmp_path: Path) -> None:
    service = Service(tmp_path, rate_limit="3/minute")
    one, other = service.key(Scope.diagnose), service.key(Scope.diagnose)
    answers = [service.post(one) for _ in range(4)]
    assert [answer.status_code == 429 for answer in answers] == [False, False, False, True]
    assert 1 <= int(answers[-1].headers["Retry-After"]) <= 60
    assert service.post(other).status_code != 429
    service.parts.database.close()


def test_every_window_of_a_batch_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(tmp_path, rate_limit="5/minute")
    headers = service.key(Scope.diagnose) | {"Content-Type": "application/json"}
    windows = 3

    async def split(*_: object, **__: object) -> list[InvalidInput]:
        return [InvalidInput("no window")] * windows

    monkeypatch.setattr(service.parts.pool, "run", split)
    codes = [
        service.client.post("/v1/diagnoses/batch", content=b"{}", headers=headers).status_code for _ in "ab"
    ]
    assert codes == [200, 429]
    windows = 1
    assert service.client.post("/v1/diagnoses/batch", content=b"{}", headers=headers).status_code == 200
    service.parts.database.close()


def test_an_unavailable_rate_storage_does_not_delay_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = Rates("1000/minute")

    def fail(*_: object, **__: object) -> bool:
        raise ConnectionError

    monkeypatch.setattr(rates._limiter, "hit", fail)
    rates.hit("caller")


def test_metrics_can_be_closed(tmp_path: Path) -> None:
    service = Service(tmp_path, public_metrics=False)
    assert service.client.get("/metrics").status_code == 401
    assert service.client.get("/metrics", headers=service.key(Scope.read)).status_code == 200
    service.parts.database.close()


@for_each(
    ("address", "headers", "allowed"),
    [
        ("http://127.0.0.1", {}, True),
        ("http://localhost", {}, True),
        ("http://[::1]", {}, True),
        ("http://10.0.0.7", {}, False),
        ("http://127.0.0.1", {"Host": "rebound.evil.example"}, False),
        ("http://127.0.0.1", {"Origin": "https://evil.example"}, False),
        ("http://127.0.0.1", {"Origin": "null"}, False),
        ("http://127.0.0.1", {"Origin": "http://127.0.0.1:8080"}, True),
        ("http://127.0.0.1", {"X-Forwarded-For": "10.0.0.7"}, False),
        ("http://127.0.0.1", {"X-Forwarded-Host": "rca.example"}, False),
        ("http://127.0.0.1", {"X-Real-IP": "10.0.0.7"}, False),
        ("http://127.0.0.1", {"Forwarded": "for=10.0.0.7"}, False),
        ("http://127.0.0.1", {"Via": "1.1 front"}, False),
    ],
)
def test_without_authentication_only_this_machine_is_answered(
    tmp_path: Path, address: str, headers: dict[str, str], *, allowed: bool
) -> None:
    app = create_app(Settings(data_dir=tmp_path, auth="off"))
    sent = {"Content-Type": "text/plain"} | headers
    answer = TestClient(app, base_url=address).post("/v1/diagnoses", content=b"window", headers=sent)
    assert answer.status_code == (415 if allowed else 403)


def test_answers_carry_the_headers_browsers_need(service: Service) -> None:
    headers = service.client.get("/healthz").headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"


def test_no_secret_reaches_the_log(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    logs.configure("debug")
    handler = logging.getLogger("rca_api").handlers[0]
    monkeypatch.setattr(handler, "stream", written)
    key = service.key(Scope.diagnose)["Authorization"].removeprefix("Bearer ")
    # The secret itself may hold the separator.
    secret = key.split("_", 2)[2]
    log = structlog.stdlib.get_logger("rca_api.test")
    log.error(
        f"request with {key} failed",
        authorization=f"Bearer {key}",
        headers={"X-API-Key": key, "list": [f"Bearer {key}"]},
        database="postgresql://rca:hunter2@db/rca",
    )
    try:
        raise ValueError(f"bad key {key}")
    except ValueError:
        log.exception("failed")
    told = written.getvalue()
    assert secret not in told
    assert "hunter2" not in told
    assert len([json.loads(line) for line in told.splitlines()]) == 2


@for_each(
    "address",
    [
        "postgresql://rca:TOP@db:5432/rca",
        "postgresql://u:TOP/SECRET@h/db",
        "postgresql://u:TOP@SECRET@h/db",
        "postgresql://u:TOP:SECRET?&#@h/db?sslmode=require",
        "postgresql://h/db?user=u&password=TOP",
        "postgresql://h/db?sslpassword=TOP&user=u",
        "postgresql://u:TOP@h/db?password=SECRET",
        "redis://:TOP@cache:6379/0",
        "rediss://cache:6379/0?PASSWORD=TOP",
        "s3://AKIA:TOP/SECRET+=@bucket/windows",
        "HTTPS://u:TOP@mlflow",
        "https://mlflow/?access_token=TOP",
    ],
)
def test_addresses_are_shown_without_what_opens_them(address: str) -> None:
    shown = hidden(f"cannot reach {address}: timeout")
    assert "TOP" not in shown
    assert "SECRET" not in shown
    assert shown.startswith(f"cannot reach {address.partition('://')[0]}://")
    assert hidden(address) == hidden(hidden(address))


def test_a_log_of_text_hides_passwords_in_tracebacks() -> None:
    try:
        raise ConnectionError("API request to http://user:s3cretpw@mlflow:5000/api failed")
    except ConnectionError:
        record = logging.LogRecord(
            "rca", logging.ERROR, "", 0, "failed at %s", ("http://u:s3cretpw@h",), sys.exc_info()
        )
    text = logs.HidingFormatter(logging.BASIC_FORMAT).format(record)
    assert "ConnectionError" in text
    assert "s3cretpw" not in text


@for_each("piece", ["a", "http://a:", "eyJ", "?key", "bearer ", "a://"])
def test_no_text_takes_long_to_redact(piece: str) -> None:
    began = time.process_time()
    hidden(piece * (64 * 1024 // len(piece)))
    assert time.process_time() - began < 1.0


def test_redaction_leaves_ordinary_text_alone() -> None:
    event = {
        "event": "rca_diagnoses 12, http://127.0.0.1:8080/v1?node=a&since=2026-01-01T00:00:00Z",
        "hook": "https://hooks.example.org/rca",
        "mail": "ada@example.org",
        "n": 3,
        "nodes": ["node-1"],
    }
    assert redact(None, "", dict(event)) == event
