"""Training runs in the database: what hypothesis does not meet by chance."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from rca_api.shell.store.database import Database
from rca_api.training_runs import repository
from rca_api.training_runs.repository import ActiveRun, RunProgress, Terms
from rca_api.training_runs.tables import TrainingRunRow

pytestmark = pytest.mark.smoke

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TERMS = Terms(lease=timedelta(seconds=30), attempts=2)
LATER = NOON + TERMS.lease


@pytest.fixture
def run_id(database: Database) -> str:
    with database.session() as session:
        return repository.create(session, "train", {"windows": 300}, now=NOON).id


def claim(database: Database, worker: str, now: datetime = NOON) -> TrainingRunRow | None:
    with database.session() as session:
        return repository.claim(session, worker, now, TERMS)


def row(database: Database, run_id: str) -> TrainingRunRow:
    with database.reading() as session:
        return session.get_one(TrainingRunRow, run_id)


def test_of_several_orders_at_once_one_is_stored(database: Database) -> None:
    def order(_: int) -> str:
        try:
            with database.session() as session:
                return repository.create(session, "train", {}, now=NOON).id
        except ActiveRun as active:
            return "refused " + active.run_id

    with ThreadPoolExecutor(6) as threads:
        told = list(threads.map(order, range(6)))
    (taken,) = (each for each in told if not each.startswith("refused"))
    assert told.count(f"refused {taken}") == 5


def test_of_several_workers_one_claims_the_run(database: Database, run_id: str) -> None:
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda number: claim(database, f"worker-{number}"), range(6)))
    assert [each.id for each in found if each is not None] == [run_id]


def test_a_run_without_heartbeats_is_claimed_again_and_fails_without_attempts_left(
    database: Database, run_id: str
) -> None:
    assert claim(database, "one") is not None
    assert claim(database, "other", LATER - timedelta(seconds=1)) is None
    taken = claim(database, "other", LATER)
    assert taken is not None
    assert (taken.attempts, taken.started_at) == (2, NOON)
    assert claim(database, "third", LATER + TERMS.lease) is None
    ended = row(database, run_id)
    assert (ended.state, ended.problem and ended.problem["code"]) == ("failed", "worker-lost")


def test_a_lease_set_by_a_wrong_clock_is_void(database: Database, run_id: str) -> None:
    claim(database, "one", NOON + timedelta(hours=2))
    assert claim(database, "other", NOON) is not None


def test_a_run_given_back_costs_no_attempt(database: Database, run_id: str) -> None:
    for _ in range(TERMS.attempts + 1):
        assert claim(database, "one") is not None
        with database.session() as session:
            assert repository.give_back(session, run_id, "one", counted=False)
    assert row(database, run_id).state == "running"


def test_a_worker_that_lost_its_lease_changes_nothing(database: Database, run_id: str) -> None:
    claim(database, "one")
    claim(database, "other", LATER)
    with database.session() as session:
        told = repository.heartbeat(session, run_id, "one", LATER, TERMS, RunProgress("late"))
        assert told == "lost"
        assert not repository.finish(session, run_id, "one", "failed", LATER)
        assert not repository.give_back(session, run_id, "one", counted=True)
    assert (row(database, run_id).worker, row(database, run_id).phase) == ("other", "starting")


def test_a_run_without_a_worker_is_cancelled_at_once(database: Database, run_id: str) -> None:
    with database.session() as session:
        repository.cancel(session, run_id, NOON)
    assert row(database, run_id).state == "cancelled"
    assert claim(database, "one") is None


def test_a_cancelled_run_is_ended_by_its_worker_or_when_its_lease_runs_out(
    database: Database, run_id: str
) -> None:
    claim(database, "one")
    with database.session() as session:
        repository.cancel(session, run_id, NOON)
        told = repository.heartbeat(session, run_id, "one", NOON, TERMS, RunProgress("fitting"))
    assert (told, row(database, run_id).state) == ("cancel", "running")
    with database.session() as session:
        found = repository.get(session, run_id, LATER)
        assert found is not None
        assert found.state == "cancelled"


def test_a_cancelled_run_without_a_worker_does_not_block_the_next_order(
    database: Database, run_id: str
) -> None:
    claim(database, "one")
    with database.session() as session:
        repository.cancel(session, run_id, NOON)
    with database.session() as session:
        assert repository.create(session, "train", {}, now=LATER).id != run_id
