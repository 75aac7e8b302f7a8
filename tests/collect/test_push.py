"""The collector sends to a service: soon, once, and without training noticing that the service is away."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from service_stub import serving

from rca import collect
from rca.collect import collection, faults, identity, push
from rca.collect.counters import SERIES
from rca.collect.fragments import fragment
from rca.collect.identity import Identity
from rca.collect.push import Pusher, PushSettings
from rca.collect.timers import COLUMNS
from rca.window.encodings import json as json_window
from rca.window.window import Window
from tests.waiting import until

pytestmark = pytest.mark.system
WHO = Identity(3, 8, 1, "node-1", "job/a 1", "job.0", 2)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*identity.RANK, *identity.WORLD_SIZE, *identity.LOCAL_RANK, *identity.JOB, "RCA_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("RCA_COLLECT", "RCA_COLLECT_DIR", "RCA_COLLECT_SERVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(collection.CURRENT, "faults", faults.Faults())
    monkeypatch.setattr(push, "PUSH_SECONDS", 0.05)
    yield
    collect.stop()


def rows(first: int, n: int, seconds: float = 0.1) -> Any:
    """Finished steps from one number on."""
    found = np.full((n, len(COLUMNS)), np.nan)
    found[:, 0] = np.arange(first, first + n)
    found[:, COLUMNS.index("start_time")] = 1.8e9 + seconds * found[:, 0]
    found[:, COLUMNS.index("forward_seconds")] = seconds / 2
    found[:, COLUMNS.index("step_seconds")] = seconds
    return found


def pusher(url: str, spool: Path, who: Identity = WHO, **changes: Any) -> Pusher:
    made = Pusher(PushSettings(url, "key", spool, **changes), {"framework": "pytorch"}, faults.Faults())
    made.start(who)
    return made


def test_a_fragment_is_a_window_that_the_service_accepts() -> None:
    samples = np.array([[1.8e9, *np.arange(float(len(SERIES)))]])
    samples[0, 3] = np.nan
    event = {"time": 1.8e9 + 1, "kind": "log", "code": None, "message": "lost a peer"}
    document = fragment(WHO, {"framework": "pytorch"}, rows(5, 3), samples, [event])
    decoded = json_window.decode(orjson.dumps(document))
    window = Window.from_tables(decoded.job, **decoded.tables, scope="fragment")
    assert window.steps.column("attempt").to_pylist() == [2, 2, 2]
    assert window.steps.column("rank").to_pylist() == [3, 3, 3]
    assert window.metrics.num_rows == len(SERIES) - 1
    assert window.events.column("message").to_pylist() == ["lost a peer"]
    assert window.job.ranks is not None
    assert window.job.ranks[0].node == "node-1"


def test_a_step_in_progress_alone_is_a_window_that_the_service_accepts() -> None:
    """A rank that hangs sends no more than this: refused, the service would not know where it hangs."""
    opened = rows(7, 1)
    opened[:, COLUMNS.index("step_seconds")] = np.nan
    document = fragment(WHO, {}, opened, np.empty((0, 1 + len(SERIES))), [])
    decoded = json_window.decode(orjson.dumps(document))
    window = Window.from_tables(decoded.job, **decoded.tables, scope="fragment")
    assert window.steps.column("step").to_pylist() == [7]


def test_steps_of_a_loop_arrive_while_it_runs(tmp_path: Path) -> None:
    with serving() as service:
        collect.start(tmp_path, rank=0, world_size=1, job_id="job", service=service.url)
        for _ in collect.steps(range(10)):
            time.sleep(0.002)
        service.until(lambda: len(service.steps()) >= 9)
        collect.stop(None)
        assert service.steps() == list(range(len(service.steps())))
        assert {path for path, _, _ in service.requests} == {"/v1/jobs/job/telemetry", "/v1/jobs/job/end"}
        assert service.requests[-1][0] == "/v1/jobs/job/end"
    assert list(tmp_path.glob("*.rcac"))


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with serving() as service:
        monkeypatch.setenv("RCA_COLLECT_SERVICE", service.url)
        monkeypatch.setenv("RCA_API_KEY", "secret")
        assert collect.start(rank=1, world_size=2, job_id="job")
        for _ in collect.steps(range(5)):
            pass
        collect.stop(None)
        assert service.steps() == [0, 1, 2, 3, 4]
        assert {key for _, key, _ in service.requests} == {"Bearer secret"}
    assert list(tmp_path.rglob("*")) == []


def test_what_the_service_missed_comes_later_and_once(tmp_path: Path) -> None:
    with serving() as service:
        port = int(service.url.rpartition(":")[2])
    away = pusher(service.url, tmp_path)
    away.add(rows(0, 5), [], None)
    until(lambda: list(tmp_path.rglob("*.json")))
    away.end(over=False, seconds=5.0)
    with serving(port) as service:
        # Another process of the same rank, after a restart.
        again = pusher(service.url, tmp_path)
        again.add(rows(5, 5), [], None)
        service.until(lambda: len(service.steps()) == 10)
        again.end(over=False, seconds=5.0)
        assert service.steps() == list(range(10))
    assert list(tmp_path.rglob("*.json")) == []


def test_a_busy_service_gets_the_same_rows_again(tmp_path: Path) -> None:
    with serving() as service:
        service.status = 503
        made = pusher(service.url, tmp_path)
        made.add(rows(0, 5), [], None)
        until(lambda: list(tmp_path.rglob("*.json")))
        service.status = 200
        service.until(lambda: service.steps() == list(range(5)))
        made.end(over=False, seconds=5.0)


def test_the_spool_is_bounded(tmp_path: Path) -> None:
    made = pusher("http://127.0.0.1:9", tmp_path, max_spool_bytes=20_000)
    for number in range(30):
        made.add(rows(100 * number, 100), [], None)
        made._woken.set()
        made._ended.clear()
        time.sleep(0.001)
    made.end(over=False, seconds=10.0)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.json")) <= 20_000


def test_refused_telemetry_is_given_up_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving() as service, caplog.at_level(logging.WARNING):
        service.status = 422
        made = pusher(service.url, tmp_path)
        for number in range(3):
            made.add(rows(number, 1), [{"time": 1.8e9, "kind": "log"}], None)
            time.sleep(0.05)
        made.end(over=False, seconds=5.0)
    assert list(tmp_path.rglob("*.json")) == []
    assert [each.getMessage() for each in caplog.records] == [
        "the service refuses telemetry: HTTP 422, as the test wants it; it is given up"
    ]


@pytest.mark.parametrize("status", [301, 401, 403, 404, 429, 503])
def test_what_may_be_taken_later_waits_in_the_spool(status: int, tmp_path: Path) -> None:
    with serving() as service:
        service.status = status
        made = pusher(service.url, tmp_path)
        made.add(rows(0, 5), [], None)
        until(lambda: list(tmp_path.rglob("*.json")))
        service.status = 200
        service.until(lambda: service.steps() == list(range(5)))
        made.end(over=False, seconds=5.0)


@pytest.mark.parametrize(("status", "tries"), [(409, 1), (500, push.MAX_SERVER_ERRORS)])
def test_a_fragment_that_is_never_taken_does_not_block_later_ones(
    status: int, tries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "MAX_PAUSE_SECONDS", 0.02)
    with serving() as service:
        service.refuse = lambda body: status if body["steps"]["step"][0] < 5 else 200
        made = pusher(service.url, tmp_path)
        made.add(rows(0, 5), [], None)
        service.until(lambda: service.n_refused == tries)
        made.add(rows(5, 5), [], None)
        service.until(lambda: service.steps() == list(range(5, 10)))
        made.end(over=False, seconds=5.0)
        assert service.n_refused == tries
    assert list(tmp_path.rglob("*.json")) == []


def test_the_last_rows_and_the_exit_of_a_crash_wait_when_the_service_hangs(tmp_path: Path) -> None:
    with serving() as service:
        service.held.clear()
        made = pusher(service.url, tmp_path)
        made.add(rows(0, 5), [], None)
        until(lambda: made._flying is not None)
        made.add(rows(5, 5), [{"time": 1.8e9, "kind": "process_exit", "code": "1"}], None)
        made.end(over=True, seconds=0.05)
        kept = [orjson.loads(path.read_bytes()) for path in sorted(tmp_path.rglob("*.json"))]
        service.held.set()
    assert [step for each in kept for step in each["steps"]["step"]] == list(range(10))
    assert [event["kind"] for event in kept[1]["events"]] == ["process_exit"]


def test_rows_wait_when_sending_them_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Pusher(PushSettings("http://127.0.0.1:9", None, tmp_path), {}, faults.Faults())
    monkeypatch.setattr(made, "_taken", lambda *_: 1 / 0)
    made.start(WHO)
    made.add(rows(0, 5), [], None)
    until(lambda: list(tmp_path.rglob("*.json")))
    made.end(over=False, seconds=5.0)


def test_a_full_disk_is_said_and_leaves_no_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    made = pusher("http://127.0.0.1:9", tmp_path / "file")
    made.add(rows(0, 5), [], None)
    until(lambda: "telemetry is given up" in caplog.text)
    made.end(over=False, seconds=5.0)


def test_the_line_break_of_a_mounted_key_is_left_out() -> None:
    assert PushSettings.checked("http://rca", "rca_secret\n", None, 1).api_key == "rca_secret"
    with pytest.raises(ValueError, match="RCA_API_KEY has characters that no key has"):
        PushSettings.checked("http://rca", "rca\nsecret", None, 1)


def test_a_user_without_a_home_has_a_spool(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    made = Pusher(PushSettings("http://127.0.0.1:9"), {}, faults.Faults())
    made.start(WHO)
    assert made._target is not None
    made.end(over=False, seconds=5.0)


@pytest.mark.parametrize(("world_size", "seconds"), [(2, 0.1), (8, 0.16), (1000, 20.0)])
def test_a_change_makes_a_job_send_no_more_than_a_service_takes(world_size: int, seconds: float) -> None:
    made = Pusher(PushSettings("http://rca"), {}, faults.Faults())
    made._urgent_until = time.monotonic() + 60.0
    assert made._pause(world_size) == pytest.approx(seconds)


def test_longer_steps_are_sent_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "PUSH_SECONDS", 1000.0)
    with serving() as service:
        made = pusher(service.url, tmp_path)
        made.add(rows(0, 60), [], None)
        made._woken.set()
        service.until(lambda: service.steps())
        made.add(rows(60, 10), [], None)
        time.sleep(0.05)
        assert len(service.steps()) == 60
        made.add(rows(70, 4, seconds=0.13), [], None)
        service.until(lambda: len(service.steps()) == 74)
        made.end(over=False, seconds=5.0)


def test_a_hanging_service_does_not_delay_training(tmp_path: Path) -> None:
    with serving() as service:
        service.held.clear()
        collect.start(tmp_path, rank=0, world_size=1, job_id="job", service=service.url)
        began = time.monotonic()
        for _ in collect.steps(range(50)):
            pass
        assert time.monotonic() - began < 1.0
        collect.stop()
        assert time.monotonic() - began < 6.0
        service.held.set()


def test_a_step_in_progress_is_sent_once_per_phase(tmp_path: Path) -> None:
    with serving() as service:
        made = pusher(service.url, tmp_path)
        opened = rows(7, 1)[0]
        opened[COLUMNS.index("step_seconds")] = np.nan
        for _ in range(3):
            made.add(rows(0, 0), [], opened)
            time.sleep(0.08)
        made.end(over=False, seconds=5.0)
        sent = [body["steps"]["step"] for _, _, body in service.requests if body and "steps" in body]
    assert sent == [[7]]


def test_a_job_without_a_name_sends_nothing_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving() as service, caplog.at_level(logging.WARNING):
        collect.start(tmp_path, rank=0, world_size=1, service=service.url)
        for _ in collect.steps(range(3)):
            pass
        collect.stop()
        assert service.requests == []
    assert "set RCA_COLLECT_JOB_ID" in caplog.text


@pytest.mark.parametrize("address", ["rca:8080", "ftp://rca", "http://user:secret@rca", "http://rca:0"])
def test_an_address_that_cannot_be_used_is_named_without_its_password(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert not collect.start(rank=0, world_size=1, job_id="job", service=address)
    assert "nothing is sent" in caplog.text
    assert "secret" not in caplog.text
