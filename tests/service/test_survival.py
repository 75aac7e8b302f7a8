"""What the service survives: processes killed, disks full, databases, registries and clocks that go wrong.

Callers post windows all the while and repeat whatever is not acknowledged. Afterwards every acknowledged
diagnosis and its window are there, none is there twice, and the service is well without anybody having
touched it. The counts are printed at the end: ``python -m pytest tests/service/test_survival.py``.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from callers import TEMPLATE_ID, Crowd, Verdict, answered
from postgres_server import Server
from shifted_clock import ShiftedClock
from watched import asked, computing, metric, post, serving, stored

from rca_api.shell.demo import running_service
from rca_api.shell.security import keys
from rca_api.shell.security.principal import Scope
from rca_api.shell.store.base import now
from rca_api.shell.store.database import Database
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.system]
#: Passes alone; on a crowded machine a wait by the shifted clock, or a file deleted in between, may spoil it.
asked_for = pytest.mark.skipif("RCA_TEST_TIMING" not in os.environ, reason="RCA_TEST_TIMING=1 runs it")
#: A key whose request died with the service is free again after deadline and lease.
QUICK = {
    "RCA_PROCESSES": "1",
    "RCA_DEADLINE_SECONDS": "5",
    "RCA_LEASE_SECONDS": "1",
    # The verdict asks for everything at once.
    "RCA_RATE_LIMIT": "",
}
#: Where nobody may be refused: with all processes gone a crowded machine takes its time to start one. Callers
#: give up later still.
PATIENT = {"RCA_DEADLINE_SECONDS": "20"}
TWO = {"RCA_PROCESSES": "2"}
HEAD = f"{'':<34} {'acknowledged':>12} {'found':>6} {'windows':>7} {'duplicated':>10}  refused attempts"


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Lines that are printed when all is done."""
    lines: list[str] = []
    yield lines
    capturing = request.config.pluginmanager.getplugin("capturemanager")
    with capturing.global_and_fixture_disabled():
        sys.stdout.write("\n".join(["", HEAD, *lines, ""]))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def settings(data: Path) -> dict[str, str]:
    return QUICK | {"RCA_DATA_DIR": str(data)}


@pytest.fixture
def body(make_window: Any) -> bytes:
    document: bytes = make_window(8, 40, late={3: 0.03}).to_json()
    return document.replace(b'"job":{', b'"job":{"window_id":"' + TEMPLATE_ID.encode() + b'",', 1)


def judge(told: list[str], fault: str, crowd: Crowd, url: str) -> None:
    """Nothing lost, nothing twice, nothing that nobody was told, and no answer that says "our defect"."""
    verdict = Verdict(crowd, url)
    told.append(f"{fault:<34} {verdict.line()}")
    assert verdict.acknowledged > 0
    assert (verdict.found, verdict.windows) == (verdict.acknowledged, verdict.acknowledged)
    assert (verdict.duplicated, verdict.unclaimed) == (0, 0)
    assert set(crowd.refused) <= {"broken", 409, 503, 504}


def test_the_service_is_killed(settings: dict[str, str], data: Path, body: bytes, told: list[str]) -> None:
    crowd = Crowd(body)
    with crowd.calling():
        with running_service(settings=settings) as crowd.url:
            crowd.goes_on()
            os.kill(*serving(data), signal.SIGKILL)
            crowd.is_refused()
            until(lambda: not computing(data))
        # As a supervisor would: started again, and nothing else.
        with running_service(settings=settings) as crowd.url:
            crowd.goes_on()
            judge(told, "kill -9 of the service", crowd, crowd.url)


@pytest.mark.long
def test_processes_of_the_pool_are_killed(
    settings: dict[str, str], data: Path, body: bytes, told: list[str]
) -> None:
    crowd = Crowd(body)
    with running_service(settings=settings | PATIENT | TWO) as crowd.url, crowd.calling():
        kills = 0
        # Which process is at work when the signal comes is chance: on until one was.
        while kills < 2 or not metric(crowd.url, 'rca_pool_renewals_total{reason="died"}'):
            assert kills < 40, "no process was ever killed at work"
            crowd.goes_on(4)
            os.kill(until(lambda: computing(data))[0], signal.SIGKILL)
            kills += 1
        crowd.goes_on()
        judge(told, "kill -9 of a pool process", crowd, crowd.url)
        # Callers notice nothing of it.
        assert crowd.refused.total() == 0
        until(lambda: len(computing(data)) == 2)


class Disk:
    """A small disk of its own, in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        with suppress(OSError), (self.folder / "ballast").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def empty(self) -> None:
        (self.folder / "ballast").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize(
    "part",
    [
        "windows",
        pytest.param("database", marks=pytest.mark.long),
        pytest.param("spool", marks=asked_for),
    ],
)
def test_the_disk_is_full(
    settings: dict[str, str], body: bytes, told: list[str], disk: Disk, tmp_path: Path, part: str
) -> None:
    places = {"windows": str(tmp_path / "windows"), "database": f"sqlite:///{tmp_path / 'rca.db'}"}
    on_disk = {"windows": str(disk.folder / "windows"), "database": f"sqlite:///{disk.folder / 'rca.db'}"}
    if part == "spool":
        settings["RCA_DATA_DIR"] = str(disk.folder / "data")
        # Blanks make a body large enough to go by file.
        body = body + b" " * (1 << 20)
    else:
        places[part] = on_disk[part]
    settings |= {"RCA_WINDOW_STORE_URL": places["windows"], "RCA_DATABASE_URL": places["database"]}
    crowd = Crowd(body)
    with running_service(settings=settings) as crowd.url, crowd.calling():
        crowd.goes_on()
        disk.fill()
        crowd.is_refused()
        disk.empty()
        crowd.goes_on()
        judge(told, f"full disk: {part}", crowd, crowd.url)
        assert 503 in crowd.refused


@pytest.mark.long
def test_the_postgresql_server_is_stopped_and_started(
    settings: dict[str, str], body: bytes, told: list[str], postgres: Server
) -> None:
    crowd = Crowd(body)
    settings["RCA_DATABASE_URL"] = postgres.new_database()
    with running_service(settings=settings) as crowd.url, crowd.calling():
        crowd.goes_on()
        postgres.stop()
        try:
            crowd.is_refused()
            with pytest.raises(HTTPError) as away:
                asked(f"{crowd.url}/readyz")
            away.value.close()
        finally:
            postgres.start()
        crowd.goes_on()
        judge(told, "PostgreSQL stopped and started", crowd, crowd.url)
        assert 503 in crowd.refused


@pytest.mark.long
def test_the_sqlite_file_is_locked_by_somebody_else(
    settings: dict[str, str], data: Path, body: bytes, told: list[str]
) -> None:
    crowd = Crowd(body)
    with running_service(settings=settings) as crowd.url, crowd.calling():
        crowd.goes_on()
        other = sqlite3.connect(data / "rca.db", isolation_level=None, timeout=30)
        try:
            other.execute("BEGIN IMMEDIATE")
            # Longer than writers wait.
            crowd.is_refused(1)
            other.execute("ROLLBACK")
        finally:
            other.close()
        crowd.goes_on()
        judge(told, "SQLite locked for 10 s", crowd, crowd.url)
        assert 503 in crowd.refused


REGISTER = """
import sys
from pathlib import Path
from registered import add_version, bundle_copy
uri, folder = sys.argv[1], Path(sys.argv[2])
for version in ("1", "2", "3"):
    print(add_version(uri, bundle_copy(folder / version, version)))
"""


def register(uri: str, folder: Path) -> None:
    """Three sound versions, by MLflow in a process of its own."""
    made_by = Path(__file__).parents[1] / "training"
    path = os.pathsep.join([str(made_by), *(each for each in sys.path if each)])
    command = [sys.executable, "-c", REGISTER, uri, str(folder)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": path})


@pytest.mark.long
def test_the_registry_goes_away_and_a_corrupt_bundle_is_promoted(
    settings: dict[str, str], body: bytes, told: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("mlflow")
    uri, store = f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path / "mlflow.db"
    register(uri, tmp_path)
    settings |= {"RCA_TRACKING_URI": uri, "RCA_FOLLOW_SECONDS": "0.5", "RCA_REGISTRY_TIMEOUT_SECONDS": "100"}
    settings |= PATIENT
    crowd = Crowd(body, callers=1)

    def answers() -> str:
        version: str = asked(f"{crowd.url}/readyz")["model"]["version"]
        assert metric(crowd.url, "rca_bundle_info{") == 1
        return version

    def promote(version: int) -> None:
        asked(f"{crowd.url}/v1/models/{version}/promote", {"force": "to see what happens"})

    with running_service(settings=settings) as crowd.url, crowd.calling():
        crowd.goes_on()
        promote(1)
        until(lambda: answers() == "1")

        sound = store.read_bytes()
        store.write_bytes(b"no database at all" * 100)
        until(lambda: metric(crowd.url, "rca_registry_failures_total") > 0)
        crowd.goes_on()
        assert answers() == "1"
        store.write_bytes(sound)
        until(lambda: asked(f"{crowd.url}/v1/models")["answering"]["registry_failure"] is None)

        listed = asked(f"{crowd.url}/v1/models")["items"]
        [digest] = [each["sha256"] for each in listed if each["version"] == 2]
        for manifest in (tmp_path / "mlartifacts").rglob("manifest.json"):
            if hashlib.sha256(manifest.read_bytes()).hexdigest() == digest:
                manifest.with_name("cause.txt.gz").write_text("tree")
        promote(2)
        until(lambda: metric(crowd.url, "rca_models_rejected_total") == 1)
        crowd.goes_on()
        assert answers() == "1"

        promote(3)
        until(lambda: answers() == "3")
        crowd.goes_on()
        judge(told, "registry away, corrupt bundle", crowd, crowd.url)
        assert crowd.refused.total() == 0
        newest = max(stored(crowd.url), key=lambda item: item["created_at"])
        assert newest["model_sha256"] == asked(f"{crowd.url}/readyz")["model"]["sha256"]


@asked_for
@pytest.mark.long
def test_the_clock_jumps_by_two_hours(
    settings: dict[str, str], body: bytes, told: list[str], tmp_path: Path
) -> None:
    clock = ShiftedClock(tmp_path)
    database = Database(f"sqlite:///{tmp_path / 'data' / 'rca.db'}")
    database.upgrade()
    every = (Scope.diagnose, Scope.read)
    with database.session() as session:
        _, lasting = keys.create(session, "crowd", every)
        _, short = keys.create(session, "short", every, now() + timedelta(hours=1))
    database.close()
    # A crowded machine may take its time: deadlines are not what is looked at here.
    settings |= {"RCA_AUTH": "keys", "RCA_DEADLINE_SECONDS": "60", **clock.environment}
    crowd = Crowd(body, {"Authorization": f"Bearer {lasting}"})

    def is_let_in() -> bool:
        return answered(f"{crowd.url}/v1/diagnoses", {"Authorization": f"Bearer {short}"})

    with running_service(settings=settings) as crowd.url, crowd.calling():
        crowd.goes_on()
        assert is_let_in()
        for hours, let_in in ((2, False), (0, True), (-2, True), (0, True)):
            clock.set(hours)
            crowd.goes_on()
            assert is_let_in() is let_in
        judge(told, "clock set by 2 h, four times", crowd, crowd.url)
        assert crowd.refused.total() == 0
        created = [datetime.fromisoformat(item["created_at"]) for item in stored(crowd.url, crowd.headers)]
        # The service did see it.
        assert max(created) - min(created) > timedelta(hours=3.9)


@contextmanager
def served(settings: dict[str, str]) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The command that operators use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "rca.cli", "serve", "--no-auth", "--port", str(port)]
    environment = {**os.environ, **settings}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            until(lambda: answers_at_all(url))
            yield url, server
        finally:
            server.kill()


def answers_at_all(url: str) -> bool:
    try:
        return answered(f"{url}/readyz")
    except OSError:
        return False


def test_a_service_that_is_told_to_end_answers_what_it_has_begun(
    settings: dict[str, str], data: Path, body: bytes, told: list[str]
) -> None:
    answers: list[tuple[int, Any]] = []
    with served(settings | TWO | {"RCA_DEADLINE_SECONDS": "30"}) as (url, server):
        until(lambda: len(computing(data)) == 2)
        for process in computing(data):
            os.kill(process, signal.SIGSTOP)
        asking = [threading.Thread(target=lambda: answers.append(post(url, body))) for _ in range(6)]
        for each in asking:
            each.start()
        until(lambda: metric(url, "rca_diagnoses_in_progress") == 6)
        began = time.monotonic()
        server.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert server.poll() is None
        for process in computing(data):
            os.kill(process, signal.SIGCONT)
        server.wait(20)
        took = time.monotonic() - began
        for each in asking:
            each.join()
        until(lambda: not computing(data))
    assert [status for status, _ in answers] == [200] * 6
    with closing(sqlite3.connect(data / "rca.db")) as held:
        kept = {found for (found,) in held.execute("SELECT id FROM diagnoses")}
    assert kept == {answer["diagnosis_id"] for _, answer in answers}
    told.append(
        f"{'SIGTERM with 6 requests in hand':<34} {6:>12} {len(kept):>6} {'':>7} {0:>10}  none; {took:.1f} s"
    )
