"""How the service behaves as a whole: ids, limits under load, failures, probes, metrics, logs."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from bad_windows import REFUSED, WHOLE
from fastapi import FastAPI
from starlette.testclient import TestClient

from rca_api.shell.app import create_app
from rca_api.shell.settings.settings import Settings
from rca_api.shell.state import State
from tests.waiting import until

pytestmark = pytest.mark.system

JSON = {"Content-Type": "application/json"}


def state_of(client: TestClient) -> State:
    app = client.app
    assert isinstance(app, FastAPI)
    parts: State = app.state.parts
    return parts


@pytest.fixture
def own_client() -> Iterator[TestClient]:
    """An app of the test's own, to be tampered with."""
    with TestClient(create_app(Settings(processes=1, queue_limit=0)), raise_server_exceptions=False) as held:
        yield held


def test_a_sane_request_id_is_kept(client: TestClient) -> None:
    assert (
        client.get("/healthz", headers={"X-Request-ID": "alert-42.a_b"}).headers["x-request-id"]
        == "alert-42.a_b"
    )


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, 'a"b', "../etc", "a;b"])
def test_other_request_ids_are_replaced(client: TestClient, given: str) -> None:
    made = client.get("/healthz", headers={"X-Request-ID": given}).headers["x-request-id"]
    assert made != given
    assert len(made) == 32


def test_unknown_paths_and_methods_are_problems(client: TestClient) -> None:
    missing = client.get("/v2/nothing")
    assert (missing.status_code, missing.json()["code"]) == (404, "not-found")
    wrong = client.put("/v1/diagnoses")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "method-not-allowed")
    assert wrong.headers["allow"] == "GET, POST"
    assert {missing.headers["content-type"], wrong.headers["content-type"]} == {"application/problem+json"}


def test_probes_name_the_model(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    until(lambda: client.get("/readyz").status_code == 200)
    ready = client.get("/readyz")
    assert ready.json()["model"] == state_of(client).pool.model.model_dump()  # type: ignore[union-attr]
    assert len(ready.json()["model"]["sha256"]) == 64


def test_a_broken_bundle_is_reported_not_hidden(tmp_path: Path) -> None:
    with TestClient(create_app(Settings(processes=1, bundle=tmp_path / "nothing"))) as client:
        until(lambda: client.get("/readyz").json()["code"] != "not-ready")
        assert client.get("/healthz").status_code == 200
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["code"]) == (503, "bundle-error")
        answer = client.post("/v1/diagnoses", content=WHOLE, headers=JSON)
        assert (answer.status_code, answer.json()["code"]) == (503, "bundle-error")
        assert str(tmp_path) not in answer.text


def test_before_the_bundle_is_loaded_the_service_is_not_ready() -> None:
    answer = TestClient(create_app(Settings(processes=1))).get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "not-ready")
    assert int(answer.headers["retry-after"]) >= 1


def test_an_unexpected_failure_leaks_nothing(own_client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, *arguments: object, **options: object) -> None:
        raise RuntimeError("secret at /srv/bundle")

    monkeypatch.setattr("rca_api.diagnoses.journal.Journal.record", fail)
    answer = own_client.post("/v1/diagnoses", content=WHOLE, headers=JSON)
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "internal-error"
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert "secret" not in answer.text
    assert 'status="500"' in own_client.get("/metrics").text


def test_beyond_its_limit_the_service_says_when_to_come_back(own_client: TestClient) -> None:
    until(lambda: own_client.get("/readyz").status_code == 200)
    [process] = state_of(own_client).pool.processes()
    answers: list[int] = []
    first = threading.Thread(
        target=lambda: answers.append(
            own_client.post("/v1/diagnoses", content=WHOLE, headers=JSON).status_code
        )
    )
    os.kill(process, signal.SIGSTOP)
    try:
        first.start()
        until(lambda: state_of(own_client).admission.requests == 1)
        refused = own_client.post("/v1/diagnoses", content=WHOLE, headers=JSON)
        alive = own_client.get("/healthz")
    finally:
        os.kill(process, signal.SIGCONT)
    first.join()
    assert (refused.status_code, refused.json()["code"]) == (503, "busy")
    assert int(refused.headers["retry-after"]) >= 1
    assert alive.status_code == 200
    assert answers == [200]
    assert own_client.post("/v1/diagnoses", content=WHOLE, headers=JSON).status_code == 200


def test_bodies_in_memory_are_bounded() -> None:
    with TestClient(create_app(Settings(processes=1, max_buffered_bytes=1000))) as client:
        answer = client.post("/v1/diagnoses", content=WHOLE, headers=JSON)
        assert (answer.status_code, answer.json()["code"]) == (503, "busy")
        assert state_of(client).admission.held_bytes == 0


def test_metrics_count_by_route_status_mode_and_problem(own_client: TestClient) -> None:
    own_client.post("/v1/diagnoses", content=WHOLE, headers=JSON)
    own_client.post("/v1/diagnoses", content=REFUSED["no steps and no metrics"].body, headers=JSON)
    own_client.get("/no/such/path/17")
    text = own_client.get("/metrics").text
    assert 'rca_http_requests_total{method="POST",route="/v1/diagnoses",status="200"} 1.0' in text
    assert 'rca_http_requests_total{method="POST",route="/v1/diagnoses",status="422"} 1.0' in text
    assert 'rca_http_requests_total{method="GET",route="unmatched",status="404"} 1.0' in text
    assert 'rca_problems_total{code="invalid-window"} 1.0' in text
    assert "rca_diagnoses_total{" in text
    assert 'rca_diagnosis_stage_seconds_count{stage="diagnose"} 1.0' in text
    assert 'rca_bundle_info{name="' in text
    assert "rca_diagnoses_in_progress 0.0" in text
    assert "/no/such/path/17" not in text


def test_every_log_line_is_json_with_the_request_id(capsys: pytest.CaptureFixture[str]) -> None:
    with TestClient(create_app(Settings(processes=1))) as client:
        client.post("/v1/diagnoses", content=b"", headers={**JSON, "X-Request-ID": "find-me"})
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    mine = [line for line in lines if line.get("request_id") == "find-me"]
    assert [(line["event"], line["status"], line["code"]) for line in mine] == [
        ("request", 400, "invalid-input")
    ]


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RCA_MAX_BODY_BYTES", "3MiB")
    monkeypatch.setenv("RCA_QUEUE_LIMIT", "7")
    settings = Settings()
    assert (int(settings.max_body_bytes), settings.queue_limit) == (3 * 1024**2, 7)


def test_a_service_with_cluster_priors_answers_with_them(tmp_path: Path, make_window) -> None:
    window = make_window(late={5: 0.05}, phase="data_loading_seconds").to_json()
    priors = tmp_path / "priors.json"
    priors.write_text('{"storage_degradation": 1000000, "data_loader_stall": 1}')
    with TestClient(create_app(Settings(processes=1, priors=priors))) as held:
        answer = held.post("/v1/diagnoses", content=window, headers=JSON).json()
    assert answer["causes"][0]["cause"] == "storage_degradation"


def test_a_service_with_invalid_priors_is_not_ready(tmp_path: Path) -> None:
    priors = tmp_path / "priors.json"
    priors.write_text('{"nic": 1}')
    with TestClient(create_app(Settings(processes=1, priors=priors)), raise_server_exceptions=False) as held:
        until(lambda: held.get("/readyz").json().get("code") != "not-ready")
        assert held.get("/readyz").status_code == 503
