"""Incidents and nodes over HTTP, and what holds for feedback and webhooks as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, settings
from incident_service import ids, live, service_without_model, state_of
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient
from test_webhook_dispatch import deliveries, subscribe

from tests.for_each import for_each

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
LIFE = ("nic_degradation", "cpu_contention", "cpu_contention", "healthy", "healthy", "healthy")
FAR = "2099-01-01T00:00:00Z"
TAGS = ("incidents", "nodes", "feedback", "webhooks")


@pytest.fixture
def client(database_url: str, tmp_path: Path) -> Iterator[TestClient]:
    with service_without_model(database_url, tmp_path) as held:
        yield held


@pytest.mark.system
def test_incidents_are_listed_filtered_and_paged(client: TestClient) -> None:
    for number in range(5):
        live(client, *LIFE, job=f"job-{number}")
    live(client, "runtime_gc", job="open", nodes=[])
    everything = ids(client, "/v1/incidents?limit=2")
    assert len(everything) == len(set(everything)) == 6
    assert len(ids(client, "/v1/incidents?state=open")) == 1
    assert len(ids(client, "/v1/incidents?state=resolved&limit=3")) == 5
    assert len(ids(client, "/v1/incidents?cause=nic_degradation")) == 5
    assert len(ids(client, "/v1/incidents?cause=hang")) == 0
    assert len(ids(client, "/v1/incidents?node=node-1")) == 5
    assert len(ids(client, "/v1/incidents?job=job-3")) == len(ids(client, "/v1/jobs/job-3/incidents")) == 1
    assert len(ids(client, "/v1/incidents?since=2001-01-01T00:00:00Z")) == 6
    assert len(ids(client, "/v1/incidents?since=2101-01-01T00:00:00Z")) == 1
    assert client.get("/v1/jobs/nobody/incidents").json() == {"items": [], "next": None}


def test_an_incident_has_a_timeline_and_a_page_for_people(client: TestClient) -> None:
    diagnoses = live(client, *LIFE, job="a|b <i>")
    (incident,) = ids(client, "/v1/incidents")
    shown = client.get(f"/v1/incidents/{incident}").json()
    assert [event["kind"] for event in shown["timeline"]] == ["opened", "cause_changed", "resolved"]
    assert [event["diagnosis_id"] for event in shown["timeline"]] == [diagnoses[i] for i in (0, 2, 5)]
    assert [each["diagnosis_id"] for each in shown["diagnoses"]] == diagnoses[::-1]
    assert shown["seconds_lost"] == pytest.approx(30.0)
    page = client.get(f"/v1/incidents/{incident}", headers={"Accept": "text/markdown"})
    assert page.headers["content-type"].startswith("text/markdown")
    assert page.text.startswith("# RESOLVED: a\\|b \\<i\\> is fail-slow, cpu_contention")
    assert "cause changed from nic_degradation on node-1 to cpu_contention on node-1" in page.text
    assert "30 s of the job" in page.text
    summary = shown["summary"]
    assert summary["diagnosis_id"] == diagnoses[2]
    assert summary["headline"].startswith("FAIL-SLOW: node node-1 (ranks 2-3), +100 ms per step")
    assert {"title": "Owner", "lines": ["infrastructure"]} in summary["parts"]
    assert "- **How sure:** fail-slow 0.97; cpu_contention 0.90" in page.text
    assert client.get(f"/v1/incidents/{incident}", headers={"Accept": "image/png"}).status_code == 406
    assert client.get("/v1/incidents/" + "0" * 32).json()["code"] == "not-found"


def test_the_page_of_an_incident_speaks_of_its_cause_only(client: TestClient) -> None:
    named, other = live(client, "nic_degradation", "cpu_contention", job="two")
    (incident,) = ids(client, "/v1/incidents?job=two")
    shown = client.get(f"/v1/incidents/{incident}").json()
    assert (shown["cause"], shown["summary"]["diagnosis_id"]) == ("nic_degradation", named)
    assert shown["runbook"].endswith(named)
    page = client.get(f"/v1/incidents/{incident}", headers={"Accept": "text/markdown"}).text
    assert "- **How sure:** fail-slow 0.97; nic_degradation 0.90" in page
    # Each of its diagnoses leads to it.
    for diagnosis in (named, other):
        assert client.get(f"/ui/diagnoses/{diagnosis}").json()["incident_id"] == incident
    (alone,) = live(client, "healthy", job="well")
    assert client.get(f"/ui/diagnoses/{alone}").json()["incident_id"] is None


def test_open_incidents_are_series_for_dashboards(client: TestClient) -> None:
    live(client, *LIFE, job="over")
    live(client, "nic_degradation", job="llama-17", since="2026-11-21T20:00:00Z")
    text = client.get("/v1/incident-series").text
    (line,) = [each for each in text.splitlines() if each.startswith("rca_incident_open{")]
    assert 'job_id="llama-17"' in line
    assert 'cause="nic_degradation"' in line
    assert 'confidence="confirmed"' in line
    assert 'rca_incident_place{job_id="llama-17",place="node-1"} 1.0' in text
    assert 'rca_incident_lost_seconds{job_id="llama-17"} 10.0' in text
    state_of(client).settings.__dict__["incident_series"] = 0
    assert client.get("/v1/incident-series").status_code == 404


def test_people_acknowledge_assign_mute_and_close_an_incident(client: TestClient) -> None:
    live(client, "nic_degradation", job="people")
    (incident,) = ids(client, "/v1/incidents?job=people")
    path = f"/v1/incidents/{incident}"
    changed = client.patch(path, json={"acknowledged": True, "assigned_to": "ana", "muted_until": FAR}).json()
    assert changed["acknowledged_at"] is not None
    assert (changed["acknowledged_by"], changed["assigned_to"]) == ("anybody", "ana")
    assert client.patch(path, json={"assigned_to": None}).json()["muted_until"] is not None
    page = client.get(path, headers={"Accept": "text/markdown"}).text
    assert "by anybody" in page
    assert "No messages until 2099" in page
    closed = client.patch(path, json={"close": "a test, no fault"}).json()
    assert (closed["state"], closed["resolution"], closed["closing_note"]) == (
        "resolved",
        "closed",
        "a test, no fault",
    )
    assert client.patch(path, json={"close": "again"}).json()["code"] == "conflict"
    assert client.patch(path, json={"close": ""}).status_code == 422
    assert client.patch("/v1/incidents/" + "0" * 32, json={"acknowledged": True}).status_code == 404
    # The fault goes on.
    live(client, "nic_degradation", job="people", first=1)
    (again,) = ids(client, "/v1/incidents?job=people")
    assert again == incident
    shown = client.get(path).json()
    assert (shown["state"], shown["timeline"][-1]["kind"]) == ("open", "reopened")
    # What people said was about the time before; who works on it is not.
    assert [shown[each] for each in ("closing_note", "acknowledged_at", "muted_until")] == [None] * 3
    for until in (FAR, None):
        client.patch(path, json={"muted_until": until})
    assert client.get(path).json()["timeline"][-1]["kind"] == "mute_ended"
    assert "mute ended: still fail-slow" in client.get(path, headers={"Accept": "text/markdown"}).text
    past = client.patch(path, json={"muted_until": "2020-01-01T00:00:00Z"})
    assert (past.status_code, "is over" in past.json()["detail"]) == (422, True)


def test_a_muted_incident_sends_no_message_but_that_of_its_resolution(client: TestClient) -> None:
    database = state_of(client).database
    subscribe(database, "https://a.example")
    live(client, "nic_degradation", job="quiet")
    (incident,) = ids(client, "/v1/incidents?job=quiet")
    client.patch(f"/v1/incidents/{incident}", json={"muted_until": FAR})
    live(client, "runtime_gc", "runtime_gc", "healthy", "healthy", "healthy", job="quiet", first=1)
    assert [each.event for each in deliveries(database)] == ["incident.opened", "incident.resolved"]
    # Receivers know of its end, so they get the message that it is open again.
    live(client, "nic_degradation", job="quiet", first=6)
    assert [each.event for each in deliveries(database)][2:] == ["incident.reopened"]


def test_a_job_without_telemetry_of_its_own_is_ended_with_a_reason(client: TestClient) -> None:
    live(client, "suspect", "suspect", "suspect", job="ns/watched")
    reason = "no longer listed by http://p"
    assert client.post("/v1/jobs/ns%2Fwatched/end", params={"reason": reason}).json()["ended_at"]
    (incident,) = client.get("/v1/incidents?job=ns/watched").json()["items"]
    assert (incident["state"], incident["resolution"], incident["closing_note"]) == (
        "resolved",
        "ended",
        reason,
    )
    assert client.post("/v1/jobs/nosuch/end").status_code == 404


def test_an_incident_names_the_lemon_among_its_nodes(client: TestClient) -> None:
    live(client, "nic_degradation", job="one")
    live(client, "nic_degradation", job="two", first=500)
    live(client, "nic_degradation", job="three", first=1000)
    (incident,) = ids(client, "/v1/jobs/three/incidents")
    (lemon,) = client.get(f"/v1/incidents/{incident}").json()["lemons"]
    assert lemon["node"] == "node-1"
    assert lemon["probability"] > 0.9
    page = client.get(f"/v1/incidents/{incident}", headers={"Accept": "text/markdown"}).text
    assert "node-1 had faults in other jobs" in page


def test_nodes_are_ranked_and_have_a_history(client: TestClient) -> None:
    live(client, "nic_degradation", "cpu_contention", job="one")
    live(client, "nic_degradation", job="two", first=500)
    live(client, "data_loader_stall", job="three", first=1000, nodes=["node-2"])
    ranked = ids(client, "/v1/nodes?limit=1", "node")
    assert ranked == ["node-1", "node-0", "node-2", "node-3"]
    (lemon,) = client.get("/v1/nodes?lemons=true").json()["items"]
    assert (lemon["node"], lemon["jobs"], lemon["jobs_blamed"]) == ("node-1", 3, 2)
    history = client.get("/v1/nodes/node-1/history?limit=2").json()
    assert history["summary"] == lemon
    assert [item["job_id"] for item in history["items"]] == ["two", "one"]
    assert history["items"][0]["incident_id"] in ids(client, "/v1/jobs/two/incidents")
    assert len(ids(client, "/v1/nodes/node-1/history?limit=2", "diagnosis_id")) == 3
    other = client.get("/v1/nodes/node-2/history").json()
    assert (other["items"][0]["owner"], other["summary"]["jobs_blamed"]) == ("workload", 0)
    assert client.get("/v1/nodes/nowhere/history").json()["code"] == "not-found"


def test_names_may_hold_a_slash(client: TestClient) -> None:
    live(client, "nic_degradation", job="team/job", nodes=["ns/node"])
    history = client.get("/v1/nodes/ns%2Fnode/history").json()
    assert [item["job_id"] for item in history["items"]] == ["team/job"]
    assert len(ids(client, "/v1/jobs/team%2Fjob/incidents")) == 1


def test_a_history_shows_overruled_blames(client: TestClient) -> None:
    one, _ = live(client, "nic_degradation", "nic_degradation")
    healthy = {"verdict": "corrected", "label": {"failure_mode": "healthy"}}
    assert client.post(f"/v1/diagnoses/{one}/feedback", json=healthy).status_code == 201
    history = client.get("/v1/nodes/node-1/history").json()
    assert {item["diagnosis_id"]: item["overruled"] for item in history["items"]}[one]
    assert sum(item["overruled"] for item in history["items"]) == 1


def test_all_times_are_in_utc(client: TestClient) -> None:
    live(client, "nic_degradation")
    (shown,) = client.get("/v1/incidents").json()["items"]
    assert shown["began"].endswith("Z")
    assert shown["opened_at"].endswith("Z")


@for_each("cursor", ["x", "e30", "WzFd", "WyJhIiwiYiJd", "bnVsbA", "WyIyMDI2LTAxLTAxIiwiYSJd"])
def test_a_cursor_that_is_none_of_ours_is_refused(client: TestClient, cursor: str) -> None:
    for path in ("/v1/incidents", "/v1/feedback", "/v1/nodes", "/v1/webhooks"):
        refused = client.get(f"{path}?cursor={cursor}")
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid-parameters")


@pytest.mark.system
@pytest.mark.slow
# `test_every_operation` makes up requests to a service with SQLite.
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
def test_made_up_requests_get_documented_answers(
    client: TestClient, mode: schemathesis.GenerationMode
) -> None:
    (diagnosis,) = live(client, "nic_degradation")
    incident = ids(client, "/v1/incidents")[0]
    known = {"diagnosis_id": diagnosis, "incident_id": incident, "node": "node-1", "job_id": "job"}
    known["webhook_id"] = client.post("/v1/webhooks", json={"url": "http://127.0.0.1:9/"}).json()["id"]
    schema = schemathesis.openapi.from_asgi("/openapi.json", client.app)
    statuses: set[int] = set()
    for operation in schema.include(tag=list(TAGS)).get_all_operations():

        @settings(
            max_examples=2,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.ok().as_strategy(generation_mode=mode))
        def answers(case: schemathesis.Case) -> None:
            # Some requests are about what is there: made-up ids alone would never get far.
            if mode is schemathesis.GenerationMode.POSITIVE and case.path_parameters:
                case.path_parameters |= {k: v for k, v in known.items() if k in case.path_parameters}
            # No route's path parameter takes a line break, so such an address belongs to no operation.
            assume(not any("\n" in str(each) for each in (case.path_parameters or {}).values()))
            statuses.add(case.call_and_validate(checks=CHECKS).status_code)

        answers()
    assert statuses >= ({200, 201} if mode is schemathesis.GenerationMode.POSITIVE else {422})
