"""Feedback over HTTP: what people say about a diagnosis, when they disagree, and what cannot be true."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from incident_service import ids, live, service_without_model
from pydantic import ValidationError
from starlette.testclient import TestClient

from rca_api.feedback.schemas import NewFeedback
from rca_api.shell.security.authority import Authority
from rca_api.shell.security.principal import Principal, Scope

CORRECTED = {
    "verdict": "corrected",
    "label": {"failure_mode": "fail_slow", "causes": [{"cause": "cpu_contention", "nodes": ["node-1"]}]},
    "note": "a backup ran there",
}


@pytest.fixture
def client(database_url: str, tmp_path: Path) -> Iterator[TestClient]:
    with service_without_model(database_url, tmp_path) as held:
        yield held


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


@pytest.mark.parametrize("note", ["\u202eno", "a\u200bb", "a\u2028b"], ids=ascii)
def test_a_note_has_lines_and_tabs_but_no_formatting_characters(note: str) -> None:
    assert NewFeedback(verdict="confirmed", note="one\n\ttwo\r\n\u26a0\ufe0f").note.startswith("one")
    with pytest.raises(ValidationError, match="formatting character"):
        NewFeedback(verdict="confirmed", note=note)


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"verdict": "rejected", "verdict": "confirmed"}', "verdict"),
        (b'{"verdict": "corrected", "label": {"causes": [], "causes": []}}', "causes"),
    ],
)
def test_a_body_that_repeats_a_key_is_refused(client: TestClient, body: bytes, key: str) -> None:
    (diagnosis,) = live(client, "nic_degradation")
    path = f"/v1/diagnoses/{diagnosis}/feedback"
    refused = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid-parameters")
    assert f"repeats the key '{key}'" in refused.json()["detail"]
    assert client.get(path).json()["items"] == []


def test_new_feedback_of_an_author_replaces_the_old(client: TestClient) -> None:
    (diagnosis,) = live(client, "nic_degradation")
    path = f"/v1/diagnoses/{diagnosis}/feedback"
    confirmed = client.post(path, json={"verdict": "confirmed"}).json()
    corrected = client.post(path, json=CORRECTED).json()
    assert not corrected["conflict"]
    shown = client.get(path).json()
    assert [side["feedback"] for side in shown["sides"]] == [[corrected["id"]]]
    assert [item["id"] for item in shown["items"]] == [corrected["id"], confirmed["id"]]
    assert ids(client, "/v1/feedback?conflict=true") == []
    # When the newer feedback is withdrawn, the older one counts again.
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
def test_labels_that_do_not_fit_the_job_are_refused(client: TestClient, label: object, place: str) -> None:
    (diagnosis,) = live(client, "nic_degradation")
    refused = client.post(
        f"/v1/diagnoses/{diagnosis}/feedback", json={"verdict": "corrected", "label": label}
    )
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid-parameters")
    assert refused.json()["detail"].startswith(place)


def test_a_label_may_have_an_unknown_cause(client: TestClient) -> None:
    (diagnosis,) = live(client, "nic_degradation")
    label = {"failure_mode": "fail_slow", "causes": [{"cause": "unknown", "nodes": ["node-1"]}]}
    path = f"/v1/diagnoses/{diagnosis}/feedback"
    given = client.post(path, json={"verdict": "corrected", "label": label})
    assert given.status_code == 201
    assert given.json()["label"]["causes"][0]["cause"] == "unknown"
    assert client.get("/v1/nodes").status_code == 200
    stopped = {"verdict": "corrected", "label": label | {"failure_mode": "fail_stop"}}
    assert client.post(path, json=stopped).status_code == 422


def test_an_abstention_can_only_be_corrected(client: TestClient) -> None:
    (diagnosis,) = live(client, "unsure")
    path = f"/v1/diagnoses/{diagnosis}/feedback"
    assert client.post(path, json={"verdict": "confirmed"}).status_code == 409
    assert client.post(path, json=CORRECTED).status_code == 201
    unknown = client.post("/v1/diagnoses/" + "0" * 32 + "/feedback", json=CORRECTED)
    assert unknown.json()["code"] == "not-found"
