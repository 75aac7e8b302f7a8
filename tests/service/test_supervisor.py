"""A run and the process that trains, with real processes that succeed, fail, hang and are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import child_processes
import pytest
from child_processes import RESULT, WRITING, task_in

from rca_api.shell.processes.child_process import ChildProcess
from rca_api.shell.store.base import now
from rca_api.shell.store.database import Database, StoreError
from rca_api.training_runs import repository
from rca_api.training_runs.repository import Terms
from rca_api.training_runs.supervisor import Pace, Supervisor
from rca_api.training_runs.tables import TrainingRunRow

pytestmark = pytest.mark.system

TERMS = Terms(lease=timedelta(seconds=30), attempts=2)
Program = Callable[..., Any]
PACE = Pace(heartbeat_seconds=0.05, write_grace_seconds=10.0)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'rca.db'}")
    database.upgrade()
    yield database
    database.close()


class Runs:
    """One claimed run after the other, each with a child of a given behaviour."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.folder = folder
        self.stopping = threading.Event()
        self.id = ""

    def order(self) -> None:
        with self.database.session() as session:
            self.id = repository.create(session, "train", {}, now=now()).id

    def claim(self) -> None:
        with self.database.session() as session:
            row = repository.claim(session, "mine", now(), TERMS)
            assert row is not None
            self.id = row.id

    def watch(self, program: Program, pace: Pace = PACE) -> str:
        supervisor = Supervisor(self.database, self.stopping, "mine", TERMS, pace, program=program)
        return supervisor.run(task_in(self.folder, id=self.id))

    @property
    def row(self) -> TrainingRunRow:
        with self.database.reading() as session:
            return session.get_one(TrainingRunRow, self.id)

    def cancel(self) -> None:
        with self.database.session() as session:
            repository.cancel(session, self.id, now())


@pytest.fixture
def runs(held: Database, tmp_path: Path) -> Runs:
    made = Runs(held, tmp_path)
    made.order()
    made.claim()
    return made


def until(met: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def group_members(leader: int) -> list[int]:
    """Living processes of a group."""
    found = subprocess.run(["ps", "-eo", "pid=,pgid=,stat="], capture_output=True, text=True, check=True)
    rows = (line.split() for line in found.stdout.splitlines())
    return [int(pid) for pid, group, state in rows if int(group) == leader and not state.startswith("Z")]


def test_a_result_ends_the_run(runs: Runs) -> None:
    assert runs.watch(child_processes.succeed) == "succeeded"
    assert (runs.row.state, runs.row.result) == ("succeeded", RESULT)
    assert (runs.row.phase, runs.row.completed, runs.row.total) == ("fitting", 1, 2)


def test_a_problem_ends_the_run(runs: Runs) -> None:
    assert runs.watch(child_processes.fail) == "failed"
    assert runs.row.problem == {"code": "invalid-input", "detail": "two windows are one"}


def test_the_run_of_a_dead_child_is_given_back_until_no_attempts_are_left(runs: Runs) -> None:
    assert runs.watch(child_processes.end) == "released"
    assert (runs.row.state, runs.row.attempts) == ("running", 1)
    runs.claim()
    assert runs.watch(child_processes.end) == "released"
    with runs.database.session() as session:
        assert repository.claim(session, "mine", now(), TERMS) is None
    assert runs.row.problem is not None
    assert runs.row.problem["code"] == "worker-lost"


def test_cancelling_kills_the_child_and_its_processes(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    leaders: list[int] = []
    began = ChildProcess.__init__

    def remember(self: ChildProcess, *arguments: Any, **more: Any) -> None:
        began(self, *arguments, **more)
        leaders.append(self.pid)

    monkeypatch.setattr(ChildProcess, "__init__", remember)
    with ThreadPoolExecutor(1) as thread:
        outcome = thread.submit(runs.watch, child_processes.toil)
        until(lambda: runs.row.phase == "fitting" and len(group_members(leaders[0])) == 2)
        asked = time.monotonic()
        runs.cancel()
        assert outcome.result(10) == "cancelled"
    assert time.monotonic() - asked < 3
    assert runs.row.state == "cancelled"
    until(lambda: group_members(leaders[0]) == [])


def test_a_cancellation_waits_for_a_write_that_has_begun(runs: Runs) -> None:
    with ThreadPoolExecutor(1) as thread:
        outcome = thread.submit(runs.watch, child_processes.write_slowly)
        until((runs.folder / WRITING).exists)
        runs.cancel()
        assert outcome.result(10) == "succeeded"
    assert runs.row.state == "succeeded"


def test_a_cancellation_waits_for_a_write_no_longer_than_the_grace(runs: Runs) -> None:
    with ThreadPoolExecutor(1) as thread:
        outcome = thread.submit(
            runs.watch, child_processes.write_for_ever, Pace(0.05, write_grace_seconds=0.3)
        )
        until((runs.folder / WRITING).exists)
        runs.cancel()
        assert outcome.result(10) == "cancelled"


def test_a_worker_that_stops_gives_the_run_back(runs: Runs) -> None:
    with ThreadPoolExecutor(1) as thread:
        outcome = thread.submit(runs.watch, child_processes.toil)
        until(lambda: runs.row.phase == "fitting")
        runs.stopping.set()
        assert outcome.result(10) == "released"
    assert (runs.row.state, runs.row.attempts) == ("running", 0)
    runs.claim()


def test_a_worker_that_lost_its_lease_stops_before_a_write(runs: Runs) -> None:
    with runs.database.session() as session:
        other = repository.claim(session, "other", now() + TERMS.lease, TERMS)
        assert other is not None
    assert runs.watch(child_processes.write_slowly) == "lost"
    assert (runs.row.worker, runs.row.state) == ("other", "running")


def test_nothing_is_written_to_the_registry_while_the_database_is_away(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew, away = repository.heartbeat, threading.Event()
    away.set()
    asked = 0

    def heartbeat(*arguments: Any) -> repository.Instruction:
        nonlocal asked
        asked += 1
        if away.is_set():
            raise StoreError("the database cannot be used")
        return renew(*arguments)

    monkeypatch.setattr(repository, "heartbeat", heartbeat)
    with ThreadPoolExecutor(1) as thread:
        outcome = thread.submit(runs.watch, child_processes.write_slowly)
        until(lambda: asked > 5)
        assert not (runs.folder / WRITING).exists()
        away.clear()
        assert outcome.result(10) == "succeeded"


def test_the_end_is_stored_when_the_database_is_back(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    store, failures = repository.finish, iter([StoreError("away"), StoreError("away")])

    def finish(*arguments: Any, **details: Any) -> bool:
        for failure in failures:
            raise failure
        return store(*arguments, **details)

    monkeypatch.setattr(repository, "finish", finish)
    assert runs.watch(child_processes.fail) == "failed"
    assert runs.row.state == "failed"


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    """kill -9 of the parent: nothing of the child's group is left."""
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import sys, time; sys.path.insert(0, {str(Path(__file__).parent)!r}); import child_processes;"
            " from rca_api.shell.processes.child_process import ChildProcess;"
            " c = ChildProcess(child_processes.toil); c.receive(30); print(c.pid, flush=True);"
            " time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    with parent, parent.stdout:
        leader = int(parent.stdout.readline())
        assert len(group_members(leader)) == 2
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    until(lambda: group_members(leader) == [])
