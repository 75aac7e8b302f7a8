"""Processes of a real service, really killed: what was acknowledged is there, and nothing is there twice."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from rca_api.demo import running_service

pytestmark = pytest.mark.slow
SECONDS = 120.0


def until(true: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (found := true()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def processes_of(data: Path, what: bytes) -> list[int]:
    """Processes of the service with this data folder whose name or command line has `what`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            name = (entry / "comm").read_bytes() + (entry / "cmdline").read_bytes()
            if what in name and f"RCA_DATA_DIR={data}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return found


def computing(data: Path) -> list[int]:
    return processes_of(data, b"rca-compute")


def post(url: str, body: bytes, **headers: str) -> tuple[int, Any]:
    request = Request(f"{url}/v1/diagnoses", body, {"Content-Type": "application/json", **headers})
    with urlopen(request, timeout=SECONDS) as answer:
        return answer.status, json.loads(answer.read())


def stored(url: str) -> list[Any]:
    with urlopen(f"{url}/v1/diagnoses?limit=200", timeout=SECONDS) as answer:
        items: list[Any] = json.loads(answer.read())["items"]
    return items


def metric(url: str, line: str) -> float:
    text = urlopen(f"{url}/metrics", timeout=SECONDS).read().decode()
    return sum(float(each.rpartition(" ")[2]) for each in text.splitlines() if each.startswith(line))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def settings(data: Path) -> dict[str, str]:
    return {"RCA_DATA_DIR": str(data), "RCA_PROCESSES": "1", "RCA_LEASE_SECONDS": "2"}


@pytest.fixture
def body(make_window) -> bytes:
    window: bytes = make_window(8, 40).to_json()
    return window


@pytest.fixture
def url(settings: dict[str, str]) -> Iterator[str]:
    with running_service(settings=settings) as address:
        yield address


def test_a_process_killed_in_the_middle_of_a_diagnosis_costs_only_time(
    url: str, data: Path, body: bytes
) -> None:
    [process] = computing(data)
    os.kill(process, signal.SIGSTOP)
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(post(url, body)))
    asking.start()
    until(lambda: metric(url, "rca_diagnoses_in_progress") == 1)
    # Long enough for the task to be in the pipe of the process that stands still.
    time.sleep(0.3)
    os.kill(process, signal.SIGKILL)
    asking.join(SECONDS)
    [(status, answer)] = answers
    assert status == 200
    assert [item["diagnosis_id"] for item in stored(url)] == [answer["diagnosis_id"]]


def test_a_service_killed_with_a_queue_finishes_it_after_its_restart(
    settings: dict[str, str], data: Path, body: bytes
) -> None:
    with running_service(settings=settings) as url:
        [process] = computing(data)
        acknowledged = {post(url, body, Prefer="respond-async")[1]["diagnosis_id"] for _ in range(10)}
        until(lambda: any(item["state"] == "done" for item in stored(url)))
        os.kill(process, signal.SIGSTOP)
        until(lambda: any(item["state"] == "running" for item in stored(url)))
        # What was found before it stood still may be on its way into the database.
        time.sleep(0.5)
        done_before = sum(item["state"] == "done" for item in stored(url))
        [server] = processes_of(data, b"--serve-on")
        os.kill(process, signal.SIGCONT)
        os.kill(server, signal.SIGKILL)
        # Processes end with their service, even one that computes.
        until(lambda: not computing(data))
    assert len(acknowledged) == 10
    with running_service(settings=settings) as url:
        until(lambda: all(item["state"] == "done" for item in stored(url)))
        assert {item["diagnosis_id"] for item in stored(url)} == acknowledged
        assert metric(url, "rca_diagnoses_total") == 10 - done_before


def test_a_service_that_is_stopped_leaves_what_is_queued(
    settings: dict[str, str], data: Path, body: bytes
) -> None:
    with running_service(settings=settings) as url:
        for _ in range(6):
            post(url, body, Prefer="respond-async")
        [server] = processes_of(data, b"--serve-on")
        os.kill(server, signal.SIGTERM)
        until(lambda: not processes_of(data, b"--serve-on"))
    with running_service(settings=settings) as url:
        until(lambda: [item["state"] for item in stored(url)] == ["done"] * 6)
