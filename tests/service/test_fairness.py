"""A caller with thousands of jobs or queued diagnoses delays no other caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from answers_made_up import answer, kept
from fastapi import FastAPI
from sqlalchemy import insert
from starlette.testclient import TestClient

from rca_api.diagnoses.journal import Journal
from rca_api.diagnoses.tables import DiagnosisRow, WindowRow
from rca_api.jobs.tables import SegmentRow, StreamedJobRow
from rca_api.jobs.watcher import MAX_LOOKS, Watcher
from rca_api.jobs.work import Fragment, Look
from rca_api.shell.app import create_app
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.processes.pool import Load
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.security import keys
from rca_api.shell.security.principal import Scope
from rca_api.shell.settings.settings import Settings
from rca_api.shell.state import State
from rca_api.shell.store.database import Database

pytestmark = pytest.mark.smoke

START = datetime(2026, 1, 1, tzinfo=UTC)
MANY = 4192
A, B = "key:a", "key:b"


class LookingPool:
    """Notes whose telemetry is looked at; nothing is found, except what `finds` names."""

    def __init__(self, warm: int = 1) -> None:
        self.looks: list[str] = []
        self.warm = warm
        self.finds: dict[str, Any] = {}
        self.during: Callable[[], None] = lambda: None
        self.at_work = self.most_at_work = 0

    def load(self) -> Load:
        return Load(self.warm, self.warm, 0, 0)

    async def run(self, task: Any, digests: list[str], *_: Any, deadline: Any) -> Look:
        [job_id] = {digest.rstrip("-") for digest in digests}
        self.looks.append(job_id)
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        await asyncio.sleep(0)
        self.during()
        self.at_work -= 1
        return Look(None, 0, None, self.finds.get(job_id))


class Dispatching:
    def wake(self) -> None:
        """Ignore it."""


class Streams:
    """Jobs in a database, and a watcher whose clock stands still unless it is moved."""

    def __init__(self, database: Database, warm: int = 1) -> None:
        self.database = database
        self.now = START
        self.pool = LookingPool(warm)
        self.journal = Journal(database, Metrics(), (), lambda _: True, lambda: self.now)
        self.watcher = Watcher(
            database,
            self.pool,  # type: ignore[arg-type]
            self.journal,
            Dispatching(),  # type: ignore[arg-type]
            Settings(processes=1),
            clock=lambda: self.now,
        )

    def begin(self, caller: str | None, *job_ids: str) -> None:
        """Each job sends one row, one millisecond after the other."""
        jobs: list[dict[str, Any]] = []
        for job_id in job_ids:
            self.now += timedelta(milliseconds=1)
            jobs.append({"job_id": job_id, "created_at": self.now, "digest": job_id.ljust(64, "-")})
        windows = [{**job, "n_bytes": 1, "used_at": self.now} for job in jobs]
        rows = [
            {
                "job_id": job["job_id"],
                "created_at": job["created_at"],
                "updated_at": job["created_at"],
                "world_size": 1,
                "begun_by": caller,
                "last_step": 0,
            }
            for job in jobs
        ]
        segments = [
            {
                "job_id": job["job_id"],
                "digest": job["digest"],
                "n_bytes": 1,
                "begin": 0.0,
                "end": 1.0,
                "last_step": 0,
                "received_at": self.now,
            }
            for job in jobs
        ]
        with self.database.session() as session:
            session.execute(insert(WindowRow), windows)
            session.execute(insert(StreamedJobRow), rows)
            session.execute(insert(SegmentRow), segments)

    def round(self) -> list[str]:
        """The jobs that one round of looks sees, in order."""
        before = len(self.pool.looks)
        assert asyncio.run(self.watcher.round()) == len(self.pool.looks) - before
        return self.pool.looks[before:]


@pytest.fixture
def streams(database: Database) -> Streams:
    return Streams(database)


def test_a_job_is_looked_at_in_the_first_round_behind_thousands_of_jobs_of_another_caller(
    streams: Streams,
) -> None:
    streams.begin(A, *(f"a{number:04}" for number in range(MANY)))
    streams.begin(B, "b")
    first = streams.round()
    assert len(first) == MAX_LOOKS
    assert "b" in first[:2]
    # Of the caller's own jobs: the newest, and the one that has waited longest.
    assert [each for each in first if each != "b"][:4] == ["a4191", "a0000", "a4190", "a0001"]


def test_a_job_that_comes_during_a_round_is_in_the_next_one(streams: Streams) -> None:
    streams.begin(A, *(f"a{number:03}" for number in range(2 * MAX_LOOKS)))
    come = iter(["b"])
    streams.pool.during = lambda: [streams.begin(B, each) for each in come] and None
    assert "b" not in streams.round()
    assert streams.round()[0] == "b"


def test_each_caller_has_a_look_before_another_has_two(streams: Streams) -> None:
    callers = [f"key:{number}" for number in range(MAX_LOOKS)]
    for caller in callers:
        streams.begin(caller, f"{caller}-1", f"{caller}-2")
    assert sorted(each[:-2] for each in streams.round()) == sorted(callers)
    assert sorted(each[:-2] for each in streams.round()) == sorted(callers)


def test_callers_beyond_one_round_come_first_in_the_next(streams: Streams) -> None:
    callers = [f"key:{number}" for number in range(MAX_LOOKS + 5)]
    for caller in callers:
        streams.begin(caller, f"{caller}-1", f"{caller}-2")
    first = {each[:-2] for each in streams.round()}
    streams.now += timedelta(seconds=1)
    assert {each[:-2] for each in streams.round()[:5]} == set(callers) - first


def test_new_jobs_of_a_caller_do_not_keep_its_old_ones_from_a_look(streams: Streams) -> None:
    old = [f"old{number:02}" for number in range(10)]
    streams.begin(A, *old)
    numbers = iter(range(10_000))
    # Two new jobs for each look: more than can be looked at.
    streams.pool.during = lambda: streams.begin(A, *(f"new{next(numbers)}" for _ in range(2)))
    looked: list[str] = []
    while len(looked) < 2 * len(old) + MAX_LOOKS:
        looked += streams.round()
    assert set(old) <= set(looked)


def test_jobs_without_a_caller_are_those_of_one_caller(streams: Streams) -> None:
    streams.begin(None, *(f"n{number:02}" for number in range(2 * MAX_LOOKS)))
    streams.begin(B, "b")
    assert "b" in streams.round()[:2]


def test_as_many_jobs_are_looked_at_at_once_as_there_are_processes(database: Database) -> None:
    streams = Streams(database, warm=3)
    streams.begin(A, *(f"a{number}" for number in range(9)))
    together = asyncio.Event()

    async def run(task: Any, digests: list[str], *_: Any, deadline: Any) -> Look:
        streams.pool.at_work += 1
        if streams.pool.at_work == 3:
            together.set()
        await asyncio.wait_for(together.wait(), 20)
        return Look(None, 0, None, None)

    streams.pool.run = run  # type: ignore[method-assign]
    assert asyncio.run(streams.watcher.round()) == 9


def test_the_diagnosis_of_a_job_belongs_to_its_caller(streams: Streams, database: Database) -> None:
    streams.begin(A, "a")
    streams.pool.finds["a"] = kept("found")
    streams.round()
    with database.reading() as session:
        job = session.get_one(StreamedJobRow, "a")
        assert session.get_one(DiagnosisRow, job.diagnosis_id).asked_by == A


def worked_off(journal: Journal, n: int) -> list[str]:
    """Claim and finish diagnoses, one after the other."""
    done = []
    for _ in range(n):
        [claimed] = journal.claim("me", 60, 1)
        assert journal.complete("me", answer(claimed.diagnosis_id))
        done.append(claimed.diagnosis_id)
    return done


def test_a_queued_diagnosis_waits_for_one_of_each_other_caller(streams: Streams) -> None:
    journal = streams.journal

    def enqueue(name: str, caller: str | None) -> str:
        streams.now += timedelta(milliseconds=1)
        return journal.enqueue(kept(name), asked_by=caller, most=1000)

    of_a = [enqueue(f"a{number}", A) for number in range(40)]
    assert worked_off(journal, 10) == of_a[:10]
    [running] = journal.claim("other", 60, 1)
    of_b = [enqueue(f"b{number}", B) for number in range(3)]
    of_none = enqueue("n", None)
    assert worked_off(journal, 6) == [of_b[0], of_none, of_a[11], of_b[1], of_a[12], of_b[2]]
    # Late ones of a caller that had none in between do not come before those that wait.
    assert journal.complete("other", answer(running.diagnosis_id))
    late = enqueue("late", B)
    assert late in worked_off(journal, 2)
    assert worked_off(journal, 26) == of_a[14:]


def test_a_caller_cannot_fill_the_queue(streams: Streams) -> None:
    for number in range(6):
        streams.journal.enqueue(kept(f"a{number}"), asked_by=A, most=8)
    with pytest.raises(ProblemError, match="6 diagnoses of this caller are queued") as refused:
        streams.journal.enqueue(kept("more"), asked_by=A, most=8)
    assert (refused.value.code, refused.value.headers["Retry-After"]) == ("rate-limited", "30")
    for number in range(2):
        streams.journal.enqueue(kept(f"b{number}"), asked_by=B, most=8)
    with pytest.raises(ProblemError, match="8 diagnoses are queued already"):
        streams.journal.enqueue(kept("more"), asked_by=B, most=8)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FastAPI]:
    """A service with keys, in which no caller may have more than two running jobs; telemetry is stored."""
    held = create_app(Settings(data_dir=tmp_path, auth="keys", processes=1, max_jobs_per_caller=2))
    parts: State = held.state.parts
    parts.database.upgrade()

    async def run(task: Any, sent: Any, job_id: str, **_: Any) -> Fragment:
        return Fragment(kept(job_id, job_id=job_id), 0.0, 1.0, 0, 0)

    monkeypatch.setattr(parts.pool, "run", run)
    monkeypatch.setattr(parts.journal, "_has_window", lambda _: True)
    yield held
    parts.database.close()


def test_a_caller_has_a_bound_on_its_running_jobs(app: FastAPI) -> None:
    parts: State = app.state.parts
    client = TestClient(app, raise_server_exceptions=False)
    with parts.database.session() as session:
        first, second = (
            {
                "Authorization": f"Bearer {keys.create(session, name, [Scope.diagnose])[1]}",
                "Content-Type": "application/json",
            }
            for name in "ab"
        )

    def send(job_id: str, headers: dict[str, str]) -> Any:
        return client.post(f"/v1/jobs/{job_id}/telemetry", content=b"{}", headers=headers)

    assert [send(each, first).status_code for each in ("one", "two")] == [200, 200]
    refused = send("three", first)
    assert (refused.status_code, refused.json()["code"]) == (429, "rate-limited")
    assert "2 jobs of this caller run" in refused.json()["detail"]
    assert "/v1/jobs/{job_id}/end" in refused.json()["hint"]
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    # What runs goes on, and others are free.
    assert send("one", first).status_code == 200
    assert send("three", second).status_code == 200
    assert client.post("/v1/jobs/two/end", headers=first).status_code == 200
    assert send("four", first).status_code == 200
    assert send("two", first).status_code == 429
