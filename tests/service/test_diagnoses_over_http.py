"""`/v1/diagnoses` and `/v1/windows` as callers use them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import orjson
import pytest
from incident_service import state_of
from starlette.testclient import TestClient
from streaming import answered_later

from rca.diagnosis.result import Diagnosis
from rca.window.encodings import arrow
from rca.window.window import Window
from rca_api.shell.app import create_app
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store.database import StoreError

pytestmark = [pytest.mark.system, pytest.mark.smoke]

URL = "/v1/diagnoses"
JSON = {"Content-Type": "application/json"}
ASYNC = {**JSON, "Prefer": "respond-async"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings = Settings(processes=1, data_dir=tmp_path_factory.mktemp("data"), batch_limit=4)
    with TestClient(create_app(settings), raise_server_exceptions=False) as held:
        yield held


@pytest.fixture(scope="module")
def body_of(make_window) -> Callable[..., bytes]:
    def body(job_id: str = "job", *, late: dict[int, float] | None = None) -> bytes:
        window: Window = make_window(8, 40, late=late) if late else make_window(4, 12)
        document = orjson.loads(window.to_json())
        document["job"]["job_id"] = job_id
        return orjson.dumps(document)

    return body


def test_the_answer_is_stored(client: TestClient, body_of) -> None:
    answer = client.post(URL, content=body_of("kept"), headers=JSON)
    assert answer.status_code == 200
    location = answer.headers["location"]
    assert location == f"{URL}/{answer.json()['diagnosis_id']}"
    assert client.get(location).content == answer.content


@pytest.mark.parametrize("accept", ["text/markdown", "text/html"])
def test_a_stored_diagnosis_has_the_media_type_of_accept(client: TestClient, body_of, accept: str) -> None:
    posted = client.post(URL, content=body_of(late={1: 0.05}), headers={**JSON, "Accept": accept})
    found = client.get(posted.headers["location"], headers={"Accept": accept})
    if accept == "text/markdown":
        assert found.content == posted.content
    else:
        # Pictures of the window are on the page of the request only.
        assert posted.content.startswith(found.content[: found.content.index(b"</h1>")])
    assert found.headers["content-type"].startswith(accept)
    assert found.headers["vary"] == "Accept"
    assert client.get(posted.headers["location"]).json()["job_id"] == "job"


def test_the_window_can_be_read_back(client: TestClient, body_of) -> None:
    posted = client.post(URL, content=body_of("seen-again"), headers=JSON)
    [item] = client.get(URL, params={"job": "seen-again"}).json()["items"]
    stored = client.get(f"/v1/windows/{item['window_digest']}")
    assert stored.headers["content-type"] == arrow.CONTENT_TYPE
    assert hashlib.sha256(stored.content).hexdigest() == item["window_digest"]
    document = client.get(f"/v1/windows/{item['window_digest']}", headers={"Accept": "application/json"})
    again = client.post(URL, content=document.content, headers=JSON)
    volatile = {"diagnosis_id", "created_at"}
    assert {k: v for k, v in again.json().items() if k not in volatile} == {
        k: v for k, v in posted.json().items() if k not in volatile
    }
    digests = {row["window_digest"] for row in client.get(URL, params={"job": "seen-again"}).json()["items"]}
    assert len(digests) == 1


def test_a_table_is_diagnosed_as_the_job_that_the_caller_names(client: TestClient) -> None:
    rows = [(rank, step, 350 if rank == 2 else 300) for step in range(30) for rank in range(4)]
    lines = [f"{rank},{step},500,{own},{500 - own}" for rank, step, own in rows]
    table = "\n".join(["Rank,Iteration,iter_time_ms,fwd_ms,comm_ms", *lines]).encode()
    headers = {"Content-Type": "text/csv", "Idempotency-Key": "table-1"}
    answer = client.post(f"{URL}?job=times.csv", content=table, headers=headers)
    assert (answer.status_code, answer.json()["job_id"]) == (200, "times.csv")
    assert answer.json()["stragglers"][0]["ranks"] == [2]
    # The key stands for the job, too.
    other = client.post(f"{URL}?job=other.csv", content=table, headers=headers)
    assert other.json()["code"] == "idempotency-mismatch"
    bad = client.post(
        URL, content=table.replace(b"0,7,500", b"0,7,oops"), headers={"Content-Type": "text/csv"}
    )
    assert (bad.status_code, "line 30, column iter_time_ms: 'oops'" in bad.text) == (400, True)


def test_unknown_ids_are_not_found(client: TestClient) -> None:
    for path in (f"{URL}/{'0' * 32}", f"/v1/windows/{'0' * 64}"):
        answer = client.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "not-found")
    assert client.get(f"{URL}/..%2Fetc").status_code in (404, 422)
    assert client.get("/v1/windows/passwd").status_code == 422


def test_respond_async_queues_a_diagnosis(client: TestClient, body_of) -> None:
    answer = client.post(URL, content=body_of("later"), headers=ASYNC)
    assert answer.status_code == 202
    assert answer.headers["preference-applied"] == "respond-async"
    assert answer.json()["state"] in ("queued", "running")
    done = answered_later(client, answer.headers["location"])
    assert done.status_code == 200
    assert Diagnosis.model_validate_json(done.content).diagnosis_id == answer.json()["diagnosis_id"]


def test_respond_async_with_wait_is_answered_within_the_wait(client: TestClient, body_of) -> None:
    answer = client.post(URL, content=body_of(), headers={**JSON, "Prefer": "respond-async, wait=30"})
    assert answer.status_code == 200
    assert answer.json()["job_id"] == "job"


def test_an_invalid_window_is_refused_at_once_with_respond_async(client: TestClient) -> None:
    answer = client.post(URL, content=b'{"job": {}}', headers=ASYNC)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-window")


def test_a_failed_diagnosis_has_its_problem(client: TestClient, body_of, monkeypatch) -> None:
    state = state_of(client)
    monkeypatch.setattr(state.dispatcher, "_deadline_seconds", 0.0)
    answer = client.post(URL, content=body_of("failing"), headers=ASYNC)
    gone = answered_later(client, answer.headers["location"])
    assert (gone.status_code, gone.json()["code"]) == (410, "diagnosis-failed")
    assert gone.json()["problem"]["code"] == "deadline-exceeded"
    [item] = client.get(URL, params={"state": "failed"}).json()["items"]
    assert item["job_id"] == "failing"


def test_a_repeated_request_gets_the_first_answer(client: TestClient, body_of) -> None:
    headers = {**JSON, "Idempotency-Key": "alert-17"}
    first = client.post(URL, content=body_of("once"), headers=headers)
    again = client.post(URL, content=body_of("once"), headers=headers)
    assert again.content == first.content
    assert ("idempotency-replayed" in first.headers, again.headers["idempotency-replayed"]) == (False, "true")
    assert len(client.get(URL, params={"job": "once"}).json()["items"]) == 1
    other = client.post(URL, content=body_of("another"), headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency-mismatch")


def test_a_repeated_request_with_respond_async_is_queued_once(client: TestClient, body_of) -> None:
    headers = {**ASYNC, "Idempotency-Key": "alert-18"}
    places = {
        client.post(URL, content=body_of("once-later"), headers=headers).headers["location"] for _ in range(3)
    }
    assert len(places) == 1


def test_requests_with_one_key_at_once_make_one_diagnosis(client: TestClient, body_of) -> None:
    headers, statuses = {**JSON, "Idempotency-Key": "alert-19"}, []

    def post() -> None:
        statuses.append(client.post(URL, content=body_of("at-once"), headers=headers).status_code)

    threads = [threading.Thread(target=post) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) <= {200, 409}
    assert 200 in statuses
    assert len(client.get(URL, params={"job": "at-once"}).json()["items"]) == 1


def test_a_refused_request_frees_its_key(client: TestClient, body_of) -> None:
    headers = {**JSON, "Idempotency-Key": "alert-20"}
    assert client.post(URL, content=b"{}", headers=headers).status_code == 422
    assert client.post(URL, content=b"{}", headers=headers).json()["code"] == "invalid-window"
    assert client.post(URL, content=body_of(), headers=headers).status_code == 200


@pytest.mark.parametrize("key", ["", "a b", "x" * 201])
def test_an_invalid_key_is_refused(client: TestClient, body_of, key: str) -> None:
    answer = client.post(URL, content=body_of(), headers={**JSON, "Idempotency-Key": key})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-parameters")


def test_a_caller_can_set_a_deadline(client: TestClient, body_of) -> None:
    # The process is warm once it has answered.
    assert client.post(URL, content=body_of(), headers=JSON).status_code == 200
    [process] = state_of(client).pool.processes()
    os.kill(process, signal.SIGSTOP)
    began = time.monotonic()
    answer = client.post(URL, content=body_of(), headers={**JSON, "Prefer": "wait=1"})
    assert (answer.status_code, answer.json()["code"]) == (504, "deadline-exceeded")
    assert time.monotonic() - began < 5
    # The process that overran it was replaced.
    assert client.post(URL, content=body_of(), headers=JSON).status_code == 200
    assert process not in state_of(client).pool.processes()


def test_lists_are_filtered_and_come_in_pages(client: TestClient, body_of) -> None:
    slow = client.post(URL, content=body_of("paged", late={1: 0.05}), headers=JSON).json()
    for _ in range(4):
        client.post(URL, content=body_of("paged"), headers=JSON)
    first = client.get(URL, params={"job": "paged", "limit": 2})
    assert len(first.json()["items"]) == 2
    assert first.headers["link"].endswith('; rel="next"')
    seen = first.json()["items"]
    link = first.headers["link"]
    while link is not None:
        following = client.get(link.partition(">")[0][1:])
        seen += following.json()["items"]
        link = following.headers.get("link")
    assert [item["job_id"] for item in seen] == ["paged"] * 5
    assert [item["created_at"] for item in seen] == sorted((i["created_at"] for i in seen), reverse=True)
    found = client.get(URL, params={"job": "paged", "failure_mode": "fail_slow"}).json()["items"]
    assert [item["diagnosis_id"] for item in found] == [slow["diagnosis_id"]]
    before = client.get(URL, params={"job": "paged", "until": found[0]["created_at"]}).json()["items"]
    since = client.get(URL, params={"job": "paged", "since": found[0]["created_at"]}).json()["items"]
    assert (len(before), len(since)) == (0, 5)


@pytest.mark.parametrize(
    "wrong", [{"since": "2026-01-01T00:00:00"}, {"since": "0001-01-01T00:00:00+23:59"}, {"job": "a\0"}]
)
def test_invalid_filters_are_refused(client: TestClient, wrong: dict[str, str]) -> None:
    answer = client.get(URL, params=wrong)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-parameters")


def test_a_batch_is_answered_item_by_item(client: TestClient, body_of) -> None:
    windows = [json.loads(body_of("batch-1")), {"job": {}}, json.loads(body_of("batch-2"))]
    answer = client.post(f"{URL}/batch", content=orjson.dumps({"windows": windows}), headers=JSON)
    assert answer.status_code == 200, answer.text
    items = answer.json()["items"]
    assert [item["status"] for item in items] == [200, 422, 200]
    assert items[1]["problem"]["code"] == "invalid-window"
    assert client.get(items[2]["location"]).json() == items[2]["diagnosis"]


def test_a_batch_of_parts_and_a_batch_with_respond_async(client: TestClient, make_window, body_of) -> None:
    parts = [body_of("part-1"), make_window(4, 12).to_arrow()]
    body = b"".join(
        b'--b\r\nContent-Disposition: form-data; name="window"\r\n\r\n' + part + b"\r\n" for part in parts
    )
    headers = {"Content-Type": "multipart/form-data; boundary=b", "Prefer": "respond-async"}
    answer = client.post(f"{URL}/batch", content=body + b"--b--\r\n", headers=headers)
    items = answer.json()["items"]
    assert [item["status"] for item in items] == [202, 202]
    assert all(answered_later(client, item["location"]).status_code == 200 for item in items)


def test_keys_of_items_differ_from_keys_of_callers(client: TestClient, body_of) -> None:
    window = body_of("batch-apart")
    for key in ("batch-2#0", "batch-2"):
        alone = client.post(URL, content=window, headers={**JSON, "Idempotency-Key": key})
        assert alone.status_code == 200
    batch = b'{"windows": [' + body_of("batch-other") + b"]}"
    answer = client.post(f"{URL}/batch", content=batch, headers={**JSON, "Idempotency-Key": "batch-2"})
    assert [item["status"] for item in answer.json()["items"]] == [200]


def test_a_repeated_batch_is_not_diagnosed_again(client: TestClient, body_of) -> None:
    body = orjson.dumps({"windows": [json.loads(body_of("batch-once"))] * 2})
    headers = {**JSON, "Idempotency-Key": "batch-1"}
    first = client.post(f"{URL}/batch", content=body, headers=headers).json()
    assert client.post(f"{URL}/batch", content=body, headers=headers).json() == first
    assert len(client.get(URL, params={"job": "batch-once"}).json()["items"]) == 2


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid-input"),
        (b"[]", "invalid-input"),
        (b'{"windows": []}', "invalid-input"),
        (b'{"windows": [1, 2, 3, 4, 5]}', "too-large"),
    ],
)
def test_a_malformed_batch_is_refused(client: TestClient, body: bytes, code: str) -> None:
    assert client.post(f"{URL}/batch", content=body, headers=JSON).json()["code"] == code


@pytest.mark.parametrize("name", ["x" * 257, "a\0b", "a\r\nb"])
def test_a_name_that_cannot_be_stored_is_refused(client: TestClient, body_of, name: str) -> None:
    answer = client.post(URL, content=body_of(name), headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-window")


def test_large_bodies_leave_no_files(client: TestClient, make_window) -> None:
    body = make_window(64, 300).to_json()
    assert len(body) > 1 << 20
    assert client.post(URL, content=body, headers=JSON).status_code == 200
    spool = state_of(client).settings.data_dir / "spool"
    assert [path for path in spool.rglob("*") if path.is_file()] == []


def test_without_a_database_nothing_is_acknowledged(client: TestClient, body_of, monkeypatch) -> None:
    def away(*_: object) -> None:
        raise StoreError("the database cannot be used: connection refused")

    with monkeypatch.context() as patch:
        patch.setattr("rca_api.shell.store.database.Database.session", away)
        answer = client.post(URL, content=body_of("unstored"), headers=JSON)
        later = client.post(URL, content=body_of("unstored"), headers=ASYNC)
    for refused in (answer, later):
        assert (refused.status_code, refused.json()["code"]) == (503, "store-unavailable")
        assert int(refused.headers["retry-after"]) > 0
    assert client.get(URL, params={"job": "unstored"}).json()["items"] == []
