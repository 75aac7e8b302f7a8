"""Incidents, nodes, feedback and webhooks over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from diagnosed import diagnosed
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from receivers import receiver
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

from rca_api.app import create_app
from rca_api.security.authority import Authority
from rca_api.security.principal import Principal, Scope
from rca_api.settings import Settings
from rca_api.state import State

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
LIFE = ("nic_degradation", "cpu_contention", "cpu_contention", "healthy", "healthy", "healthy")


def state_of(client: TestClient) -> State:
    app = client.app
    assert isinstance(app, FastAPI)
    parts: State = app.state.parts
    return parts


@pytest.fixture
def client(database_url: str, tmp_path: Path) -> Iterator[TestClient]:
    """The service without its model and its background work: neither is asked here."""
    given_settings = Settings(
        data_dir=tmp_path,
        database_url=database_url,
        webhook_http=True,
        webhook_private=True,
        node_priors="on",
        # One sick window is enough for these tests.
        incident_opening_windows=1,
    )
    held = TestClient(create_app(given_settings), raise_server_exceptions=False)
    state_of(held).database.upgrade()
    yield held
    state_of(held).database.close()


def live(client: TestClient, *said: str, job: str = "job", first: int = 0, **more: Any) -> list[str]:
    """Let a job live through diagnoses; gives their ids."""
    state, found = state_of(client), []
    for number, each in enumerate(said, start=first):
        with state.database.session() as session:
            row = diagnosed(session, state.on_diagnosed, job=job, number=number, said=each, **more)
            found.append(row.id)
    return found


def ids(client: TestClient, path: str, key: str = "id") -> list[str]:
    """Follow the pages of a list to its end, by the Link header."""
    found: list[str] = []
    for _ in range(100):
        answer = client.get(path)
        assert answer.status_code == 200, answer.text
        found += [item[key] for item in answer.json()["items"]]
        following = answer.links.get("next")
        assert (following is None) == (answer.json()["next"] is None)
        if following is None:
            return found
        path = following["url"]
    raise AssertionError("the pages never end")


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


@pytest.mark.parametrize("cursor", ["x", "e30", "WzFd", "WyJhIiwiYiJd", "bnVsbA", "WyIyMDI2LTAxLTAxIiwiYSJd"])
def test_a_cursor_that_is_none_of_ours_is_refused(client: TestClient, cursor: str) -> None:
    for path in ("/v1/incidents", "/v1/feedback", "/v1/nodes", "/v1/webhooks"):
        refused = client.get(f"{path}?cursor={cursor}")
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid-parameters")


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
    assert client.get(f"/v1/incidents/{incident}", headers={"Accept": "image/png"}).status_code == 406
    assert client.get("/v1/incidents/" + "0" * 32).json()["code"] == "not-found"


def test_an_incident_names_the_lemon_among_its_nodes(client: TestClient) -> None:
    live(client, "nic_degradation", job="one")
    live(client, "nic_degradation", job="two", first=500)
    live(client, "nic_degradation", job="three", first=1000)
    (incident,) = ids(client, "/v1/jobs/three/incidents")
    (lemon,) = client.get(f"/v1/incidents/{incident}").json()["lemons"]
    assert lemon["node"] == "node-1"
    assert lemon["probability"] > 0.9
    page = client.get(f"/v1/incidents/{incident}", headers={"Accept": "text/markdown"}).text
    assert "node-1 was at fault in other jobs" in page


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


def test_a_history_tells_what_people_overruled(client: TestClient) -> None:
    one, _ = live(client, "nic_degradation", "nic_degradation")
    healthy = {"verdict": "corrected", "label": {"failure_mode": "healthy"}}
    assert client.post(f"/v1/diagnoses/{one}/feedback", json=healthy).status_code == 201
    history = client.get("/v1/nodes/node-1/history").json()
    assert {item["diagnosis_id"]: item["overruled"] for item in history["items"]}[one]
    assert sum(item["overruled"] for item in history["items"]) == 1


CORRECTED = {
    "verdict": "corrected",
    "label": {"failure_mode": "fail_slow", "causes": [{"cause": "cpu_contention", "nodes": ["node-1"]}]},
    "note": "a backup ran there",
}


def test_conflicting_feedback_is_shown_with_both_sides(client: TestClient) -> None:
    (diagnosis,) = live(client, "nic_degradation")
    path = f"/v1/diagnoses/{diagnosis}/feedback"
    first = client.post(path, json={"verdict": "confirmed", "reported_by": "on-call"})
    assert first.status_code == 201
    assert first.json()["label"]["causes"][0] | {"severity": None} == first.json()["label"]["causes"][0]
    assert not first.json()["conflict"]
    # Who says the same again is still one voice.
    client.post(path, json=CORRECTED)
    second = client.post(path, json=CORRECTED).json()
    third = client.post(path, json=CORRECTED | {"reported_by": "ticket 7"}).json()
    assert third["conflict"]
    shown = client.get(path).json()
    assert shown["conflict"]
    assert [side["feedback"] for side in shown["sides"]] == [
        [second["id"], third["id"]],
        [first.json()["id"]],
    ]
    # What was said before stays visible.
    assert [item["id"] for item in shown["items"]][:2] == [third["id"], second["id"]]
    assert len(shown["items"]) == 4
    assert len(ids(client, "/v1/feedback?conflict=true&limit=1")) == 4
    assert ids(client, "/v1/feedback?conflict=false") == []
    gone = client.delete(f"{path}/{first.json()['id']}")
    assert gone.status_code == 200
    assert gone.json()["withdrawn_at"] is not None
    shown = client.get(path).json()
    assert (shown["conflict"], len(shown["items"]), len(shown["sides"])) == (False, 4, 1)
    assert len(ids(client, "/v1/feedback?verdict=corrected")) == 3


def test_who_corrects_oneself_contradicts_nobody(client: TestClient) -> None:
    (diagnosis,) = live(client, "nic_degradation")
    path = f"/v1/diagnoses/{diagnosis}/feedback"
    confirmed = client.post(path, json={"verdict": "confirmed"}).json()
    corrected = client.post(path, json=CORRECTED).json()
    assert not corrected["conflict"]
    shown = client.get(path).json()
    assert [side["feedback"] for side in shown["sides"]] == [[corrected["id"]]]
    assert [item["id"] for item in shown["items"]] == [corrected["id"], confirmed["id"]]
    assert ids(client, "/v1/feedback?conflict=true") == []
    # Without the newer word the older one stands again.
    client.delete(f"{path}/{corrected['id']}")
    assert [side["feedback"] for side in client.get(path).json()["sides"]] == [[confirmed["id"]]]


def test_only_its_author_withdraws_feedback(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    (diagnosis,) = live(client, "nic_degradation")
    path = f"/v1/diagnoses/{diagnosis}/feedback"
    callers = [Principal(f"key-{n}", f"Key {n}", frozenset({Scope.feedback})) for n in range(2)]
    monkeypatch.setattr(Authority, "identify", lambda _, request: callers[0])
    made = client.post(path, json=CORRECTED).json()
    assert (made["given_by"], made["given_by_name"]) == ("key-0", "Key 0")
    monkeypatch.setattr(Authority, "identify", lambda _, request: callers[1])
    assert client.delete(f"{path}/{made['id']}").json()["code"] == "forbidden"
    assert client.get("/v1/incidents").json()["code"] == "forbidden"
    assert client.get("/v1/webhooks").json()["code"] == "forbidden"


@pytest.mark.parametrize(
    ("label", "place"),
    [
        ({"failure_mode": "healthy", "causes": [{"cause": "hang"}]}, "body.label.failure_mode"),
        ({"failure_mode": "fail_slow", "causes": [{"cause": "bad_luck"}]}, "body.label.causes.0.cause"),
        ({"failure_mode": "fail_slow", "causes": [{"cause": "hang"}]}, "body.label.causes.0.cause"),
        ({"failure_mode": "fail_stop", "causes": [{"cause": "runtime_gc"}]}, "body.label.causes.0.cause"),
        (
            {"failure_mode": "fail_slow", "causes": [{"cause": "runtime_gc", "ranks": [7, 8]}]},
            "body.label.causes.0.ranks",
        ),
        (
            {"failure_mode": "fail_slow", "causes": [{"cause": "runtime_gc", "nodes": ["moon"]}]},
            "body.label.causes.0.nodes",
        ),
        (
            {
                "failure_mode": "fail_slow",
                "causes": [{"cause": "runtime_gc", "first_step": 5, "last_step": 4}],
            },
            "body.label.causes.0.last_step",
        ),
        ({"failure_mode": "fine"}, "body.label.failure_mode"),
        (None, "body"),
    ],
)
def test_labels_that_cannot_be_true_are_refused(client: TestClient, label: object, place: str) -> None:
    (diagnosis,) = live(client, "nic_degradation")
    refused = client.post(
        f"/v1/diagnoses/{diagnosis}/feedback", json={"verdict": "corrected", "label": label}
    )
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid-parameters")
    assert refused.json()["detail"].startswith(place)


def test_somebody_may_have_found_that_nothing_in_the_catalogue_explains_it(client: TestClient) -> None:
    (diagnosis,) = live(client, "nic_degradation")
    label = {"failure_mode": "fail_slow", "causes": [{"cause": "unknown", "nodes": ["node-1"]}]}
    path = f"/v1/diagnoses/{diagnosis}/feedback"
    given = client.post(path, json={"verdict": "corrected", "label": label})
    assert given.status_code == 201
    assert given.json()["label"]["causes"][0]["cause"] == "unknown"
    assert client.get("/v1/nodes").status_code == 200
    stopped = {"verdict": "corrected", "label": label | {"failure_mode": "fail_stop"}}
    assert client.post(path, json=stopped).status_code == 422


def test_an_abstention_cannot_be_confirmed_but_corrected(client: TestClient) -> None:
    (diagnosis,) = live(client, "unsure")
    path = f"/v1/diagnoses/{diagnosis}/feedback"
    assert client.post(path, json={"verdict": "confirmed"}).status_code == 409
    assert client.post(path, json=CORRECTED).status_code == 201
    unknown = client.post("/v1/diagnoses/" + "0" * 32 + "/feedback", json=CORRECTED)
    assert unknown.json()["code"] == "not-found"


def test_a_webhook_from_its_creation_to_its_end(client: TestClient) -> None:
    state = state_of(client)
    with receiver() as held:
        made = client.post("/v1/webhooks", json={"url": held.url, "causes": ["nic_degradation"]})
        assert made.status_code == 201
        assert made.headers["cache-control"] == "no-store"
        path = made.headers["location"]
        secret = made.json()["secret"]
        assert secret.startswith("whsec_")
        assert secret not in client.get(path).text + client.get("/v1/webhooks").text
        changed = client.patch(path, json={"description": "pager", "job_id": "job"})
        assert (changed.json()["description"], changed.json()["causes"]) == ("pager", ["nic_degradation"])
        live(client, "nic_degradation")
        (waiting,) = client.get(f"{path}/deliveries?state=pending").json()["items"]
        assert client.post(f"{path}/deliveries/{waiting['id']}/retry").json()["code"] == "conflict"
        state.webhook_dispatcher.run_once()
        (sent,) = client.get(f"{path}/deliveries").json()["items"]
        assert (sent["state"], sent["last_status"], held.ids) == ("delivered", 204, [waiting["id"]])
    exposition = client.get("/metrics").text
    assert 'rca_incident_events_total{kind="opened"} 1.0' in exposition
    assert 'rca_webhook_attempts_total{outcome="delivered"} 1.0' in exposition
    assert client.delete(path).status_code == 204
    assert client.get(path).json()["code"] == "not-found"
    assert client.get(f"{path}/deliveries").json()["code"] == "not-found"


def test_urls_are_checked_when_they_are_given_and_when_they_change(tmp_path: Path) -> None:
    held = TestClient(create_app(Settings(data_dir=tmp_path)))
    state_of(held).database.upgrade()
    good = held.post("/v1/webhooks", json={"url": "https://hooks.example.org/"})
    bad = held.post("/v1/webhooks", json={"url": "http://hooks.example.org/"})
    assert (bad.status_code, bad.json()["code"]) == (422, "invalid-parameters")
    moved = held.patch(good.headers["location"], json={"url": "gopher://hooks.example.org/"})
    assert moved.status_code == 422
    state_of(held).database.close()


def test_dead_deliveries_are_seen_and_sent_again(client: TestClient) -> None:
    from rca_api.webhooks.tables import DeliveryRow

    path = client.post("/v1/webhooks", json={"url": "http://127.0.0.1:9/"}).headers["location"]
    live(client, "nic_degradation")
    with state_of(client).database.session() as session:
        session.query(DeliveryRow).update({"state": "dead", "attempts": 8, "last_error": "gone"})
    (dead,) = client.get(f"{path}/deliveries?state=dead").json()["items"]
    assert dead["last_error"] == "gone"
    again = client.post(f"{path}/deliveries/{dead['id']}/retry")
    assert (again.status_code, again.json()["state"], again.json()["attempts"]) == (202, "pending", 0)


def test_the_running_service_sends_by_itself(tmp_path: Path) -> None:
    given_settings = Settings(
        data_dir=tmp_path, webhook_http=True, webhook_hosts=("127.0.0.1",), incident_opening_windows=1
    )
    with receiver() as held, TestClient(create_app(given_settings)) as client:
        client.post("/v1/webhooks", json={"url": held.url})
        live(client, "nic_degradation")
        for _ in range(500):
            if held.received:
                break
            client.portal.call(_nap)  # type: ignore[union-attr]
        assert len(held.received) == 1


async def _nap() -> None:
    import asyncio

    await asyncio.sleep(0.02)


def test_bodies_that_are_too_large_are_not_taken_in(client: TestClient) -> None:
    text = b'"' + b"x" * (1 << 20) + b'"'
    declared = client.post("/v1/webhooks", content=text)
    streamed = client.post("/v1/webhooks", content=iter([text[:1000], text[1000:]]))
    assert [each.json()["code"] for each in (declared, streamed)] == ["too-large"] * 2
    broken = client.post("/v1/webhooks", content=b"\xff", headers={"Content-Type": "application/json"})
    assert broken.status_code == 400


TAGS = ("incidents", "nodes", "feedback", "webhooks")


@pytest.mark.slow
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
            max_examples=10,
            deadline=None,
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
            statuses.add(case.call_and_validate(checks=CHECKS).status_code)

        answers()
    assert statuses >= ({200, 201} if mode is schemathesis.GenerationMode.POSITIVE else {422})


def test_all_times_are_told_in_utc(client: TestClient) -> None:
    live(client, "nic_degradation")
    (shown,) = client.get("/v1/incidents").json()["items"]
    assert shown["began"].endswith("Z")
    assert shown["opened_at"].endswith("Z")
