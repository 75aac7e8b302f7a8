"""Processes of a real service, really killed: what was acknowledged is there, and nothing is there twice."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from watched import computing, metric, post, processor_seconds, serving, stored

from rca_api.shell.demo import running_service
from tests.waiting import SECONDS, until

pytestmark = [pytest.mark.slow, pytest.mark.system]


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
def large(make_window) -> bytes:
    """A window that takes a second or so: long enough to be killed in the middle of."""
    window: bytes = make_window(256, 400).to_json()
    return window


@pytest.fixture
def url(settings: dict[str, str]) -> Iterator[str]:
    with running_service(settings=settings) as address:
        yield address


def test_a_process_killed_in_the_middle_of_a_diagnosis_costs_only_time(
    url: str, data: Path, large: bytes
) -> None:
    [process] = computing(data)
    idle = processor_seconds(process)
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(post(url, large)))
    asking.start()
    # What waits for work takes next to no processor time.
    until(lambda: processor_seconds(process) > idle + 0.1, pause=0.005)
    os.kill(process, signal.SIGKILL)
    asking.join(SECONDS)
    [(status, answer)] = answers
    assert status == 200
    assert [item["diagnosis_id"] for item in stored(url)] == [answer["diagnosis_id"]]
    # It was killed at work, not before and not after.
    assert metric(url, 'rca_pool_renewals_total{reason="died"}') == 1
    assert metric(url, "rca_pool_retries_total") == 1


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
        [server] = serving(data)
        os.kill(process, signal.SIGCONT)
        os.kill(server, signal.SIGKILL)
        # Processes end with their service, even one that computes.
        until(lambda: not computing(data))
    assert len(acknowledged) == 10
    with running_service(settings=settings) as url:
        until(lambda: all(item["state"] == "done" for item in stored(url)))
        assert {item["diagnosis_id"] for item in stored(url)} == acknowledged
        assert metric(url, "rca_diagnoses_total") == 10 - done_before


@pytest.mark.long
def test_a_service_that_is_stopped_leaves_what_is_queued(
    settings: dict[str, str], data: Path, body: bytes
) -> None:
    with running_service(settings=settings) as url:
        for _ in range(6):
            post(url, body, Prefer="respond-async")
        [server] = serving(data)
        os.kill(server, signal.SIGTERM)
        until(lambda: not serving(data))
    with running_service(settings=settings) as url:
        until(lambda: [item["state"] for item in stored(url)] == ["done"] * 6)
