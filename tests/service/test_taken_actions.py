"""Actions taken on incidents: stored once, with the prediction of the diagnosis."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from diagnosed import SECONDS, START
from incident_service import ids, live, service_without_model, state_of
from sqlalchemy import select
from starlette.testclient import TestClient

from rca_api.actions.tables import TakenActionRow
from rca_api.incidents.tables import IncidentRow
from rca_api.store.base import new_id, now
from rca_api.store.deletion import delete_rows

DRAIN = {
    "action": "drain_node",
    "expected_seconds_per_step_saved": 0.1,
    "interval": [0.08, 0.12],
    "cost_seconds": 900.0,
    "break_even_steps": 9000,
    "runbook": "drain it",
    "ranks": [2, 3],
    "nodes": ["node-1"],
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("actions")
    with service_without_model(f"sqlite:///{folder}/rca.db", folder) as held:
        yield held


@pytest.fixture
def on_both(database_url: str, tmp_path: Path) -> Iterator[TestClient]:
    """The service on each kind of database."""
    with service_without_model(database_url, tmp_path) as held:
        yield held


def after(windows: float) -> str:
    """The end of the job's `windows`-th window."""
    return (datetime.fromtimestamp(START, UTC) + timedelta(seconds=windows * SECONDS)).isoformat()


def slow(client: TestClient, n: int = 3, **more: Any) -> tuple[str, list[str]]:
    """The incident of a job with slow windows, and their diagnoses."""
    job = new_id()
    found = live(client, *["nic_degradation"] * n, job=job, **({"actions": [DRAIN]} | more))
    (incident,) = ids(client, f"/v1/incidents?job={job}")
    return incident, found


def test_an_action_keeps_the_prediction_of_the_newest_diagnosis_before_it(client: TestClient) -> None:
    incident, found = slow(client)
    path = f"/v1/incidents/{incident}/actions"
    given = {"action": "drain_node", "taken_at": after(2), "note": "cable replaced"}
    answer = client.post(path, json=given)
    assert answer.status_code == 201, answer.text
    action = answer.json()
    assert action["diagnosis_id"] == found[1]
    assert action["predicted"] == {
        "seconds_per_step_saved": 0.1,
        "interval": [0.08, 0.12],
        "one_off_seconds": 900.0,
        "correction": 1.0,
    }
    assert (action["nodes"], action["ranks"], action["note"]) == (["node-1"], [2, 3], "cable replaced")
    assert (action["outcome"], action["observed"]) == ("pending", None)
    assert client.get(path).json() == {"items": [action], "next": None}
    assert client.get(f"/v1/incidents/{incident}").json()["actions"] == [action]


def test_the_same_request_again_is_the_same_action(on_both: TestClient) -> None:
    incident, _ = slow(on_both)
    path = f"/v1/incidents/{incident}/actions"
    given = {"action": "drain_node", "nodes": ["node-1"]}
    first = on_both.post(path, json=given)
    again = on_both.post(path, json=given)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    keyed = [on_both.post(path, json=given | {"key": key}) for key in ("a", "b", "a")]
    assert [each.status_code for each in keyed] == [201, 201, 200]
    other = on_both.post(path, json=given | {"key": "a", "note": "twice"})
    assert (other.status_code, other.json()["code"]) == (409, "conflict")
    assert len(ids(on_both, f"{path}?limit=1")) == 3


def test_an_action_without_a_prediction_is_stored(client: TestClient) -> None:
    incident, _ = slow(client)
    action = client.post(f"/v1/incidents/{incident}/actions", json={"action": "other"}).json()
    assert (action["predicted"], action["diagnosis_id"]) == (None, None)


def test_the_given_diagnosis_predicts(client: TestClient) -> None:
    incident, found = slow(client)
    path = f"/v1/incidents/{incident}/actions"
    action = client.post(path, json={"action": "drain_node", "diagnosis_id": found[0]}).json()
    assert (action["diagnosis_id"], action["predicted"]["one_off_seconds"]) == (found[0], 900.0)
    (foreign,) = live(client, "nic_degradation", job="other")
    for wanted, status in ((foreign, 409), ("0" * 32, 404)):
        answer = client.post(path, json={"action": "drain_node", "diagnosis_id": wanted})
        assert answer.status_code == status


def test_a_wrong_action_is_refused(client: TestClient) -> None:
    incident, _ = slow(client, 1)
    drain = {"action": "drain_node"}
    for wrong in (
        {},
        {"action": "drain_nodes"},
        drain | {"taken_at": "2026-11-21T20:11:00"},
        drain | {"taken_at": 5},
        drain | {"taken_at": (now() + timedelta(days=1)).isoformat()},
        drain | {"ranks": ["1"]},
        drain | {"gain": 1},
    ):
        answer = client.post(f"/v1/incidents/{incident}/actions", json=wrong)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid-parameters"), wrong


def test_actions_of_an_unknown_incident_are_not_found(client: TestClient) -> None:
    path = f"/v1/incidents/{'0' * 32}/actions"
    assert client.get(path).status_code == 404
    assert client.post(path, json={"action": "drain_node"}).status_code == 404


def test_an_action_outlives_its_diagnosis_and_goes_with_its_incident(on_both: TestClient) -> None:
    incident, found = slow(on_both)
    path = f"/v1/incidents/{incident}/actions"
    on_both.post(path, json={"action": "drain_node", "diagnosis_id": found[0]})
    assert on_both.delete(f"/v1/diagnoses/{found[0]}").status_code == 204
    (action,) = on_both.get(path).json()["items"]
    assert (action["diagnosis_id"], action["predicted"]["seconds_per_step_saved"]) == (None, 0.1)
    with state_of(on_both).database.session() as session:
        delete_rows(session, IncidentRow, [(incident,)])
        session.flush()
        assert session.scalars(select(TakenActionRow)).all() == []
