"""`/v1/runbooks`: listed, shown, and filled from a stored diagnosis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from incident_service import live, service_without_model, state_of
from starlette.testclient import TestClient

from rca.window.causes import SPECS
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.hooks.alertmanager import _facts
from rca_api.shell.app import create_app
from rca_api.shell.settings.settings import Settings


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with service_without_model(f"sqlite:///{tmp_path / 'rca.db'}", tmp_path) as held:
        yield held


def test_every_cause_has_a_runbook(client: TestClient) -> None:
    listed = client.get("/v1/runbooks").json()["runbooks"]
    assert [each["cause"] for each in listed] == list(SPECS)
    for each in listed:
        shown = client.get(f"/v1/runbooks/{each['cause']}?platform=slurm").json()
        assert (shown["cause"], shown["platform"], shown["diagnosis_id"]) == (each["cause"], "slurm", None)


def test_a_stored_diagnosis_fills_it(client: TestClient) -> None:
    (diagnosis,) = live(client, "nic_degradation")
    path = f"/v1/runbooks/nic_degradation?diagnosis={diagnosis}&platform=kubernetes"
    shown = client.get(path)
    assert shown.headers["vary"] == "Accept"
    assert shown.json()["diagnosis_id"] == diagnosis
    assert shown.json()["contain"][0]["commands"] == ["kubectl cordon node-1"]
    page = client.get(path, headers={"Accept": "text/markdown"})
    assert page.headers["content-type"].startswith("text/markdown")
    assert page.text.startswith("# Runbook nic_degradation: ")
    assert "kubectl cordon node-1" in page.text
    other = client.get(f"/v1/runbooks/hang?diagnosis={diagnosis}").json()
    assert "does not name hang" in other["notes"][0]


def test_an_incident_links_to_the_runbook_of_its_newest_window(client: TestClient) -> None:
    (*_, diagnosis) = live(client, "nic_degradation", "nic_degradation", "healthy")[:2]
    incident = client.get("/v1/incidents").json()["items"][0]["id"]
    shown = client.get(f"/v1/incidents/{incident}").json()
    assert shown["runbook"] == f"/v1/runbooks/nic_degradation?diagnosis={diagnosis}"
    page = client.get(f"/v1/incidents/{incident}", headers={"Accept": "text/markdown"}).text
    assert f"- Runbook: `rca runbook nic_degradation`, or `GET {shown['runbook']}`." in page
    assert page.count("rca runbook") == 1
    assert client.get(shown["runbook"]).json()["diagnosis_id"] == diagnosis


def test_what_is_not_there_is_said(client: TestClient) -> None:
    assert client.get("/v1/runbooks/gremlins").json()["code"] == "not-found"
    assert client.get(f"/v1/runbooks/hang?diagnosis={'0' * 32}").json()["code"] == "not-found"
    assert client.get("/v1/runbooks/hang?diagnosis=x").status_code == 422
    assert client.get("/v1/runbooks/hang?platform=vm").status_code == 422
    assert client.get("/v1/runbooks/hang", headers={"Accept": "image/png"}).status_code == 406
    (diagnosis,) = live(client, "hang")
    with state_of(client).database.session() as session:
        row = session.get(DiagnosisRow, diagnosis)
        assert row is not None
        row.state = "queued"
    assert client.get(f"/v1/runbooks/hang?diagnosis={diagnosis}").json()["code"] == "conflict"


def test_a_diagnosis_of_a_later_version_is_a_conflict_or_shown_as_stored(client: TestClient) -> None:
    (diagnosis,) = live(client, "hang")
    later = b'{"format":3,"news":[1]}'
    with state_of(client).database.session() as session:
        session.get_one(DiagnosisRow, diagnosis).document = later
    path = f"/v1/diagnoses/{diagnosis}"
    assert client.get(path).content == later
    answers = [
        client.get(path, headers={"Accept": "text/markdown"}),
        client.get(f"/v1/runbooks/hang?diagnosis={diagnosis}"),
        client.get(f"/ui/diagnoses/{diagnosis}"),
        client.post("/v1/plans", json={"diagnosis_id": diagnosis}),
    ]
    assert [(each.status_code, each.json()["code"]) for each in answers] == [(409, "conflict")] * 4
    assert "later version" in answers[0].json()["detail"]
    facts = _facts(state_of(client), diagnosis)
    assert (facts["state"], facts.get("verdict")) == ("diagnosed", None)
    assert "later version" in (facts["detail"] or "")


def test_a_site_replaces_them(tmp_path: Path) -> None:
    (tmp_path / "common.yaml").write_text(
        "platform: kubernetes\nvalues: {debug_image: 'example.org/debug:3'}"
    )
    app = create_app(Settings(data_dir=tmp_path / "data", runbooks=tmp_path, auth="off"))
    shown = TestClient(app, base_url="http://127.0.0.1").get("/v1/runbooks/gpu_throttling").json()
    app.state.parts.database.close()
    assert shown["platform"] == "kubernetes"
    assert "--image=example.org/debug:3" in shown["verify"][0]["commands"][0]
