"""`POST /v1/plans`: a plan for a stored diagnosis, with the service's site and the caller's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from diagnosed import document
from incident_service import ids, live, service_without_model, state_of
from starlette.testclient import TestClient

import rca
from rca.diagnosis.result import RecoveryFacts, Removal
from rca.runbook.plan_page import plan_markdown
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.shell.processes.bundles import BundleRef, LoadedBundles
from tests.for_each import for_each


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("plans")
    with service_without_model(f"sqlite:///{folder}/rca.db", folder) as held:
        yield held


@pytest.fixture(scope="module")
def slow(make_window: Any) -> rca.Diagnosis:
    return rca.diagnose(make_window(late={5: 0.05}, phase="data_loading_seconds"))


@pytest.fixture(scope="module")
def stored(client: TestClient, slow: rca.Diagnosis) -> str:
    """Id of a finished diagnosis of a real window."""
    (found,) = live(client, "data_loader_stall")
    with state_of(client).database.session() as session:
        row = session.get(DiagnosisRow, found)
        assert row is not None
        row.document = slow.to_json().encode()
    return found


def test_the_plan_is_that_of_the_library(client: TestClient, stored: str, slow: rca.Diagnosis) -> None:
    answer = client.post("/v1/plans", json={"diagnosis_id": stored})
    assert answer.status_code == 200
    assert answer.json() == rca.plan(slow).model_dump(mode="json")
    options = {each["action"]: each for each in answer.json()["options"]}
    actions = {each.action: each for each in slow.actions}
    assert set(options) == set(actions)
    for name, each in actions.items():
        assert options[name]["seconds_per_step_saved"] == each.expected_seconds_per_step_saved


def test_a_plan_is_markdown_on_request(client: TestClient, stored: str, slow: rca.Diagnosis) -> None:
    answer = client.post("/v1/plans", json={"diagnosis_id": stored}, headers={"Accept": "text/markdown"})
    assert answer.headers["content-type"].startswith("text/markdown")
    assert answer.text == plan_markdown(rca.plan(slow), verbose=True)
    refused = client.post("/v1/plans", json={"diagnosis_id": stored}, headers={"Accept": "image/png"})
    assert (refused.status_code, refused.json()["code"]) == (406, "not-acceptable")


def test_fields_of_the_site_replace_those_of_the_service(client: TestClient) -> None:
    (found,) = live(client, "hang", job="stopped")
    parts = state_of(client)
    restart = Removal(cause="hang", ranks=[2, 3], seconds_per_step_saved=None, interval=None)
    with parts.database.session() as session:
        row = session.get(DiagnosisRow, found)
        assert row is not None
        held = rca.Diagnosis.model_validate(document(found, "stopped", "hang"))
        row.document = (
            held.model_copy(update={"recovery": RecoveryFacts(removals=[restart])}).to_json().encode()
        )
    site = rca.Site(restart_seconds=60.0, checkpoint_seconds=20.0)
    app: Any = client.app
    app.state.parts = replace(parts, site=site)
    try:
        costs = [
            client.post("/v1/plans", json={"diagnosis_id": found, "site": given}).json()["options"][0]
            for given in ({}, {"restart_seconds": 5.0})
        ]
    finally:
        app.state.parts = parts
    assert [each["one_off_seconds"] for each in costs] == [70.0, 15.0]


@for_each(
    ("body", "status", "said"),
    [
        ({"diagnosis_id": "0" * 32}, 404, "no diagnosis"),
        ({"diagnosis_id": "x"}, 422, "diagnosis_id"),
        ({}, 422, "diagnosis_id"),
        ({"diagnosis_id": "0" * 32, "site": {"restart_seconds": -1}}, 422, "restart_seconds"),
        ({"diagnosis_id": "0" * 32, "site": {"nodes": 1}}, 422, "nodes"),
        ([], 422, ""),
    ],
)
def test_a_wrong_request_is_refused_by_name(client: TestClient, body: Any, status: int, said: str) -> None:
    answer = client.post("/v1/plans", json=body)
    assert answer.status_code == status
    assert said in answer.text


def test_observed_gains_of_incidents_correct_later_plans(tmp_path: Path, slow: rca.Diagnosis) -> None:
    [remedy] = [each for each in slow.actions if each.action == "add_loader_workers"]
    predicted = remedy.model_copy(update={"expected_seconds_per_step_saved": 0.2}).model_dump(mode="json")
    with service_without_model(f"sqlite:///{tmp_path}/rca.db", tmp_path) as client:
        (*_, found) = live(client, *["data_loader_stall"] * 3, actions=[predicted])
        with state_of(client).database.session() as session:
            row = session.get_one(DiagnosisRow, found)
            at, row.document = row.window_end, slow.to_json().encode()
        (incident,) = ids(client, "/v1/incidents")
        taken = datetime.fromtimestamp(at, UTC).isoformat()
        before = client.post("/v1/plans", json={"diagnosis_id": found}).json()
        # The prediction is that of an earlier diagnosis, 0.2; 0.1 was gained.
        earlier = client.get(f"/v1/incidents/{incident}").json()["diagnoses"][1]["diagnosis_id"]
        path = f"/v1/incidents/{incident}/actions"
        given = {"action": "add_loader_workers", "taken_at": taken, "diagnosis_id": earlier}
        assert client.post(path, json=given).status_code == 201
        live(client, *["healthy"] * 3, first=3)
        state_of(client).memory.corrections.refresh()
        history = state_of(client).memory.current
        plans = [
            client.post("/v1/plans", json={"diagnosis_id": found, "site": site}).json()
            for site in ({}, {"corrections": {"add_loader_workers": 0.5}})
        ]
    saved = [
        {each["action"]: each["seconds_per_step_saved"] for each in plan["options"]}
        for plan in [before, *plans]
    ]
    # Half of the prediction in one incident, beside four without a correction: 4.5 / 5.
    for others, factor in zip(saved[1:], (0.9, 0.5), strict=True):
        expected = saved[0] | {"add_loader_workers": factor * saved[0]["add_loader_workers"]}
        assert others == pytest.approx(expected)
    assert history.corrections == {"add_loader_workers": pytest.approx(0.9)}


def test_a_diagnosis_uses_the_corrections_that_come_with_its_task(
    make_window: Any, slow: rca.Diagnosis
) -> None:
    window = make_window(late={5: 0.05}, phase="data_loading_seconds")
    found = LoadedBundles().diagnose(BundleRef(None), window, corrections={"add_loader_workers": 0.5})
    [plain], [halved] = (
        [each for each in held.actions if each.action == "add_loader_workers"] for held in (slow, found)
    )
    assert plain.expected_seconds_per_step_saved is not None
    assert halved.expected_seconds_per_step_saved == pytest.approx(plain.expected_seconds_per_step_saved / 2)
    assert (plain.correction, halved.correction) == (None, 0.5)
