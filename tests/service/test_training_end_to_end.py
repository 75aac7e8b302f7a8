"""Workers that really train and really die: every run ends, and each registers one version."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlflow")
pytest.importorskip("dowhy")

from rca.diagnosis import Bundle
from rca_api.models.registry import RegistryClient
from rca_api.shell.store.base import now
from rca_api.shell.store.database import Database
from rca_api.training_runs import repository
from rca_api.training_runs.tables import TrainingRunRow
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.system]
#: As few as a caller may order: what is learned does not matter here.
ORDER = {"windows": 200, "seed": 3, "collections": [], "gate_windows": 20}
WORKER = f"""
    import sys
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    import quick_training
    from datetime import timedelta
    from threading import Event
    from rca_api.shell.observability import logs
    from rca_api.feedback.export import export_collection
    from rca_api.shell.settings.settings import Settings
    from rca_api.shell.store.database import Database
    from rca_api.shell.store.window_store import WindowStore
    from rca_api.training_runs.repository import Terms
    from rca_api.training_runs.supervisor import Pace, Supervisor
    from rca_api.training_runs.worker import TrainingWorker
    settings = Settings()
    logs.configure("info")
    database, windows = Database(settings.database_url), WindowStore(settings.window_store_url)

    def export(folder):
        with database.reading() as session:
            return export_collection(session, windows.get, folder).written

    supervisor = Supervisor(
        database, Event(), program=quick_training.train,
        terms=Terms(lease=timedelta(seconds=3), attempts=3), pace=Pace(heartbeat_seconds=0.3),
    )
    TrainingWorker(settings, supervisor, export).run()
"""


class Installation:
    """A data folder, and workers that are started and killed on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = Database(f"sqlite:///{folder / 'rca.db'}")
        self.database.upgrade()
        self.registry = RegistryClient(f"sqlite:///{folder / 'mlflow.db'}", 120.0)

    def order(self, **changes: Any) -> str:
        with self.database.session() as session:
            return repository.create(session, "train", ORDER | changes, now=now()).id

    def row(self, run_id: str) -> TrainingRunRow:
        with self.database.reading() as session:
            return session.get_one(TrainingRunRow, run_id)

    def until(
        self, run_id: str, met: Callable[[TrainingRunRow], bool], seconds: float = 900
    ) -> TrainingRunRow:
        deadline = time.monotonic() + seconds
        while not met(row := self.row(run_id)):
            assert time.monotonic() < deadline, f"{row.state}: {row.phase}"
            assert row.state not in repository.FINAL, row.problem
            time.sleep(0.05)
        return row

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[bytes]]:
        environment = os.environ | {"RCA_DATA_DIR": str(self.folder), "RCA_TRAINING_PROCESSES": "1"}
        with (
            (self.folder / "worker.log").open("ab") as log,
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(WORKER)], env=environment, stdout=log, stderr=log
            ) as started,
        ):
            try:
                yield started
            finally:
                started.send_signal(signal.SIGKILL)


def trainers() -> list[str]:
    """Command lines of living processes that train for these tests."""
    found = subprocess.run(["ps", "-eo", "stat=,args="], capture_output=True, text=True, check=True)
    return [
        line
        for line in found.stdout.splitlines()
        if line.endswith("quick_training.train") and not line.startswith("Z")
    ]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    made = Installation(tmp_path_factory.mktemp("data"))
    yield made
    made.registry.close()
    made.database.close()


@pytest.mark.long
def test_a_run_survives_kill_9_of_its_worker_and_registers_one_version(
    installation: Installation, tmp_path: Path
) -> None:
    run = installation.order()
    with installation.worker() as first:
        installation.until(run, lambda row: row.completed > 10)
        first.kill()
        first.wait()
    until(lambda: not trainers(), seconds=20)
    assert installation.row(run).state == "running"
    with installation.worker():
        ended = installation.until(run, lambda row: row.state == "succeeded")
    assert ended.attempts == 2
    assert ended.result is not None
    assert ended.result["scores"]["test_failure_mode_accuracy"]["n"] > 0
    assert ended.result["gate"]["against"] == "shipped"
    (version,) = installation.registry.versions()
    assert (version["version"], version["aliases"]) == (ended.result["version"], ["challenger"])
    assert version["tags"]["training.order"] == run
    installation.registry.fetch(version["version"], tmp_path / "bundle")
    assert Bundle.load(tmp_path / "bundle").model.sha256 == ended.result["sha256"]
    assert "# " in (installation.registry.card("challenger") or "")


@pytest.mark.long
def test_a_run_that_was_registered_before_its_worker_died_is_not_registered_again(
    installation: Installation,
) -> None:
    """As if the kill had come after the registration and before the end was stored."""
    (version,) = installation.registry.versions()
    run = version["tags"]["training.order"]
    with installation.database.session() as session:
        row = session.get_one(TrainingRunRow, run)
        before, row.result = row.result, None
        row.state, row.active, row.lease_until, row.finished_at = "running", 1, now(), None
    with installation.worker():
        ended = installation.until(run, lambda row: row.state == "succeeded")
    assert ended.result == before
    assert [each["version"] for each in installation.registry.versions()] == [version["version"]]


@pytest.mark.long
def test_cancelling_ends_a_training_within_seconds(installation: Installation) -> None:
    run = installation.order(seed=4)
    with installation.worker():
        installation.until(run, lambda row: row.completed > 2)
        asked = time.monotonic()
        with installation.database.session() as session:
            repository.cancel(session, run, now())
        ended = installation.until(run, lambda row: row.state == "cancelled", seconds=20)
        assert time.monotonic() - asked < 10
        assert trainers() == []
    assert ended.result is None
