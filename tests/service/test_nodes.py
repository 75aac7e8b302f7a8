"""Lemons: blamed in several jobs independently, with jobs without a complaint held against it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from diagnosed import SETTINGS, START, Clock, diagnosed
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from rca_api.incidents.announcing import Announcer
from rca_api.incidents.service import Follower
from rca_api.metrics import Metrics
from rca_api.nodes import repository
from rca_api.nodes.lemons import ORDINARY, THRESHOLD, Blame, independent, lemon_probability
from rca_api.nodes.repository import Record
from rca_api.nodes.service import Exposures, judged, known_lemons
from rca_api.nodes.tables import NodeExposureRow
from rca_api.state import OnDiagnosed
from rca_api.store.database import Database

PRIOR = 0.01


def blame(day: float, probability: float = 0.9) -> Blame:
    return Blame(86400 * day, 86400 * day + 3600, probability)


@pytest.mark.parametrize(
    ("probabilities", "clean", "lemon"),
    [
        ([], 0, False),
        ([], 50, False),
        ([1.0], 0, False),
        ([0.9], 5, False),
        ([0.9, 0.9], 0, True),
        ([0.9, 0.9], 3, True),
        ([0.9, 0.9, 0.8], 20, True),
        # Unsure blames add up to little, and two of a hundred jobs are bad luck.
        ([0.1, 0.1], 3, False),
        ([0.9, 0.9], 100, False),
    ],
)
def test_who_is_a_lemon(probabilities: list[float], clean: int, lemon: bool) -> None:
    blames = [blame(day, each) for day, each in enumerate(probabilities)]
    found = lemon_probability(blames, len(blames) + clean, PRIOR)
    assert (found >= THRESHOLD) is lemon


def test_of_a_node_that_was_never_watched_only_the_prior_is_known() -> None:
    assert lemon_probability([], 0, PRIOR) == pytest.approx(PRIOR)


def test_one_blame_of_certainty_has_the_odds_of_the_formula() -> None:
    # The mean rate of a lemon over the ordinary one; Beta(1, 4) has the mean 1/5.
    odds = PRIOR / (1 - PRIOR) * (ORDINARY + (1 - ORDINARY) / 5) / ORDINARY
    assert lemon_probability([blame(0, 1.0)], 1, PRIOR) == pytest.approx(odds / (1 + odds), rel=1e-3)


def test_jobs_that_blame_it_at_the_same_time_are_one_witness() -> None:
    at_once = [blame(0, 0.9), blame(0.01, 0.8)]
    assert independent(at_once) == [Blame(0, 86400 * 0.01 + 3600, 0.9)]
    assert lemon_probability(at_once, 2, PRIOR) == pytest.approx(lemon_probability([blame(0)], 1, PRIOR))


many = st.lists(st.floats(0, 1), max_size=12)


@given(many, st.integers(0, 2000), st.floats(0, 1))
def test_laws_of_the_model(probabilities: list[float], clean: int, more: float) -> None:
    blames = [blame(day, each) for day, each in enumerate(probabilities)]
    n = len(blames) + clean
    found = lemon_probability(blames, n, PRIOR)
    assert 0 <= found <= 1
    assert lemon_probability(blames[::-1], n, PRIOR) == pytest.approx(found, rel=1e-9)
    assert lemon_probability(blames, n + 1, PRIOR) <= found + 1e-12
    surer = [*blames, blame(1000, more)]
    assert lemon_probability(surer, n + 1, PRIOR) >= lemon_probability(blames, n + 1, PRIOR) - 1e-12


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told(clock: Clock) -> tuple[OnDiagnosed, ...]:
    return Follower(SETTINGS, Announcer(Metrics()), clock), Exposures(clock)


def lemons(database: Database, at: datetime, besides: str | None = None) -> dict[str, float]:
    with database.reading() as session:
        names = [f"node-{number}" for number in range(4)]
        return known_lemons(session, names, PRIOR, besides=besides, at=at)


def post(database: Database, told: tuple[OnDiagnosed, ...], job: str, number: int, said: str) -> None:
    with database.session() as session:
        diagnosed(session, told, job=job, number=number, said=said)


def test_many_windows_of_one_job_are_one_blame(
    database: Database, told: tuple[OnDiagnosed, ...], clock: Clock
) -> None:
    for number in range(8):
        post(database, told, "a", number, "nic_degradation")
    assert lemons(database, clock()) == {}


def test_blamed_in_two_jobs_it_is_a_lemon_and_its_neighbours_are_not(
    database: Database, told: tuple[OnDiagnosed, ...], clock: Clock
) -> None:
    post(database, told, "a", 0, "nic_degradation")
    post(database, told, "b", 100, "cpu_contention")
    found = lemons(database, clock())
    assert list(found) == ["node-1"]
    # A job does not confirm itself, and what is older than the memory is forgotten.
    assert lemons(database, clock(), besides="b") == {}
    assert lemons(database, clock() + timedelta(days=400)) == {}


@pytest.mark.parametrize("said", ["data_loader_stall", "stage_imbalance", "unsure", "healthy"])
def test_the_workloads_own_faults_and_unsure_diagnoses_blame_no_node(
    database: Database, told: tuple[OnDiagnosed, ...], clock: Clock, said: str
) -> None:
    for number, job in enumerate("abcd"):
        post(database, told, job, 100 * number, said)
    with database.reading() as session:
        records = repository.records(session, since=clock() - timedelta(days=1))
    assert {record.node: record.blames for record in records} == {f"node-{i}": [] for i in range(4)}


def test_crashes_count_half(database: Database, told: tuple[OnDiagnosed, ...], clock: Clock) -> None:
    post(database, told, "a", 0, "process_crash")
    with database.reading() as session:
        (record,) = repository.records(session, since=clock() - timedelta(days=1), nodes=["node-1"])
    assert record.blames == [Blame(START, START + 60, 0.45)]


def test_jobs_without_a_complaint_clear_a_node(
    database: Database, told: tuple[OnDiagnosed, ...], clock: Clock
) -> None:
    post(database, told, "a", 0, "nic_degradation")
    post(database, told, "b", 100, "nic_degradation")
    before = lemons(database, clock())["node-1"]
    for number in range(5):
        post(database, told, f"clean-{number}", 200 + number, "healthy")
    assert lemons(database, clock()).get("node-1", 0.0) < before


def test_exposures_are_counted_once_per_window(
    database: Database, told: tuple[OnDiagnosed, ...], clock: Clock
) -> None:
    for number in (1, 0, 1, 2, 2):
        post(database, told, "a", number, "healthy")
    with database.reading() as session:
        rows = list(session.scalars(select(NodeExposureRow).order_by(NodeExposureRow.node)))
    assert [(row.node, row.windows) for row in rows] == [(f"node-{i}", 3) for i in range(4)]
    assert (rows[0].first_seen, rows[0].last_seen) == (START, START + 180)


def test_replicas_at_once_lose_no_window(database: Database, told: tuple[OnDiagnosed, ...]) -> None:
    barrier = threading.Barrier(4)

    def replica(number: int) -> None:
        barrier.wait()
        post(database, told, f"job-{number % 2}", number, "healthy")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(replica, range(4)))
    with database.reading() as session:
        assert {row.windows for row in session.scalars(select(NodeExposureRow))} == {2}


def test_a_record_of_thousands_of_jobs_stays_a_probability() -> None:
    record = Record("n", 100_000, 1, 0.0, 1.0, [blame(day, 1.0) for day in range(5000)])
    assert judged(record, PRIOR) == pytest.approx(1.0)
