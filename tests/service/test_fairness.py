"""A caller with thousands of jobs or queued diagnoses delays no other caller."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from answers_made_up import answer, kept
from fastapi import FastAPI
from starlette.testclient import TestClient
from watched_streams import Streams

from rca.deadline import Deadline
from rca_api.diagnoses.journal import Journal
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.jobs import endpoints, watcher
from rca_api.jobs.tables import StreamedJobRow
from rca_api.jobs.watcher import MAX_LOOKS
from rca_api.jobs.work import Fragment, Look
from rca_api.shell.app import create_app
from rca_api.shell.processes.pool import DeadlineExceeded, NeverBegun, ProcessesEnded
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.security import keys
from rca_api.shell.security.principal import Scope
from rca_api.shell.settings.settings import Settings
from rca_api.shell.state import State
from rca_api.shell.store.database import Database

pytestmark = pytest.mark.smoke

MANY = 4192
A, B = "key:a", "key:b"


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


def test_heavy_looks_of_a_caller_delay_another_by_the_time_of_one_round(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(1000))
    monkeypatch.setattr(watcher, "monotonic", lambda: next(seconds))
    streams.begin(A, *(f"a{number}" for number in range(MAX_LOOKS)))
    assert 0 < len(streams.round()) <= watcher.MAX_ROUND_SECONDS
    streams.begin(B, "b")
    assert streams.round()[0] == "b"


PROBLEMS = [
    ProcessesEnded(2, "SIGKILL", 3),
    ProblemError("internal-error", "The service failed."),
    DeadlineExceeded(Deadline.after(60.0)),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda each: each.code)
def test_a_look_that_fails_is_repeated_after_doubled_pauses_and_given_up_until_new_rows(
    streams: Streams, database: Database, problem: ProblemError
) -> None:
    def failing() -> None:
        raise problem

    def looks_after(*seconds: float) -> list[int]:
        """Looks of each round, so long after the last one."""
        looks = []
        for each in seconds:
            streams.now += timedelta(seconds=each)
            looks.append(len(streams.round()))
        return looks

    def send() -> None:
        with database.session() as session:
            session.get_one(StreamedJobRow, "a").pending = True

    streams.begin(A, "a")
    streams.pool.during = failing
    assert looks_after(0, 14, 1.5, 24, 1.5, 1000) == [1, 0, 1, 0, 1, 0]
    with database.reading() as session:
        job = session.get_one(StreamedJobRow, "a")
        assert (job.pending, job.remarks) == (False, f"the last look failed: {problem}")
    # A trainer that streams on: the pauses grow on, up to the longest one.
    send()
    assert looks_after(0) == [1]
    for pause in (80, 160, 300, 300):
        send()
        assert looks_after(pause + 4, 1.5) == [0, 1], pause
    streams.pool.during = lambda: None
    send()
    assert looks_after(306) == [1]
    with database.reading() as session:
        job = session.get_one(StreamedJobRow, "a")
        assert (job.pending, job.remarks) == (False, None)


@pytest.mark.parametrize("problem", [NeverBegun(Deadline.after(1.0)), ProblemError("busy", "later")])
def test_a_look_that_never_began_is_no_failure_of_the_job(
    streams: Streams, database: Database, problem: ProblemError
) -> None:
    def failing() -> None:
        raise problem

    streams.begin(A, "a")
    streams.pool.during = failing
    for _ in range(10):
        assert asyncio.run(streams.watcher.round()) == 0
        streams.now += timedelta(seconds=6)
    with database.reading() as session:
        job = session.get_one(StreamedJobRow, "a")
        assert (job.pending, job.remarks) == (True, None)


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


def test_a_repeated_diagnosis_lets_no_caller_overtake(streams: Streams) -> None:
    """It has an early turn while others have come far."""
    journal = streams.journal

    def enqueue(name: str, caller: str) -> str:
        streams.now += timedelta(milliseconds=1)
        return journal.enqueue(kept(name), asked_by=caller, most=1000)

    enqueue("ends-processes", "key:c")
    [failed] = journal.claim("me", 60, 1)
    for number in range(20):
        enqueue(f"a{number}", A)
    worked_off(journal, 10)
    journal.postpone("me", failed.diagnosis_id, ProblemError("process-ended", "twice"), 60)
    of_b = {enqueue(f"b{number}", B) for number in range(5)}
    assert len(of_b & set(worked_off(journal, 4))) == 2
    # The same while it is worked on again.
    streams.now += timedelta(seconds=61)
    assert [each.diagnosis_id for each in journal.claim("me", 60, 1)] == [failed.diagnosis_id]
    of_d = {enqueue(f"d{number}", "key:d") for number in range(5)}
    assert len(of_d & set(worked_off(journal, 6))) == 2


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
    monkeypatch.setattr(parts.journal, "has_window", lambda _: True)
    monkeypatch.setattr(parts.windows, "flush", lambda _: None)
    yield held
    parts.database.close()


class Senders:
    """Two keys that send telemetry to a service."""

    def __init__(self, app: FastAPI) -> None:
        self.database: Database = app.state.parts.database
        self.client = TestClient(app, raise_server_exceptions=False)
        with self.database.session() as session:
            self.first, self.second = (
                {
                    "Authorization": f"Bearer {keys.create(session, name, [Scope.diagnose])[1]}",
                    "Content-Type": "application/json",
                }
                for name in "ab"
            )

    def send(self, job_id: str, headers: dict[str, str]) -> Any:
        return self.client.post(f"/v1/jobs/{job_id}/telemetry", content=b"{}", headers=headers)

    def end(self, job_id: str, headers: dict[str, str], *, looked: bool = True) -> None:
        """End a job; the service looks at its last rows."""
        assert self.client.post(f"/v1/jobs/{job_id}/end", headers=headers).status_code == 200
        with self.database.session() as session:
            session.get_one(StreamedJobRow, job_id).pending = not looked


def test_a_caller_has_a_bound_on_its_running_jobs(app: FastAPI) -> None:
    senders = Senders(app)
    send, first, second = senders.send, senders.first, senders.second
    assert [send(each, first).status_code for each in ("one", "two")] == [200, 200]
    refused = send("three", first)
    assert (refused.status_code, refused.json()["code"]) == (429, "rate-limited")
    assert "2 jobs of this caller run or wait for a look" in refused.json()["detail"]
    assert "/v1/jobs/{job_id}/end" in refused.json()["hint"]
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    # What runs goes on, and others are free.
    assert send("one", first).status_code == 200
    assert send("three", second).status_code == 200
    senders.end("two", first)
    assert send("four", first).status_code == 200
    assert send("two", first).status_code == 429


def test_an_ended_job_keeps_its_place_until_the_service_has_looked_at_it(app: FastAPI) -> None:
    senders = Senders(app)
    sent = []
    for number in range(6):
        sent.append(senders.send(f"job{number}", senders.first).status_code)
        if sent[-1] == 200:
            senders.end(f"job{number}", senders.first, looked=False)
    assert sent == [200, 200, 429, 429, 429, 429]


def test_many_first_requests_at_once_begin_no_job_beyond_the_bound(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them pass the check before the body."""
    monkeypatch.setattr(endpoints, "_refuse_another", lambda *_: None)
    senders = Senders(app)
    assert [senders.send(f"job{number}", senders.first).status_code for number in range(4)] == [
        200,
        200,
        429,
        429,
    ]


@pytest.mark.parametrize("over", ["ended", "silent"])
def test_a_job_that_begins_again_takes_a_place_of_its_sender(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch, over: str
) -> None:
    senders = Senders(app)
    steps = iter(range(100))

    async def run(task: Any, sent: Any, job_id: str, **_: Any) -> Fragment:
        step = next(steps)
        return Fragment(kept(f"{job_id}-{step}", job_id=job_id), 0.0, 1.0, step, step)

    monkeypatch.setattr(app.state.parts.pool, "run", run)
    for job_id in ("one", "two"):
        assert senders.send(job_id, senders.first).status_code == 200
        with senders.database.session() as session:
            job = session.get_one(StreamedJobRow, job_id)
            job.pending = False
            if over == "ended":
                job.ended_at = job.updated_at
            else:
                job.updated_at -= timedelta(hours=2)
    again = [senders.send(job_id, senders.second).status_code for job_id in ("one", "two", "three")]
    assert again == [200, 200, 429]
    assert senders.send("four", senders.first).status_code == 200
