"""Who may send, and who is worked for: slow senders and strangers take nothing away from others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from httpx2 import ASGITransport, AsyncClient, Response
from starlette.testclient import TestClient

from rca_api.shell.app import create_app
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.requests.admission import Admission
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.requests.request_bodies import SmallBodies
from rca_api.shell.security import keys
from rca_api.shell.security.principal import Scope
from rca_api.shell.settings.settings import Settings
from rca_api.shell.state import State


def admission(**settings: int) -> Admission:
    return Admission(Settings(processes=1, **settings), lambda _: 0.0, Metrics())


@pytest.fixture
def app(tmp_path: Path) -> Iterator[FastAPI]:
    """A service with keys and a pool that is never started, so that all work waits."""
    settings = Settings(
        data_dir=tmp_path, auth="keys", processes=1, queue_limit=1, deadline_seconds=0.2, receive_limit=8
    )
    held = create_app(settings)
    parts: State = held.state.parts
    parts.database.upgrade()
    yield held
    parts.database.close()


def key(app: FastAPI, scope: Scope) -> dict[str, str]:
    parts: State = app.state.parts
    with parts.database.session() as session:
        return {"Authorization": f"Bearer {keys.create(session, 'test', [scope])[1]}"}


def test_a_body_that_is_being_received_takes_no_place_in_the_queue() -> None:
    held = admission(queue_limit=0)
    with held.body("one"):
        with held.work():
            with pytest.raises(ProblemError) as caught, held.work():
                pass
            assert caught.value.code == "busy"
        assert not held.is_full()


def test_bodies_being_received_are_limited_for_all_and_for_each() -> None:
    held = admission(receive_limit=3, receive_limit_per_caller=2)
    with ExitStack() as stack:
        first = stack.enter_context(held.body("one"))
        stack.enter_context(held.body("one"))
        with pytest.raises(ProblemError) as of_one, held.body("one"):
            pass
        assert of_one.value.code == "rate-limited"
        assert int(of_one.value.headers["Retry-After"]) >= 1
        stack.enter_context(held.body("other"))
        with pytest.raises(ProblemError) as of_all, held.body("third"):
            pass
        assert of_all.value.code == "busy"
        first.hold(5)
        first.arrived()
        stack.enter_context(held.body("third"))
        assert held.held_bytes == 5
    assert (held.held_bytes, held.receiving) == (0, {})


def test_without_authentication_all_callers_are_one() -> None:
    held = admission(receive_limit=3, receive_limit_per_caller=1)
    with held.body(None), held.body(None):
        assert held.receiving.total() == 2


async def slowly(let_go: asyncio.Event) -> AsyncIterator[bytes]:
    yield b"{"
    await let_go.wait()


def test_callers_that_stop_sending_do_not_block_work(app: FastAPI) -> None:
    headers = key(app, Scope.diagnose) | {"Content-Type": "application/json"}
    parts: State = app.state.parts

    async def ask() -> Response:
        let_go = asyncio.Event()
        transport = ASGITransport(app, raise_app_exceptions=False)
        async with AsyncClient(transport=transport, base_url="http://service") as client:
            slow = [
                asyncio.create_task(client.post("/v1/diagnoses", content=slowly(let_go), headers=headers))
                for _ in range(5)
            ]
            while parts.admission.receiving.total() < len(slow):
                await asyncio.sleep(0.01)
            answer = await client.post("/v1/diagnoses", content=b"{}", headers=headers)
            let_go.set()
            await asyncio.gather(*slow)
        return answer

    # It got as far as the pool, which does not run here.
    assert asyncio.run(ask()).json()["code"] == "deadline-exceeded"


def test_a_stranger_is_turned_away_before_its_body_is_read(app: FastAPI) -> None:
    client = TestClient(app, raise_server_exceptions=False)
    for path in ("/v1/webhooks", "/v1/training-runs", "/v1/models/3/promote", "/v1/models/rollback"):
        assert client.post(path, content=b"x" * (2 << 20)).status_code == 401, path
    admin = key(app, Scope.admin)
    assert client.post("/v1/webhooks", content=b"x" * (2 << 20), headers=admin).status_code == 413


def test_no_endpoint_leaves_reading_its_body_to_the_framework(app: FastAPI) -> None:
    routers = [held.original_router for held in app.routes if hasattr(held, "original_router")]
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    parsed = [route for route in routes if route.body_field is not None]
    assert len(parsed) >= 5
    assert [route.path for route in parsed if not isinstance(route, SmallBodies)] == []


def test_small_bodies_count_as_bytes_in_memory(tmp_path: Path) -> None:
    app = create_app(Settings(data_dir=tmp_path, max_buffered_bytes=10))
    app.state.parts.database.upgrade()
    answer = TestClient(app).post("/v1/training-runs", content=b'{"windows": 200}')
    assert (answer.status_code, answer.json()["code"]) == (503, "busy")
    assert app.state.parts.admission.held_bytes == 0
    app.state.parts.database.close()


def test_a_request_is_counted_once(tmp_path: Path) -> None:
    app = create_app(Settings(data_dir=tmp_path, auth="keys", rate_limit="2/minute"))
    app.state.parts.database.upgrade()
    client, admin = TestClient(app), key(app, Scope.admin) | {"Content-Type": "application/json"}
    statuses = [client.post("/v1/webhooks", content=b"no json", headers=admin).status_code for _ in range(3)]
    assert statuses == [422, 422, 429]
    app.state.parts.database.close()
