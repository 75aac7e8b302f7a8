"""No acknowledged row of a running job is lost, whatever clocks, restarts and late fragments do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
from incident_service import state_of
from sqlalchemy import select
from starlette.testclient import TestClient
from streaming import body, diagnosed, fragments, send, step_rows, watch

from rca_api.jobs import repository, watcher
from rca_api.shell.app import create_app
from rca_api.shell.settings.settings import Settings

pytestmark = [pytest.mark.system, pytest.mark.smoke]

N_RANKS, N_STEPS, SLOW_FROM = 8, 400, 384
FAR_FUTURE = 4_102_444_800.0


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings = Settings(
        processes=1, data_dir=tmp_path_factory.mktemp("data"), watch_seconds=1e6, job_silence_seconds=3600.0
    )
    with TestClient(create_app(settings), raise_server_exceptions=False) as held:
        yield held


@pytest.fixture
def rows() -> dict[str, np.ndarray]:
    """3,200 rows of a job that runs now, with a straggler in its last steps."""
    return step_rows(N_STEPS, slow_from=SLOW_FROM, n_ranks=N_RANKS, start=time.time() - 120.0)


def send_all(client: TestClient, job_id: str, rows: dict[str, np.ndarray], every: int = 100) -> None:
    for content in fragments(job_id, rows, every=every):
        send(client, job_id, content)


def window_of(client: TestClient, job_id: str, **parameters: Any) -> dict[str, Any]:
    answer = client.get(
        f"/v1/jobs/{job_id}/window", params=parameters, headers={"Accept": "application/json"}
    )
    assert answer.status_code == 200, answer.text
    window: dict[str, Any] = answer.json()
    return window


def keys(window: dict[str, Any]) -> list[tuple[int, int, float]]:
    steps = window["steps"]
    return sorted(zip(steps["rank"], steps["step"], steps["start_time"], strict=True))


def row_keys(*several: dict[str, np.ndarray]) -> list[tuple[int, int, float]]:
    found = []
    for rows in several:
        found += list(zip(*(rows[name].tolist() for name in ("rank", "step", "start_time")), strict=True))
    return sorted(found)


def n_segments(client: TestClient, job_id: str) -> int:
    with state_of(client).database.reading() as session:
        rows = select(repository.SegmentRow).where(repository.SegmentRow.job_id == job_id)
        return len(session.scalars(rows).all())


def far_future(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Step 0 of every rank again, in the year 2100."""
    first = {name: values[rows["step"] == 0].copy() for name, values in rows.items()}
    first["start_time"][:] = FAR_FUTURE
    return first


def clocks_set_back(rows: dict[str, np.ndarray], step: int) -> dict[str, np.ndarray]:
    changed = {name: values.copy() for name, values in rows.items()}
    changed["start_time"][rows["step"] >= step] -= 3600.0
    return changed


def assert_straggler(client: TestClient, job: dict[str, Any]) -> None:
    answer = diagnosed(client, job["diagnosis_id"])
    assert answer["failure_mode"] == "fail_slow"
    assert answer["stragglers"][0]["ranks"] == [1]
    assert answer["causes"][0]["cause"] == "data_loader_stall"
    assert job["remarks"][0] in answer["quality"]["notes"]
    begin, end = (datetime.fromisoformat(answer["window"][name]) for name in ("start", "end"))
    # Minutes, not an hour or decades.
    assert end - begin < timedelta(minutes=5)


def test_a_far_future_time_deletes_no_row_and_hides_no_straggler(
    client: TestClient, rows: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "MERGED_FROM", 2)
    send_all(client, "future", rows)
    odd = far_future(rows)
    send(client, "future", body("future", odd, np.arange(N_RANKS), N_RANKS))
    job = watch(client, "future")
    assert n_segments(client, "future") < 5
    assert keys(window_of(client, "future", as_sent=True)) == row_keys(rows, odd)
    assert keys(window_of(client, "future")) == row_keys(rows)
    assert_straggler(client, job)
    assert "8 steps of 8 ranks have a time long after their arrival" in job["remarks"][0]


def test_clocks_that_are_set_back_delete_no_row_and_hide_no_straggler(
    client: TestClient, rows: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "MERGED_FROM", 2)
    sent = clocks_set_back(rows, 300)
    send_all(client, "back", sent)
    job = watch(client, "back")
    assert keys(window_of(client, "back", as_sent=True)) == row_keys(sent)
    assert len(window_of(client, "back")["steps"]["rank"]) == N_RANKS * N_STEPS
    assert_straggler(client, job)
    assert "clock of 8 ranks was set by 3,600 s after step 299" in job["remarks"][0]


@pytest.mark.parametrize("numbered", [True, False], ids=["with attempt numbers", "without"])
def test_a_merge_keeps_the_rows_of_earlier_attempts(
    client: TestClient, rows: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch, numbered: bool
) -> None:
    monkeypatch.setattr(watcher, "MERGED_FROM", 2)
    job_id = f"restarted-{numbered}"
    first = {name: values[rows["step"] < 90] for name, values in rows.items()}
    second = {
        name: values[(rows["step"] >= 60) & (rows["step"] < 80)].copy() for name, values in rows.items()
    }
    second["start_time"] += 60.0
    if numbered:
        first["attempt"], second["attempt"] = (
            np.full(part["rank"].size, number) for number, part in enumerate((first, second))
        )
    send_all(client, job_id, first)
    send_all(client, job_id, second)
    watch(client, job_id)
    assert n_segments(client, job_id) < 3
    assert keys(window_of(client, job_id, as_sent=True)) == row_keys(first, second)
    window = window_of(client, job_id)
    before = {name: values[first["step"] < 60] for name, values in first.items()}
    assert keys(window) == row_keys(before, second)
    assert "240 steps of 8 ranks are left out: the job went back" in window["job"]["remarks"][0]


def test_a_far_future_time_of_a_new_step_stretches_no_window(
    client: TestClient, rows: dict[str, np.ndarray]
) -> None:
    rows["start_time"][(rows["rank"] == 2) & (rows["step"] == N_STEPS - 1)] = FAR_FUTURE
    send_all(client, "stretched", rows, every=200)
    job = watch(client, "stretched")
    assert_straggler(client, job)
    window = window_of(client, "stretched")
    assert len(window["steps"]["rank"]) == N_RANKS * N_STEPS
    assert window["job"]["end"] < time.time() + 600.0
    assert keys(window_of(client, "stretched", as_sent=True)) == row_keys(rows)


def test_flaws_are_logged_once(
    client: TestClient, rows: dict[str, np.ndarray], caplog: pytest.LogCaptureFixture
) -> None:
    for step in (100, 101):
        rows["start_time"][(rows["rank"] == 2) & (rows["step"] == step)] = FAR_FUTURE
    for every in (range(101), range(101, 120)):
        part = {name: values[np.isin(rows["step"], every)] for name, values in rows.items()}
        send_all(client, "flawed", part)
        watch(client, "flawed")
    logged = [
        record for record in caplog.records if "flawed" in str(record.msg) and "remarks" in str(record.msg)
    ]
    assert len(logged) == 1


def test_rows_that_some_fragments_measure_as_zero_stay_measured(client: TestClient) -> None:
    rows = step_rows(10, start=time.time() - 10.0)
    rows["communication_wait_seconds"][rows["rank"] == 1] = 0.0
    send_all(client, "zero", rows)
    steps = window_of(client, "zero")["steps"]
    waits = [
        wait
        for rank, wait in zip(steps["rank"], steps["communication_wait_seconds"], strict=True)
        if rank == 1
    ]
    assert waits == [0.0] * 10
