"""The worker around a run: how it finds one, its task, and its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import child_processes
import pytest
from child_processes import RESULT, task_in

from rca.cli import run as run_command_line
from rca.errors import InvalidInput, SourceError
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store.base import now
from rca_api.shell.store.database import Database
from rca_api.training_runs import repository
from rca_api.training_runs.supervisor import Pace, Supervisor
from rca_api.training_runs.tables import TrainingRunRow
from rca_api.training_runs.work import WAITING, retry_while_away, work
from rca_api.training_runs.worker import TrainingWorker
from tests.waiting import until

pytestmark = pytest.mark.system


class Installation:
    """A data folder with one collection, and workers on it."""

    def __init__(self, folder: Path) -> None:
        (folder / "collections" / "mine").mkdir(parents=True)
        (folder / "collections" / "mine" / "manifest.json").write_text("{}")
        self.settings = Settings(data_dir=folder, collections_dir=folder / "collections")
        self.database = Database(self.settings.database_url)
        self.database.upgrade()
        self.stopping = threading.Event()

    def worker(self, program: Callable[..., Any], **options: Any) -> TrainingWorker:
        export = options.pop("export_feedback", None)
        pace = Pace(heartbeat_seconds=0.05)
        supervisor = Supervisor(self.database, self.stopping, program=program, pace=pace, **options)
        return TrainingWorker(self.settings, supervisor, export)

    def order(self, **order: Any) -> str:
        with self.database.session() as session:
            return repository.create(session, "train", {"windows": 300, "seed": 1} | order, now=now()).id

    def row(self, run_id: str) -> TrainingRunRow:
        with self.database.reading() as session:
            return session.get_one(TrainingRunRow, run_id)

    def folder(self, run_id: str) -> Path:
        return self.settings.data_dir / "training" / run_id


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path)
    yield made
    made.database.close()


def test_a_worker_finds_an_order_works_and_stops(installation: Installation) -> None:
    with ThreadPoolExecutor(1) as thread:
        working = thread.submit(installation.worker(child_processes.succeed).run)
        run = installation.order()
        until(lambda: installation.row(run).state == "succeeded")
        installation.stopping.set()
        working.result(10)
    assert installation.row(run).result == RESULT
    assert not installation.folder(run).exists()


def test_a_run_uses_the_scheduler_of_the_settings(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rca.dask_client.CONNECT_SECONDS", 1)
    installation.settings = installation.settings.model_copy(update={"dask_scheduler": "tcp://127.0.0.1:1"})
    row = installation.row(installation.order())
    task = installation.worker(child_processes.succeed)._task(row, installation.folder(row.id))
    with pytest.raises(SourceError, match=r"no Dask scheduler answers at tcp://127.0.0.1:1"):
        work(task, Mock())


def test_without_orders_there_is_no_work(installation: Installation) -> None:
    assert installation.worker(child_processes.succeed).work_once() is None


def test_files_of_killed_workers_are_deleted_and_logs_of_failures_are_kept(
    installation: Installation,
) -> None:
    left, log = installation.folder("left"), installation.folder("failed")
    for folder, name in ((left, "features.npz"), (log, "log.txt")):
        folder.mkdir(parents=True)
        (folder / name).touch()
    installation.order()
    assert installation.worker(child_processes.succeed).work_once() == "succeeded"
    assert (left.exists(), log.exists()) == (False, True)


def test_other_users_cannot_read_the_files_of_a_run(installation: Installation) -> None:
    installation.settings.data_dir.chmod(0o755)
    run = installation.order()
    assert installation.worker(child_processes.fail).work_once() == "failed"
    for folder in (installation.folder(run), installation.folder(run).parent):
        assert folder.stat().st_mode & 0o077 == 0


def test_a_folder_that_cannot_be_made_fails_the_run_not_the_worker(installation: Installation) -> None:
    run = installation.order()
    (installation.settings.data_dir / "training").write_text("a file")
    assert installation.worker(child_processes.succeed).work_once() == "failed"
    assert "cannot write" in installation.row(run).problem["detail"]


def test_a_failed_run_leaves_only_its_log(installation: Installation) -> None:
    run = installation.order()
    assert installation.worker(child_processes.fail).work_once() == "failed"
    assert [each.name for each in installation.folder(run).iterdir()] == ["log.txt"]


@pytest.mark.parametrize(
    ("order", "told"),
    [({"collections": ["gone"]}, "'gone' is not there"), ({"include_feedback": True}, "export feedback")],
)
def test_a_missing_collection_fails_the_run_with_a_reason(
    installation: Installation, order: dict[str, Any], told: str
) -> None:
    run = installation.order(**order)
    assert installation.worker(child_processes.succeed).work_once() == "failed"
    problem = installation.row(run).problem
    assert problem is not None
    assert told in problem["detail"]


@pytest.mark.parametrize("wanted", [True, False])
def test_feedback_is_exported_for_the_gate_and_trained_on_if_ordered(
    installation: Installation, wanted: bool
) -> None:
    def export(folder: Path) -> int:
        folder.mkdir()
        return 3

    run = installation.order(include_feedback=wanted, collections=["mine"])
    worker = installation.worker(child_processes.succeed, export_feedback=export)
    installation.folder(run).mkdir(parents=True)
    task = worker._task(installation.row(run), installation.folder(run))
    assert set(task.available) == {"mine", "feedback"}
    assert set(task.collections) == ({"mine", "feedback"} if wanted else {"mine"})
    assert (task.windows, task.gate_windows, task.auto_promote) == (300, 2000, False)
    assert task.tracking_uri == f"sqlite:///{installation.settings.data_dir / 'mlflow.db'}"


def test_the_command_works_on_all_orders_and_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RCA_DATA_DIR", str(tmp_path))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as left:
        run_command_line(["worker", "--once", "--alive-file", str(tmp_path / "alive")])
    assert left.value.code in (0, None)
    assert (tmp_path / "alive").exists()
    assert (tmp_path / "rca.db").exists()


class Listener:
    """Records the progress of a task."""

    def __init__(self) -> None:
        self.phases: list[str] = []

    def progress(self, phase: str, completed: int, total: int) -> None:
        self.phases.append(phase)

    def may_write(self) -> None:
        pass


def attempts(*outcomes: Exception | int) -> Callable[[], int]:
    left = iter(outcomes)

    def attempt() -> int:
        outcome = next(left)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return attempt


def test_pauses_grow_while_the_registry_is_away(tmp_path: Path) -> None:
    task, slept, listener = task_in(tmp_path), list[float](), Listener()
    away = SourceError("connection refused")
    assert retry_while_away(task, listener, attempts(away, away, away, 7), slept.append) == 7
    assert (slept, listener.phases) == ([1.0, 2.0, 4.0], [WAITING] * 3)


def test_retries_end_after_the_patience_and_at_a_refusal(tmp_path: Path) -> None:
    task, slept = task_in(tmp_path), list[float]()
    away = SourceError("connection refused")
    with pytest.raises(SourceError, match="could not be used for 123 s: connection refused"):
        retry_while_away(task, Listener(), attempts(*[away] * 20), slept.append)
    with pytest.raises(InvalidInput, match="no such version"):
        retry_while_away(task, Listener(), attempts(InvalidInput("no such version")), slept.append)


def test_a_worker_reports_that_it_is_alive_while_it_waits_and_while_it_trains(
    installation: Installation,
) -> None:
    signs: list[float] = []
    worker = installation.worker(child_processes.toil, alive=lambda: signs.append(time.monotonic()))
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(worker.run)
        try:
            until(lambda: signs)
            run_id = installation.order()
            until(lambda: installation.row(run_id).state == "running")
            began = len(signs)
            until(lambda: len(signs) > began + 5)
            assert installation.row(run_id).state == "running"
        finally:
            installation.stopping.set()
            running.result()
