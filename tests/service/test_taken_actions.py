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
from rca_api.shell.store.base import new_id, now
from rca_api.shell.store.deletion import delete_rows

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


def test_the_actions_of_all_incidents_are_listed_by_time_job_and_key(on_both: TestClient) -> None:
    made = []
    for key in ("rca act", "rca act", "ana"):
        incident, _ = slow(on_both)
        path = f"/v1/incidents/{incident}/actions"
        made.append(on_both.post(path, json={"action": "drain_node", "key": key}).json())
    found = [each["id"] for each in made][::-1]
    assert ids(on_both, "/v1/actions") == found
    assert ids(on_both, "/v1/actions?key=rca+act") == found[1:]
    assert ids(on_both, "/v1/actions?limit=1") == found
    since = made[1]["recorded_at"].replace("+", "%2B")
    assert ids(on_both, f"/v1/actions?since={since}&key=rca+act") == found[1:2]
    job = on_both.get(f"/v1/incidents/{made[0]['incident_id']}").json()["job_id"]
    assert ids(on_both, f"/v1/actions?job={job}") == found[2:]


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


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"ranks": [8]}, "rank 8 is not one of the job's 8 ranks"),
        ({"ranks": [7], "nodes": ["node-1", "node-9"]}, "'node-9' is not one of the job's nodes"),
        ({"taken_at": "0001-01-01T00:00:00Z"}, "more than a day before the first window"),
        ({"taken_at": (now() + timedelta(days=2)).isoformat()}, "in the future"),
    ],
)
def test_an_action_that_cannot_have_been_taken_is_refused(
    client: TestClient, wrong: dict[str, Any], reason: str
) -> None:
    incident, _ = slow(client, 2, job_nodes=["node-0", "node-1"])
    path = f"/v1/incidents/{incident}/actions"
    answer = client.post(path, json={"action": "drain_node"} | wrong)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-parameters")
    assert reason in answer.json()["detail"]
    possible = {"ranks": [0, 7], "nodes": ["node-1"], "taken_at": after(-60 * 23)}
    assert client.post(path, json={"action": "drain_node"} | possible).status_code == 201


def test_an_action_on_a_node_that_the_job_got_later_is_recorded(client: TestClient) -> None:
    job = new_id()
    live(client, "nic_degradation", job=job, job_nodes=["node-0", "node-1"])
    live(client, "nic_degradation", job=job, first=1, job_nodes=["node-0", "node-2"])
    (incident,) = ids(client, f"/v1/incidents?job={job}")
    path = f"/v1/incidents/{incident}/actions"
    given = {"action": "drain_node", "nodes": ["node-1", "node-2"]}
    assert client.post(path, json=given).status_code == 201


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


# The observed gain


def acted(
    client: TestClient, *later: str, n: int = 3, action: str = "drain_node", **more: Any
) -> dict[str, Any]:
    """An action after `n` slow windows, once the later windows have arrived."""
    job = new_id()
    live(client, *["nic_degradation"] * n, job=job, actions=[DRAIN])
    (incident,) = ids(client, f"/v1/incidents?job={job}")
    path = f"/v1/incidents/{incident}/actions"
    assert client.post(path, json={"action": action, "taken_at": after(n)}).status_code == 201
    live(client, *later, job=job, first=n, **more)
    (found,) = client.get(path).json()["items"]
    return found


def test_healthy_windows_after_an_action_show_that_it_helped(on_both: TestClient) -> None:
    action = acted(on_both, *["healthy"] * 3)
    assert action["outcome"] == "helped"
    assert (action["windows_before"], action["windows_after"]) == (3, 3)
    observed = action["observed"]
    assert observed["seconds_per_step_saved"] == pytest.approx(0.1)
    assert (observed["lost_before"], observed["lost_after"]) == pytest.approx((0.1, 0.0))
    assert observed["interval"][0] <= 0.1 <= observed["interval"][1]
    shown = on_both.get(f"/v1/incidents/{action['incident_id']}", headers={"Accept": "text/markdown"}).text
    assert "| drain_node | helped | 100 ms per step | 100 ms per step |" in shown


def test_an_action_is_pending_until_three_confident_windows_have_followed(client: TestClient) -> None:
    action = acted(client, "healthy", "unsure", "healthy")
    assert (action["outcome"], action["observed"], action["windows_after"]) == ("pending", None, 2)


def test_a_suspect_does_not_count_as_confident(client: TestClient) -> None:
    action = acted(client, "healthy", "suspect", "healthy")
    assert (action["outcome"], action["windows_after"]) == ("pending", 2)


def test_a_loss_that_goes_on_shows_that_an_action_did_not_help(client: TestClient) -> None:
    action = acted(client, *["nic_degradation"] * 3)
    assert (action["outcome"], action["observed"]["seconds_per_step_saved"]) == ("did_not_help", 0.0)


def test_a_window_that_spans_the_action_is_on_neither_side(client: TestClient) -> None:
    job = new_id()
    live(client, *["nic_degradation"] * 3, job=job)
    (incident,) = ids(client, f"/v1/incidents?job={job}")
    path = f"/v1/incidents/{incident}/actions"
    client.post(path, json={"action": "other", "taken_at": after(2.5)})
    live(client, *["healthy"] * 3, job=job, first=3)
    (action,) = client.get(path).json()["items"]
    assert (action["windows_before"], action["windows_after"]) == (2, 3)


def test_of_two_actions_each_is_judged_by_its_own_windows(client: TestClient) -> None:
    job = new_id()
    live(client, *["nic_degradation"] * 3, job=job)
    (incident,) = ids(client, f"/v1/incidents?job={job}")
    path = f"/v1/incidents/{incident}/actions"
    client.post(path, json={"action": "reroute", "taken_at": after(3)})
    live(client, *["nic_degradation"] * 3, job=job, first=3)
    client.post(path, json={"action": "drain_node", "taken_at": after(6)})
    live(client, *["healthy"] * 3, job=job, first=6)
    drained, rerouted = client.get(path).json()["items"]
    assert (rerouted["outcome"], drained["outcome"]) == ("did_not_help", "helped")
    assert drained["windows_before"] == 3


def test_actions_at_the_same_time_are_unclear(client: TestClient) -> None:
    job = new_id()
    live(client, *["nic_degradation"] * 3, job=job)
    (incident,) = ids(client, f"/v1/incidents?job={job}")
    path = f"/v1/incidents/{incident}/actions"
    for action in ("reroute", "drain_node"):
        client.post(path, json={"action": action, "taken_at": after(3)})
    live(client, *["healthy"] * 3, job=job, first=3)
    assert [each["outcome"] for each in client.get(path).json()["items"]] == ["unclear", "unclear"]


def test_a_restart_helps_a_stopped_job_if_it_runs_again(client: TestClient) -> None:
    for later, outcome in (("healthy", "helped"), ("hang", "did_not_help")):
        job = new_id()
        live(client, "hang", "hang", job=job)
        (incident,) = ids(client, f"/v1/incidents?job={job}")
        path = f"/v1/incidents/{incident}/actions"
        client.post(path, json={"action": "restart_from_checkpoint", "taken_at": after(2)})
        live(client, *[later] * 3, job=job, first=2)
        (action,) = client.get(path).json()["items"]
        assert (action["outcome"], action["observed"]) == (outcome, None)


def test_an_action_recorded_late_is_judged_at_once(client: TestClient) -> None:
    job = new_id()
    live(client, *["nic_degradation"] * 3, *["healthy"] * 3, job=job)
    (incident,) = ids(client, f"/v1/incidents?job={job}")
    given = {"action": "drain_node", "taken_at": after(3)}
    assert client.post(f"/v1/incidents/{incident}/actions", json=given).json()["outcome"] == "helped"


# Corrections


def test_observed_gains_correct_later_plans(on_both: TestClient) -> None:
    assert on_both.get("/v1/plans/corrections").json() == {"corrections": []}
    for _ in range(4):
        acted(on_both, *["nic_degradation"] * 3, seconds_per_step=0.05)
    (found,) = on_both.get("/v1/plans/corrections").json()["corrections"]
    # Half of each prediction was gained: 4 incidents at 0.5 beside 4 at 1.
    assert found["action"] == "drain_node"
    assert (found["n"], found["used"]) == (4, True)
    assert (found["median_ratio"], found["factor"]) == pytest.approx((0.5, 0.75))
