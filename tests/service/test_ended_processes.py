"""Windows that end process after process: the answers to requests and to queued diagnoses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from fastapi import FastAPI
from played_slots import PlayedSlot
from starlette.testclient import TestClient

from rca_api.diagnoses import dispatcher
from rca_api.diagnoses.journal import MAX_ATTEMPTS
from rca_api.diagnoses.work import StoredWindow
from rca_api.shell.app import create_app
from rca_api.shell.processes.child_process import ChildEnded, Reply
from rca_api.shell.settings.settings import Settings
from rca_api.shell.state import State

pytestmark = pytest.mark.smoke

JSON = {"Content-Type": "application/json"}
HOW = "signal 9 (Killed), which the kernel sends when memory runs out"
KEPT = StoredWindow("d" * 64, 1, "job", None, 0.0, 1.0, 1, [])


class Dying(PlayedSlot):
    """Each process ends during a diagnosis; windows are accepted."""

    async def run(self, task: Any, *others: Any) -> Reply:
        if task.__name__ == "accept_window":
            return Reply(KEPT, seconds=0.1)
        raise ChildEnded(HOW, at_work=True)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    app: FastAPI = create_app(Settings(data_dir=tmp_path, auth="off", processes=1, lease_seconds=0.05))
    parts: State = app.state.parts
    parts.pool._slots = [Dying()]
    monkeypatch.setattr(parts.journal, "has_window", lambda _: True)
    monkeypatch.setattr(dispatcher, "_POLL_SECONDS", 0.01)
    with TestClient(app, raise_server_exceptions=False) as held:
        yield held


def test_a_window_that_ends_two_processes_gets_503_and_the_log_says_how(client: TestClient) -> None:
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        answer = client.post("/v1/diagnoses", content=b"{}", headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (503, "process-ended")
    assert HOW in answer.json()["detail"]
    assert int(answer.headers["retry-after"]) >= 1
    died = [line for line in lines if line["event"] == "a process died during a task"]
    assert [(line["times"], line["how"]) for line in died] == [(1, HOW), (2, HOW)]
    assert all(len(line["body_sha256"]) == 64 and line["request_id"] for line in died)


def test_a_queued_diagnosis_that_is_given_up_is_listed_with_the_reason(client: TestClient) -> None:
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        queued = client.post("/v1/diagnoses", content=b"{}", headers=JSON | {"Prefer": "respond-async"})
        assert queued.status_code == 202
        at = queued.headers["location"]
        attempts: set[str] = set()
        deadline = time.monotonic() + 30
        while (found := client.get(at)).status_code == 202:
            assert time.monotonic() < deadline
            attempts.add((found.json()["problem"] or {}).get("detail", ""))
    assert any(HOW in each for each in attempts)
    assert found.status_code == 410
    assert found.json()["detail"].startswith(
        f"given up after {MAX_ATTEMPTS} attempts; the last one: 2 processes"
    )
    assert HOW in found.json()["detail"]
    [item] = client.get("/v1/diagnoses", params={"state": "failed"}).json()["items"]
    assert item["problem"]["detail"] == found.json()["detail"]
    [given_up] = [line for line in lines if line["event"] == "a diagnosis is given up"]
    assert (given_up["window"], HOW in given_up["reason"]) == (KEPT.digest, True)
    died = [line for line in lines if line["event"] == "a process died during a task"]
    assert len(died) == 2 * MAX_ATTEMPTS
    assert {line["window"] for line in died} == {KEPT.digest}
