"""`/v1/models` over HTTP, against a registry that is made up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rca.diagnosis.result import ModelVersion
from rca.errors import InvalidInput, MissingExtra
from rca_api.models.registry import RegistryAway
from rca_api.shell.app import create_app
from rca_api.shell.processes.pool import ComputePool
from rca_api.shell.settings.settings import Settings
from rca_api.shell.state import State

pytestmark = pytest.mark.system

GATE = {"outcome": "as good", "passed": True, "against": "shipped", "reasons": "no check tells them apart"}


def version(number: int, **changes: Any) -> dict[str, Any]:
    made = {
        "version": number,
        "aliases": [],
        "sha256": f"{number:064}",
        "created_at": "2026-01-01T00:00:00+00:00",
        "mlflow_run_id": "f" * 32,
        "tags": {"corpus.sha256": "c"},
        "scores": {"test_failure_mode_accuracy": {"value": 0.9, "low": 0.8, "high": 0.95, "n": 100.0}},
        "gate": GATE,
    }
    return made | changes


class FakeRegistry:
    """Version 1 is the champion, 2 passed, 3 was refused, 4 was never compared."""

    def __init__(self) -> None:
        refused = {**GATE, "outcome": "worse", "passed": False, "reasons": "more false alarms"}
        self.held = {
            "1": version(1, aliases=["champion"]),
            "2": version(2),
            "3": version(3, gate=refused),
            "4": version(4, gate=None),
        }
        self.failure: Exception | None = None
        self.asked: list[tuple[Any, ...]] = []

    def _working(self) -> None:
        if self.failure is not None:
            raise self.failure

    def versions(self) -> list[dict[str, Any]]:
        self._working()
        return list(self.held.values())

    def version(self, name: str) -> dict[str, Any] | None:
        self._working()
        return self.held["1" if name == "champion" else name] if name in (*self.held, "champion") else None

    def card(self, name: str) -> str | None:
        self._working()
        return "# Model card" if name in self.held else None

    def promote(self, name: str, by: str, force: str | None) -> dict[str, Any]:
        self._working()
        self.asked.append((name, by, force))
        if name == "1":
            raise InvalidInput("version 1 is the champion already")
        gate = self.held[name]["gate"]
        promoted = force is not None or (gate is not None and gate["passed"])
        return {"promoted": promoted, "unjudged": not promoted and gate is None, "version": self.held[name]}

    def rollback(self, reason: str, expected: int) -> dict[str, Any]:
        self._working()
        self.asked.append((reason, expected))
        if expected != 1:
            raise InvalidInput(f"version {expected} is not the champion, version 1 is")
        return {"from": 1, "to": None}

    def retry(self, name: str) -> dict[str, Any]:
        self._working()
        self.asked.append((name,))
        return self.held[name]

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("service")
    app = create_app(Settings(data_dir=folder, tracking_uri="http://registry", follow_seconds=0))
    app.state.parts = replace(app.state.parts, registry=FakeRegistry())
    with TestClient(app) as held:
        yield held


@pytest.fixture
def registry(client: TestClient) -> FakeRegistry:
    """The state before any call."""
    held: FakeRegistry = client.app.state.parts.registry  # type: ignore[attr-defined]
    FakeRegistry.__init__(held)
    return held


def test_versions_have_scores_intervals_and_verdict(client: TestClient, registry: FakeRegistry) -> None:
    told = client.get("/v1/models").json()
    assert told["answering"]["version"] is None
    assert [each["version"] for each in told["items"]] == [1, 2, 3, 4]
    assert told["items"][0]["scores"]["test_failure_mode_accuracy"]["low"] == 0.8
    assert told["items"][2]["gate"]["reasons"] == "more false alarms"
    assert not any(each["answers"] for each in told["items"])


def test_a_registered_bundle_of_the_operator_answers_with_its_number(
    client: TestClient, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = ModelVersion(name="ours", version="2", sha256="c" * 64, registry_version=3)
    monkeypatch.setattr(ComputePool, "model_of", lambda self, ref: ours)
    told = client.get("/v1/models").json()
    assert {name: told["answering"][name] for name in ("version", "source", "sha256")} == {
        "version": 3,
        "source": "shipped",
        "sha256": "c" * 64,
    }
    assert [each["version"] for each in told["items"] if each["answers"]] == [3]


def test_a_version_is_found_by_number_and_alias_as_json_or_as_its_card(client: TestClient) -> None:
    assert client.get("/v1/models/champion").json() == client.get("/v1/models/1").json()
    card = client.get("/v1/models/1", headers={"Accept": "text/markdown"})
    assert (card.text, card.headers["content-type"].split(";")[0]) == ("# Model card", "text/markdown")
    for name, status in [("17", 404), ("..%2f1", 404), ("A" * 21, 422)]:
        assert client.get(f"/v1/models/{name}").status_code == status
    assert client.get("/v1/models/17", headers={"Accept": "text/markdown"}).status_code == 404
    assert client.get("/v1/models/1", headers={"Accept": "image/png"}).status_code == 406


def test_what_has_passed_the_gate_is_promoted(client: TestClient, registry: FakeRegistry) -> None:
    told = client.post("/v1/models/2/promote")
    assert (told.status_code, told.json()["version"]) == (200, 2)
    assert registry.asked == [("2", "anybody", None)]


def test_what_has_not_is_refused_unless_forced_for_a_reason(
    client: TestClient, registry: FakeRegistry
) -> None:
    refused = client.post("/v1/models/3/promote", json={})
    assert (refused.status_code, refused.json()["code"]) == (409, "gate-refused")
    assert "more false alarms" in refused.json()["detail"]
    assert client.post("/v1/models/3/promote", json={"force": ""}).status_code == 422
    assert client.post("/v1/models/3/promote", json={"force": "an outage"}).status_code == 200
    assert registry.asked[-1] == ("3", "anybody", "an outage")


def test_what_was_never_compared_becomes_a_run_of_the_worker(client: TestClient) -> None:
    told = client.post("/v1/models/4/promote", json={"windows": 100})
    assert told.status_code == 202
    run = client.get(told.headers["Location"]).json()
    assert (run["kind"], run["order"]) == ("promotion", {"version": "4", "gate_windows": 100})
    again = client.post("/v1/models/4/promote")
    assert (again.status_code, again.headers["Location"]) == (409, told.headers["Location"])


def test_the_champion_cannot_be_promoted_again(client: TestClient, registry: FakeRegistry) -> None:
    told = client.post("/v1/models/champion/promote")
    assert (told.status_code, told.json()["code"]) == (409, "conflict")


def test_a_rollback_needs_a_reason_and_stores_its_caller(client: TestClient, registry: FakeRegistry) -> None:
    for incomplete in ({}, {"from": 1}, {"reason": "blames healthy nodes"}):
        assert client.post("/v1/models/rollback", json=incomplete).status_code == 422
    told = client.post("/v1/models/rollback", json={"from": 1, "reason": "blames healthy nodes"})
    assert (told.status_code, told.json()) == (200, {"from": 1, "to": None})
    assert registry.asked == [("blames healthy nodes (anybody)", 1)]


def test_rolling_back_from_a_version_that_is_no_champion_any_more_is_a_conflict(
    client: TestClient, registry: FakeRegistry
) -> None:
    told = client.post("/v1/models/rollback", json={"from": 2, "reason": "blames healthy nodes"})
    assert (told.status_code, told.json()["code"]) == (409, "conflict")
    assert "version 1 is" in told.json()["detail"]


def test_another_trial_of_a_rejected_version_can_be_requested(
    client: TestClient, registry: FakeRegistry
) -> None:
    state: State = client.app.state.parts  # type: ignore[attr-defined]
    digest = registry.held["1"]["sha256"]
    state.models.reject(digest, "it never ends")
    assert client.get("/v1/models/1").json()["rejected"] == "it never ends"
    state.models.reconsider(digest)
    state.models.postpone(digest, "the store is away")
    told = client.post("/v1/models/champion/retry")
    assert (told.status_code, told.json()["rejected"], told.json()["postponed"]) == (
        200,
        None,
        "the store is away",
    )
    assert registry.asked == [("1",)]
    assert client.post("/v1/models/17/retry").status_code == 404


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (RegistryAway("the registry did not answer within 30 s"), 503, "registry-unavailable"),
        (MissingExtra("tracking needs MLflow"), 501, "missing-extra"),
    ],
)
def test_a_registry_that_fails_is_said_and_diagnoses_go_on(
    client: TestClient, registry: FakeRegistry, failure: Exception, status: int, code: str, make_window: Any
) -> None:
    registry.failure = failure
    for method, place, body in [
        ("GET", "/v1/models", None),
        ("GET", "/v1/models/1", None),
        ("POST", "/v1/models/2/promote", {}),
        ("POST", "/v1/models/rollback", {"from": 1, "reason": "anything"}),
        ("POST", "/v1/models/1/retry", None),
    ]:
        told = client.request(method, place, json=body)
        assert (told.status_code, told.json()["code"]) == (status, code), place
        assert ("Retry-After" in told.headers) == (status == 503)
    answer = client.post(
        "/v1/diagnoses", content=make_window().to_json(), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 200


def test_without_a_registry_the_own_bundle_is_shown(tmp_path: Path) -> None:
    with TestClient(create_app(Settings(data_dir=tmp_path))) as client:
        told = client.get("/v1/models").json()
        assert (told["items"], told["answering"]["registry_failure"]) == ([], None)
        assert client.get("/v1/models/1").status_code == 404
        assert client.post("/v1/models/rollback", json={"from": 1, "reason": "anything"}).status_code == 409
        assert not (tmp_path / "mlflow.db").exists()
