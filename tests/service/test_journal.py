"""Storing diagnoses: at once or queued, under leases and under idempotency keys."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from answers_made_up import answer, kept
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from rca_api.diagnoses import repository
from rca_api.diagnoses.journal import MAX_ATTEMPTS, Journal
from rca_api.diagnoses.keys import Hold, Key, Keys
from rca_api.diagnoses.tables import BlameRow, DiagnosisRow, IdempotencyRow, WindowRow
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.processes.pool import ProcessesEnded
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.store.database import Database, StoreError


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def journal(database: Database, clock: Clock, told: list[str]) -> Journal:
    def tell(session: Session, row: DiagnosisRow) -> None:
        assert row in session
        assert row.document
        told.append(row.id)

    return Journal(database, Metrics(), (tell,), lambda _: True, clock)


def keys_of(database: Database, held: float = 60.0) -> Keys:
    return Keys(database, kept=timedelta(hours=1), held=timedelta(seconds=held))


def count(database: Database, what: type) -> int:
    with database.reading() as session:
        return session.scalar(select(func.count()).select_from(what)) or 0


def state_of(database: Database, diagnosis_id: str) -> str:
    with database.reading() as session:
        row = repository.find(session, diagnosis_id)
        assert row is not None
        return row.state


def test_a_queued_diagnosis_keeps_its_request_id_and_its_time_in_the_queue_is_measured(
    database: Database, clock: Clock
) -> None:
    metrics = Metrics()
    journal = Journal(database, metrics, (), lambda _: True, clock)
    diagnosis_id = journal.enqueue(kept(), asked_by=None, request_id="request-1", most=10)
    clock.pass_by(90)
    [claimed] = journal.claim("me", 15, 1)
    assert (claimed.diagnosis_id, claimed.request_id) == (diagnosis_id, "request-1")
    clock.pass_by(10)
    assert journal.complete("me", answer(diagnosis_id))
    assert metrics.registry.get_sample_value("rca_queued_diagnosis_seconds_sum") == 100


def test_a_diagnosis_is_stored_with_its_window_and_blames(
    database: Database, journal: Journal, told: list[str]
) -> None:
    found = answer(blames=(("cpu_contention", "n1"), ("data_loader_stall", None)))
    journal.record(kept(), found, asked_by="key-1")
    with database.reading() as session:
        row = repository.find(session, found.diagnosis_id)
        assert row is not None
        assert (row.state, row.cause, row.asked_by) == ("done", "cpu_contention", "key-1")
        assert row.nodes == ["n0", "n1"]
        assert [(blame.place, blame.node) for blame in row.blames] == [(1, "n1"), (2, None)]
        window = session.get(WindowRow, row.window_digest)
        assert window is not None
    assert told == [found.diagnosis_id]


def test_nothing_is_stored_if_a_callback_fails(database: Database) -> None:
    def fail(session: Session, row: DiagnosisRow) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        Journal(database, Metrics(), (fail,), lambda _: True).record(kept(), answer(), asked_by=None)
    assert (count(database, DiagnosisRow), count(database, WindowRow)) == (0, 0)


def test_equal_windows_stored_at_once_are_one_row(database: Database, journal: Journal) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: journal.record(kept(), answer(), asked_by=None), range(24)))
    assert (count(database, DiagnosisRow), count(database, WindowRow)) == (24, 1)


def test_queued_diagnoses_are_claimed_in_order_and_once(journal: Journal, clock: Clock) -> None:
    ids = []
    for number in range(6):
        ids.append(journal.enqueue(kept(str(number)), asked_by=None, most=10))
        clock.pass_by(1)
    assert [each.diagnosis_id for each in journal.claim("a", 10, 4)] == ids[:4]
    assert [each.diagnosis_id for each in journal.claim("b", 10, 4)] == ids[4:]
    assert journal.claim("c", 10, 4) == []


def test_workers_at_once_share_the_queue(journal: Journal, told: list[str]) -> None:
    ids = [journal.enqueue(kept(str(number)), asked_by=None, most=100) for number in range(40)]

    def work_off(owner: str) -> None:
        while claimed := journal.claim(owner, 60, 3):
            for each in claimed:
                assert journal.complete(owner, answer(each.diagnosis_id))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work_off, "abcd"))
    assert sorted(told) == sorted(ids)


def test_a_diagnosis_whose_lease_ran_out_is_claimed_again_and_its_late_answer_dropped(
    journal: Journal, clock: Clock, told: list[str]
) -> None:
    diagnosis_id = journal.enqueue(kept(), asked_by=None, most=10)
    journal.claim("dead", 10, 1)
    clock.pass_by(9)
    assert journal.claim("heir", 10, 1) == []
    clock.pass_by(2)
    assert [each.diagnosis_id for each in journal.claim("heir", 10, 1)] == [diagnosis_id]
    assert not journal.complete("dead", answer(diagnosis_id))
    assert journal.complete("heir", answer(diagnosis_id))
    assert not journal.complete("heir", answer(diagnosis_id))
    assert told == [diagnosis_id]


def test_a_renewed_lease_is_not_taken_over(journal: Journal, clock: Clock) -> None:
    diagnosis_id = journal.enqueue(kept(), asked_by=None, most=10)
    journal.claim("alive", 10, 1)
    for _ in range(3):
        clock.pass_by(8)
        journal.renew("alive", [diagnosis_id], 10)
    assert journal.claim("heir", 10, 1) == []
    assert journal.complete("alive", answer(diagnosis_id))


def test_a_diagnosis_given_back_is_queued_again_without_a_counted_attempt(
    database: Database, journal: Journal
) -> None:
    diagnosis_id = journal.enqueue(kept(), asked_by=None, most=10)
    for _ in range(2 * MAX_ATTEMPTS):
        assert journal.claim("a", 10, 1)
        journal.give_back("a", [diagnosis_id])
    assert state_of(database, diagnosis_id) == "queued"


def test_a_diagnosis_that_never_ends_is_given_up(database: Database, journal: Journal, clock: Clock) -> None:
    diagnosis_id = journal.enqueue(kept(), asked_by=None, most=10)
    for _ in range(MAX_ATTEMPTS):
        assert journal.claim("a", 10, 1)
        clock.pass_by(11)
    assert journal.claim("a", 10, 1) == []
    assert state_of(database, diagnosis_id) == "failed"


def problem_of(database: Database, diagnosis_id: str) -> Any:
    with database.reading() as session:
        row = repository.find(session, diagnosis_id)
        assert row is not None
        return None if row.problem is None else orjson.loads(row.problem)


def test_a_diagnosis_that_ends_processes_is_repeated_after_a_pause_and_given_up_with_the_reason(
    database: Database, journal: Journal, clock: Clock
) -> None:
    diagnosis_id = journal.enqueue(kept(), asked_by=None, most=10)
    ended = ProcessesEnded(2, "signal 9 (Killed)", 3)
    for _ in range(MAX_ATTEMPTS):
        assert journal.claim("a", 10, 1)
        journal.postpone("a", diagnosis_id, ended, 20)
        assert state_of(database, diagnosis_id) == "queued"
        assert problem_of(database, diagnosis_id)["detail"] == ended.detail
        clock.pass_by(19)
        assert journal.claim("b", 10, 1) == []
        clock.pass_by(2)
    assert journal.claim("a", 10, 1) == []
    assert state_of(database, diagnosis_id) == "failed"
    problem = problem_of(database, diagnosis_id)
    assert problem["code"] == "process-ended"
    assert problem["detail"] == f"given up after 5 attempts; the last one: {ended.detail}"


def test_a_queued_diagnosis_without_its_window_fails_and_is_logged(
    database: Database, journal: Journal
) -> None:
    diagnosis_id = journal.enqueue(kept(), asked_by=None, most=10)
    with database.session() as session:
        session.get_one(DiagnosisRow, diagnosis_id).window_digest = None
    with capture_logs() as lines:
        assert journal.claim("a", 10, 1) == []
    problem = problem_of(database, diagnosis_id)
    assert (problem["code"], problem["detail"]) == ("diagnosis-failed", "its window is no longer stored")
    [line] = [line for line in lines if line["event"] == "a diagnosis is given up"]
    assert (line["diagnosis_id"], line["reason"]) == (diagnosis_id, "its window is no longer stored")


def test_the_last_attempt_counts_as_the_reason_even_if_the_service_ended_in_it(
    database: Database, journal: Journal, clock: Clock
) -> None:
    diagnosis_id = journal.enqueue(kept(), asked_by=None, most=10)
    journal.claim("a", 10, 1)
    journal.postpone("a", diagnosis_id, ProcessesEnded(2, "signal 9 (Killed)", 3), 0)
    for _ in range(1, MAX_ATTEMPTS):
        clock.pass_by(11)
        assert journal.claim("a", 10, 1)
    clock.pass_by(11)
    assert journal.claim("a", 10, 1) == []
    assert "the last one: the service ended" in problem_of(database, diagnosis_id)["detail"]


def test_an_answer_after_a_failed_attempt_has_no_problem(database: Database, journal: Journal) -> None:
    diagnosis_id = journal.enqueue(kept(), asked_by=None, most=10)
    journal.claim("a", 10, 1)
    journal.postpone("a", diagnosis_id, ProcessesEnded(2, "signal 9 (Killed)", 3), 0)
    journal.claim("a", 10, 1)
    assert journal.complete("a", answer(diagnosis_id))
    assert (state_of(database, diagnosis_id), problem_of(database, diagnosis_id)) == ("done", None)


def test_a_full_queue_refuses_more(journal: Journal) -> None:
    journal.enqueue(kept(), asked_by=None, most=1)
    with pytest.raises(ProblemError) as caught:
        journal.enqueue(kept(), asked_by=None, most=1)
    assert caught.value.code == "busy"
    assert int(caught.value.headers["Retry-After"]) > 0


def test_a_node_and_a_cause_have_to_be_blamed_together(database: Database, journal: Journal) -> None:
    journal.record(kept(), answer(blames=(("nic", "n0"), ("cpu_contention", "n1"))), asked_by=None)
    with database.reading() as session:

        def found(**wanted: str) -> int:
            return len(session.scalars(repository.matching(**wanted)).all())  # type: ignore[arg-type]

        assert (found(node="n0"), found(cause="cpu_contention"), found(job="job")) == (1, 1, 1)
        assert (found(node="n0", cause="nic"), found(node="n0", cause="cpu_contention")) == (1, 0)
        assert found(job="another") == 0
    assert count(database, BlameRow) == 2


def test_a_repeated_request_gets_the_first_answer(database: Database, journal: Journal) -> None:
    keys, key, first = keys_of(database), Key("", "k", "d"), answer()
    hold = keys.take(key)
    assert isinstance(hold, Hold)
    journal.record(kept(), first, asked_by=None, hold=hold)
    assert keys.take(key) == first.diagnosis_id
    assert isinstance(keys.take(Key("another caller", "k", "other")), Hold)


def test_a_key_is_refused_for_another_request(database: Database) -> None:
    keys = keys_of(database)
    keys.take(Key("", "k", "d"))
    with pytest.raises(ProblemError) as caught:
        keys.take(Key("", "k", "another"))
    assert caught.value.code == "idempotency-mismatch"


def test_of_requests_with_one_key_at_once_one_is_answered(database: Database) -> None:
    keys = keys_of(database)

    def take(_: int) -> str:
        try:
            return type(keys.take(Key("", "k", "d"))).__name__
        except ProblemError as error:
            return error.code

    with ThreadPoolExecutor(8) as threads:
        outcomes = sorted(threads.map(take, range(16)))
    assert outcomes == ["Hold", *["conflict"] * 15]


def test_a_failed_request_can_be_repeated(database: Database) -> None:
    keys, key = keys_of(database), Key("", "k", "d")
    hold = keys.take(key)
    assert isinstance(hold, Hold)
    keys.release(hold)
    assert isinstance(keys.take(key), Hold)


def test_a_key_that_could_not_be_released_is_free_for_a_repetition(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, key = keys_of(database), Key("", "k", "d")
    hold = keys.take(key)
    assert isinstance(hold, Hold)
    with monkeypatch.context() as patch:
        patch.setattr(keys, "_database", Database("postgresql://rca@127.0.0.1:9/rca"))
        with pytest.raises(StoreError):
            keys.release(hold)
    assert isinstance(keys.take(key), Hold)
    # Another request holds it now.
    with pytest.raises(ProblemError):
        keys.take(key)


def test_a_request_that_lost_its_key_stores_nothing(database: Database, journal: Journal) -> None:
    keys, key = keys_of(database, held=0.0), Key("", "k", "d")
    slow, heir = keys.take(key), keys.take(key)
    assert isinstance(slow, Hold)
    assert isinstance(heir, Hold)
    with pytest.raises(ProblemError):
        journal.record(kept(), answer(), asked_by=None, hold=slow)
    assert count(database, DiagnosisRow) == 0
    journal.record(kept(), answer(), asked_by=None, hold=heir)
    keys.release(heir)
    assert count(database, IdempotencyRow) == 1


def test_keys_expire(database: Database) -> None:
    keys = Keys(database, kept=timedelta(0), held=timedelta(hours=1))
    keys.take(Key("", "k", "d"))
    assert isinstance(keys.take(Key("", "k", "another")), Hold)
    assert (keys.forget_expired(), count(database, IdempotencyRow)) == (1, 0)
