"""The service compares a window with the last healthy one of its job, where the setting lets it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from diagnosed import SECONDS, START, diagnosed
from fastapi import FastAPI
from starlette.testclient import TestClient

from rca.window.window import Window
from rca_api.diagnoses import repository
from rca_api.diagnoses.history import EarlierWindows, HealthyWindow, without_overlaps
from rca_api.diagnoses.history_cache import Polled, earlier_windows
from rca_api.diagnoses.tables import WindowRow
from rca_api.shell.app import create_app
from rca_api.shell.settings.settings import Settings
from rca_api.shell.state import State
from rca_api.shell.store.base import now
from rca_api.shell.store.database import Database
from tests.shifted_windows import shifted

pytestmark = pytest.mark.system

URL = "/v1/diagnoses"
JSON = {"Content-Type": "application/json"}
LONG_AGO = now() - timedelta(days=1)


def stored(database: Database, *windows: dict[str, Any]) -> None:
    with database.session() as session:
        for place, each in enumerate(windows):
            digest = f"{place:064x}"
            session.add(WindowRow(digest=digest, job_id=each.get("job", "job"), n_bytes=1))
            session.flush()
            diagnosed(session, digest=None if each.pop("gone", False) else digest, **each)


def test_the_newest_healthy_windows_of_each_job_are_found(database: Database) -> None:
    stored(
        database,
        *({"number": number} for number in (3, 1, 2, 0)),
        # Those that slide over the newest.
        *({"number": 3 - part / 4} for part in (1, 2, 3)),
        {"number": 4, "said": "cpu_contention"},
        {"number": 5, "said": "unsure"},
        {"number": 6, "gone": True},
        {"number": 9, "job": "other"},
    )
    with database.reading() as session:
        found = repository.healthy_windows(session, since=LONG_AGO)
        assert repository.healthy_windows(session, since=now() + timedelta(hours=1)) == {}
    assert set(found) == {"job", "other"}
    ends = [round((each.end - START) / SECONDS) for each in found["job"]]
    assert ends == [4, 3, 2]
    assert [int(each.digest, 16) for each in found["job"]] == [0, 2, 1]
    assert found["other"][0].end == found["other"][0].start + SECONDS


def test_sliding_windows_leave_some_that_do_not_overlap() -> None:
    """Windows of ten minutes, one every minute: three of them cover half an hour."""
    sliding = [
        HealthyWindow(f"{minute}", 60.0 * minute, 60.0 * (minute + 10)) for minute in range(40, -1, -1)
    ]
    assert [each.digest for each in without_overlaps(sliding)] == ["40", "30", "20"]
    assert [each.digest for each in without_overlaps([sliding[0], sliding[0], sliding[-1]])] == ["40", "0"]


def test_the_cache_holds_the_last_read(database: Database) -> None:
    stored(database, {"number": 1})
    memory = Polled(database, earlier_windows, EarlierWindows(), "windows")
    assert memory.current == EarlierWindows()
    memory.refresh()
    assert set(memory.current.of_job) == {"job"}


def test_a_window_is_compared_with_one_that_ended_before_it(make_window) -> None:
    job = make_window(2, 10).job
    held = (
        HealthyWindow("overlaps", job.start - 9.0, job.start + 1.0),
        HealthyWindow("before", job.start - 10.0, job.start),
        HealthyWindow("long before", job.start - 110.0, job.start - 100.0),
    )
    windows = EarlierWindows({job.job_id: held})
    assert windows.before(job) == "before"
    assert windows.before(job.model_copy(update={"job_id": "other"})) is None
    assert windows.before(job.model_copy(update={"start": job.start - 50.0})) == "long before"
    assert windows.before(job.model_copy(update={"start": job.start - 200.0})) is None
    # What it did longer ago than a week is no measure.
    assert windows.before(job.model_copy(update={"start": job.start + 8 * 86_400.0})) is None


@pytest.fixture(params=["on", "off"])
def setting(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@pytest.fixture
def client(setting: str, tmp_path: Path) -> Iterator[TestClient]:
    settings = Settings(processes=1, data_dir=tmp_path, earlier_windows=setting)
    with TestClient(create_app(settings), raise_server_exceptions=False) as held:
        yield held


def state_of(client: TestClient) -> State:
    assert isinstance(client.app, FastAPI)
    parts: State = client.app.state.parts
    return parts


@pytest.fixture
def answer(client: TestClient, setting: str) -> Callable[..., dict[str, Any]]:
    """Post a window after what was posted before is remembered."""

    def post(window: Window, **headers: str) -> dict[str, Any]:
        if setting == "on":
            state_of(client).memory.windows.refresh()
        found = client.post(URL, content=window.to_json(), headers=JSON | headers)
        if found.status_code == 202:
            raise AssertionError(found.text)
        assert found.status_code == 200, found.text
        told: dict[str, Any] = found.json()
        return told

    return post


def test_a_job_is_compared_with_its_last_healthy_window(
    setting: str, client: TestClient, answer: Callable[..., dict[str, Any]], make_window
) -> None:
    before = shifted(make_window(8, 40, transfer=0.01), -3600.0)
    first = answer(before)
    assert (first["failure_mode"], first["abstained"], first["earlier"]) == ("healthy", False, None)
    slower = make_window(8, 40, transfer=0.05)
    told = answer(slower)
    if setting == "off":
        assert told["earlier"] is None
        return
    assert told["earlier"]["ratio"] == pytest.approx(1.48, abs=0.05)
    assert told["earlier"]["seconds_before"] == pytest.approx(slower.job.start - before.job.end)
    # For later, and in a batch, it is the same.
    later = answer(slower, Prefer="respond-async, wait=30")
    assert later["earlier"]["ratio"] == told["earlier"]["ratio"]
    batch = b'{"windows": [' + slower.to_json() + b"]}"
    (item,) = client.post(f"{URL}/batch", content=batch, headers=JSON).json()["items"]
    assert item["diagnosis"]["earlier"]["ratio"] == told["earlier"]["ratio"]
    # Another job, and the same one of another size, have no such past.
    other = replace(slower, job=slower.job.model_copy(update={"job_id": "other"}))
    assert answer(other)["earlier"] is None
    assert answer(make_window(4, 40, transfer=0.05))["earlier"] is None


def test_if_the_earlier_window_was_deleted_the_window_is_diagnosed_alone(
    setting: str, client: TestClient, answer: Callable[..., dict[str, Any]], make_window
) -> None:
    if setting == "off":
        pytest.skip("the setting is off")
    answer(shifted(make_window(8, 40, transfer=0.01), -3600.0))
    state = state_of(client)
    state.memory.windows.refresh()
    ((known,),) = state.memory.current.windows.of_job.values()
    state.windows.delete(known.digest)
    told = client.post(URL, content=make_window(8, 40, transfer=0.05).to_json(), headers=JSON)
    assert told.status_code == 200
    assert told.json()["earlier"] is None
