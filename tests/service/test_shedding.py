"""Windows that find no place in the queue are refused first thing, cheaply, and each of them is counted."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import uvicorn
from fastapi import FastAPI
from starlette.testclient import TestClient
from starlette.types import Message

from rca_api.shell.app import create_app
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.requests import middleware
from rca_api.shell.requests.admission import Admission
from rca_api.shell.requests.middleware import QUEUED, Shedding
from rca_api.shell.settings.settings import Settings
from rca_api.shell.state import State

pytestmark = pytest.mark.system

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def app(tmp_path: Path) -> Iterator[FastAPI]:
    """A service with keys whose queue is full."""
    held = create_app(Settings(data_dir=tmp_path, auth="keys", processes=1, queue_limit=3))
    parts: State = held.state.parts
    parts.database.upgrade()
    parts.admission.requests = 4
    yield held
    parts.database.close()


@pytest.fixture
def client(app: FastAPI) -> TestClient:
    return TestClient(app, raise_server_exceptions=False)


def admission(queue_limit: int = 3, seconds: float = 0.0) -> Admission:
    return Admission(Settings(processes=1, queue_limit=queue_limit), lambda _: seconds, Metrics())


async def refused(shed: Shedding, headers: dict[str, str], path: str = "/v1/diagnoses") -> list[Message]:
    """What a full service sends to a request."""
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("the body was read")

    async def send(message: Message) -> None:
        sent.append(message)

    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await shed({"type": "http", "method": "POST", "path": path, "headers": raw}, receive, send)
    return sent


def full_service() -> Shedding:
    held = admission()
    held.requests = held.max_requests

    async def app(*_: Any) -> None:
        raise AssertionError("the request was passed on")

    return Shedding(app, held, Metrics(), 1 << 20)


def header(sent: list[Message], name: str) -> str | None:
    return next((value.decode() for key, value in sent[0]["headers"] if key == name.encode()), None)


def test_every_route_with_a_place_in_the_queue_refuses_first_thing(app: FastAPI, client: TestClient) -> None:
    posts = {path: held["post"] for path, held in app.openapi()["paths"].items() if "post" in held}
    with_windows = {
        path
        for path, operation in posts.items()
        if any(parameter["name"] == "Content-Encoding" for parameter in operation.get("parameters", ()))
    }
    assert with_windows == QUEUED
    for path in (route.format(job_id="a/job") for route in QUEUED):
        # Before the credential, the media type and the parameters are looked at.
        answer = client.post(f"{path}?x=1", content=b"{}", headers={"X-Request-ID": "mine"})
        assert (answer.status_code, answer.json()["code"]) == (503, "busy")
        assert answer.headers["content-type"] == "application/problem+json"
        assert (answer.json()["instance"], answer.json()["request_id"]) == (path, "mine")
        assert answer.headers["x-request-id"] == "mine"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert int(answer.headers["retry-after"]) >= 1
        assert f"retry after {answer.headers['retry-after']} s" in answer.json()["detail"]
    app.state.parts.admission.requests = 0
    assert {
        client.post(path, content=b"{}").status_code
        for path in (route.format(job_id="a") for route in QUEUED)
    } == {401}


def test_probes_and_reads_are_answered_while_the_queue_is_full(client: TestClient) -> None:
    assert client.get("/healthz").status_code == 200
    assert client.get("/metrics").status_code == 200
    assert client.get("/readyz").json()["code"] == "not-ready"
    assert client.get("/v1/diagnoses").status_code == 401
    assert client.post("/v1/webhooks", content=b"{}").status_code == 401


def test_each_refusal_is_counted(client: TestClient) -> None:
    for _ in range(3):
        client.post("/v1/diagnoses", content=b"{}")
    client.post("/v1/what-if", content=b"{}")
    text = client.get("/metrics").text
    assert 'rca_shed_requests_total{limit="requests"} 4.0' in text
    assert 'rca_problems_total{code="busy"} 4.0' in text
    assert 'rca_http_requests_total{method="POST",route="/v1/diagnoses",status="503"} 3.0' in text
    assert 'rca_http_request_seconds_count{method="POST",route="/v1/what-if",status="503"} 1.0' in text


def test_the_log_has_one_line_for_all_refusals_of_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "_LOG_SECONDS", 0.05)
    shed = full_service()

    async def twice() -> None:
        for _ in range(2):
            for path in ("/v1/diagnoses", "/v1/diagnoses", "/v1/what-if"):
                await refused(shed, {}, path)
            await asyncio.sleep(0.1)

    with structlog.testing.capture_logs() as lines:
        asyncio.run(twice())
    line = {"event": "requests refused", "code": "busy", "n": 3, "log_level": "info"}
    assert lines == [line | {"routes": {"/v1/diagnoses": 2, "/v1/what-if": 1}}] * 2


def test_the_body_is_never_read_and_the_connection_stays_if_it_will_end() -> None:
    sent = asyncio.run(refused(full_service(), {"Content-Length": "1000000"}))
    assert header(sent, "connection") is None
    assert int(header(sent, "content-length") or 0) == len(sent[1]["body"])
    assert json.loads(sent[1]["body"])["status"] == 503


@pytest.mark.parametrize(
    "headers",
    [
        {"Transfer-Encoding": "chunked"},
        {"Content-Length": str((1 << 20) + 1)},
        {"Content-Length": "1000", "Expect": "100-continue"},
    ],
    ids=["no declared length", "too long", "waits to be invited"],
)
def test_the_connection_closes_if_the_body_may_not_end(headers: dict[str, str]) -> None:
    sent = asyncio.run(refused(full_service(), headers))
    assert header(sent, "connection") == "close"


def test_one_connection_carries_refusals_with_bodies_and_what_follows(app: FastAPI) -> None:
    parts: State = app.state.parts
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        stack.callback(thread.join)
        stack.callback(setattr, server, "should_exit", True)
        connection = HTTPConnection(*listener.getsockname(), timeout=30)
        stack.callback(connection.close)
        connection.connect()
        used = connection.sock
        for _ in range(3):
            connection.request("POST", "/v1/diagnoses", bytes(3 << 20), JSON)
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())["code"]) == (503, "busy")
            assert connection.sock is used
        parts.admission.requests = 0
        connection.request("POST", "/v1/diagnoses", b"{}", JSON)
        answer = connection.getresponse()
        assert connection.sock is None or connection.sock is used
        assert (answer.status, json.loads(answer.read())["code"]) == (401, "unauthenticated")
        assert answer.headers["Connection"] == "close"


def test_bodies_on_their_way_count_while_the_queue_is_half_full() -> None:
    held = admission(queue_limit=3)
    with held.body("one"), held.body("two"):
        assert not held.is_full()
        with held.work():
            assert not held.is_full()
            with held.work():
                assert held.is_full()
    with held.work(), held.work(), held.work():
        assert not held.is_full()
        with held.work():
            assert held.is_full()


def test_slow_senders_alone_never_fill_the_queue() -> None:
    held = admission(queue_limit=3)
    with ExitStack() as stack:
        for caller in range(50):
            stack.enter_context(held.body(str(caller)))
        assert not held.is_full()
        stack.enter_context(held.work())
        assert not held.is_full()


def test_retry_after_is_the_time_of_the_work_ahead_spread_at_random() -> None:
    held = admission(seconds=4.2)
    waits = {int(held.retry_after()["Retry-After"]) for _ in range(300)}
    assert waits == set(range(5, 11))
    assert {held.retry_after()["Retry-After"] for held in [admission(seconds=1e6)] * 20} == {"60"}
