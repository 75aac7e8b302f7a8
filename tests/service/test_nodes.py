"""Lemons: blamed in several jobs independently, with jobs without a complaint held against it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import combinations

import pytest
from diagnosed import SETTINGS, START, Clock, diagnosed
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select
from sqlalchemy.orm import Session

from rca.sources.labels import LabelledCause, WindowLabel
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.feedback import labels
from rca_api.feedback.tables import FeedbackRow
from rca_api.incidents.announce import Announcer
from rca_api.incidents.service import IncidentTracker
from rca_api.incidents.tables import ObservationRow
from rca_api.nodes import repository
from rca_api.nodes.fault_prior import (
    APART_SECONDS,
    ORDINARY,
    THRESHOLD,
    JobBlame,
    blaming_jobs,
    independent_blames,
    lemon_probability,
)
from rca_api.nodes.repository import NodeExposureRow, NodeRecord
from rca_api.nodes.service import Exposures, judged, known_lemons, lemon_probabilities
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.state import OnDiagnosed
from rca_api.shell.store.database import Database
from tests.for_each import for_each

PRIOR = 0.01


def blame(day: float, probability: float = 0.9, job: str | None = None) -> JobBlame:
    start = 86400 * day
    return JobBlame(job or f"job-{day}", start + 3600, start, probability)


@for_each(
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
    assert independent_blames(at_once) == [0.9]
    assert lemon_probability(at_once, 2, PRIOR) == pytest.approx(lemon_probability([blame(0)], 1, PRIOR))


def test_restarts_of_a_job_are_one_witness_until_hours_have_passed() -> None:
    attempts = [JobBlame(f"attempt-{n}", 60.0 * n + 50, 60.0 * n, 1.0) for n in range(20)]
    assert independent_blames(attempts) == [1.0]
    later = APART_SECONDS + attempts[0].first_end
    assert independent_blames([*attempts, JobBlame("other", later + 49, later - 1, 1.0)]) == [1.0]
    assert independent_blames([*attempts, JobBlame("other", later + 50, later, 1.0)]) == [1.0, 1.0]


def test_a_job_that_blames_at_both_ends_swallows_no_job_between() -> None:
    others = [blame(day, job=f"b{day}") for day in (1, 2, 3)]
    once = [*others, blame(0, job="a")]
    assert independent_blames(once) == [0.9] * 4
    assert independent_blames([*once, blame(10, job="a")]) == [0.9] * 4


def test_witnesses_are_as_sure_as_so_many_of_them_can_be_at_once() -> None:
    assert independent_blames([blame(0, 0.9, "a"), blame(0, 0.8, "b"), blame(5, 0.1, "c")]) == [0.9, 0.1]
    # The job's surer window is near the other job, its less sure one is not.
    held = [blame(0, 0.9, "a"), blame(0, 0.9, "b"), blame(5, 0.3, "b")]
    assert independent_blames(held) == [0.9, 0.3]


windows = st.lists(
    st.builds(
        blame,
        st.integers(0, 40).map(lambda sixths: sixths / 6),
        st.floats(0, 1),
        st.integers(0, 6).map(lambda n: f"job-{n}"),
    ),
    max_size=10,
)


@given(windows, st.integers(0, 200), windows.filter(bool).map(lambda found: found[0]))
def test_more_evidence_never_acquits(found: list[JobBlame], clean: int, more: JobBlame) -> None:
    """Windows of seven jobs in a week, some distant, some at the same time."""
    jobs = {each.job for each in found} | {more.job}
    n = len(jobs) + clean
    before = lemon_probability(found, n, PRIOR)
    assert lemon_probability([*found, more], n, PRIOR) >= before - 1e-12
    # Nor does an unknown job that blames it with the same probability.
    if more.probability >= 2 * ORDINARY:
        newcomer = JobBlame("newcomer", more.first_end, more.last_start, more.probability)
        assert lemon_probability([*found, newcomer], n + 1, PRIOR) >= before - 1e-12


@given(windows)
def test_witnesses_are_the_most_that_are_pairwise_apart(found: list[JobBlame]) -> None:
    def apart(one: str, other: str) -> bool:
        return any(
            max(a.last_start - b.first_end, b.last_start - a.first_end) >= APART_SECONDS
            for a in found
            for b in found
            if a.job == one and b.job == other
        )

    jobs = sorted({each.job for each in found if round(each.probability, 2) > 0})
    found = [each for each in found if round(each.probability, 2) > 0]
    sets = (chosen for size in range(len(jobs) + 1) for chosen in combinations(jobs, size))
    most = max(len(chosen) for chosen in sets if all(apart(a, b) for a, b in combinations(chosen, 2)))
    assert len(independent_blames(found)) == most


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
def told(clock: Clock) -> tuple[OnDiagnosed, ...]:
    return IncidentTracker(SETTINGS, Announcer(Metrics()), clock), Exposures(clock)


def lemons(database: Database, at: datetime, exclude_job: str | None = None) -> dict[str, float]:
    with database.reading() as session:
        names = [f"node-{number}" for number in range(4)]
        return known_lemons(session, names, PRIOR, exclude_job=exclude_job, at=at)


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
    post(database, told, "b", 500, "cpu_contention")
    found = lemons(database, clock())
    assert list(found) == ["node-1"]
    # A job does not confirm itself, and what is older than the memory is forgotten.
    assert lemons(database, clock(), exclude_job="b") == {}
    assert lemons(database, clock() + timedelta(days=400)) == {}


@pytest.mark.parametrize("said", ["data_loader_stall", "stage_imbalance", "healthy"])
def test_the_workloads_own_faults_blame_no_node(
    database: Database, told: tuple[OnDiagnosed, ...], clock: Clock, said: str
) -> None:
    for number, job in enumerate("abcd"):
        post(database, told, job, 500 * number, said)
    with database.reading() as session:
        records = repository.records(session, since=clock() - timedelta(days=1))
    assert {record.node: record.blames for record in records} == {f"node-{i}": [] for i in range(4)}


def test_crashes_count_half(database: Database, told: tuple[OnDiagnosed, ...], clock: Clock) -> None:
    post(database, told, "a", 0, "process_crash")
    with database.reading() as session:
        (record,) = repository.records(session, since=clock() - timedelta(days=1), nodes=["node-1"])
    assert record.blames == [JobBlame("a", START + 60, START, 0.45)]


@pytest.mark.system
def test_jobs_without_a_complaint_clear_a_node(
    database: Database, told: tuple[OnDiagnosed, ...], clock: Clock
) -> None:
    post(database, told, "a", 0, "nic_degradation")
    post(database, told, "b", 500, "nic_degradation")
    before = lemons(database, clock())["node-1"]
    for number in range(5):
        post(database, told, f"clean-{number}", 700 + number, "healthy")
    cleared = lemons(database, clock()).get("node-1", 0.0)
    assert cleared < before
    # An abstention is no complaint, and no clearance either.
    for number in range(60):
        post(database, told, f"unsure-{number}", 800 + number, "unsure")
    assert lemons(database, clock()).get("node-1", 0.0) == cleared


def jobs_of(database: Database, clock: Clock) -> dict[str, int]:
    with database.reading() as session:
        found = repository.records(session, since=clock() - timedelta(days=1))
    return {record.node: record.jobs for record in found}


@pytest.mark.parametrize(
    ("said", "blamed", "judged_nodes"),
    [
        ("healthy", [], "0123"),
        ("nic_degradation", ["node-1"], "0123"),
        # Slow as a whole: any of the nodes may hide in it.
        ("network_congestion", [], ""),
        # A fault without a known cause neither blames nor clears.
        ("unknown", ["node-1"], ""),
        # No rank worked, so no node was shown to be healthy.
        ("process_crash", ["node-1"], "1"),
        ("unsure", [], ""),
    ],
)
def test_what_a_window_says_about_the_nodes_it_does_not_blame(
    database: Database,
    told: tuple[OnDiagnosed, ...],
    clock: Clock,
    said: str,
    blamed: list[str],
    judged_nodes: str,
) -> None:
    with database.session() as session:
        diagnosed(session, told, said=said, nodes=blamed)
    assert jobs_of(database, clock) == {f"node-{number}": 1 for number in judged_nodes}


NIC = WindowLabel(
    failure_mode="fail_slow", causes=(LabelledCause(cause="nic_degradation", nodes=("node-2",)),)
)
HEALTHY = WindowLabel(failure_mode="healthy")


def say(session: Session, row: DiagnosisRow, label: WindowLabel, by: str = "ann") -> None:
    told = FeedbackRow(diagnosis_id=row.id, verdict="corrected", label=label.model_dump(mode="json"))
    told.meaning, told.given_by, told.given_by_name, told.note = labels.meaning(label), by, by, ""
    session.add(told)
    session.flush()


def blaming(database: Database, clock: Clock) -> dict[str, set[str]]:
    with database.reading() as session:
        found = repository.records(session, since=clock() - timedelta(days=1))
    return {record.node: blaming_jobs(record.blames) for record in found if record.blames}


def test_what_people_correct_away_no_longer_counts_and_what_they_correct_in_does(
    database: Database, told: tuple[OnDiagnosed, ...], clock: Clock
) -> None:
    with database.session() as session:
        rows = [
            diagnosed(session, told, job=job, number=500 * i, said="nic_degradation")
            for i, job in enumerate("ab")
        ]
        unsure = diagnosed(session, told, job="c", number=1000, said="unsure")
    assert lemons(database, clock())["node-1"] > 0.9
    with database.session() as session:
        say(session, rows[0], HEALTHY)
    assert blaming(database, clock) == {"node-1": {"b"}}
    assert lemons(database, clock()) == {}
    with database.session() as session:
        # Contradicted feedback does not count.
        say(session, rows[0], NIC, by="bob")
    assert blaming(database, clock) == {"node-1": {"a", "b"}}
    with database.session() as session:
        say(session, rows[0], NIC)
        say(session, unsure, NIC)
    assert blaming(database, clock) == {"node-1": {"b"}, "node-2": {"a", "c"}}
    assert jobs_of(database, clock)["node-2"] == 3
    with database.reading() as session:
        asked = lemon_probabilities(session, ["node-2", "node-9"], PRIOR, at=clock())
        own = lemon_probabilities(session, ["node-2"], PRIOR, exclude_job="c", at=clock())
    assert list(asked) == ["node-2"]
    assert asked["node-2"] > own["node-2"] > PRIOR


def test_a_word_about_a_repeated_diagnosis_is_about_its_window(
    database: Database, told: tuple[OnDiagnosed, ...], clock: Clock
) -> None:
    with database.session() as session:
        diagnosed(session, told, said="nic_degradation")
        again = diagnosed(session, told, said="nic_degradation")
        say(session, again, HEALTHY)
    assert blaming(database, clock) == {}


def test_ranks_that_people_name_are_on_the_node_where_the_diagnosis_saw_them(
    database: Database, told: tuple[OnDiagnosed, ...], clock: Clock
) -> None:
    one = WindowLabel(failure_mode="fail_slow", causes=(LabelledCause(cause="nic_degradation", ranks=(2,)),))
    nowhere = WindowLabel(
        failure_mode="fail_slow", causes=(LabelledCause(cause="nic_degradation", ranks=(7,)),)
    )
    with database.session() as session:
        say(session, diagnosed(session, told, job="a", said="nic_degradation"), one)
        say(session, diagnosed(session, told, job="b", said="nic_degradation"), nowhere)
    assert blaming(database, clock) == {"node-1": {"a"}}


def test_exposures_are_counted_once_per_window(
    database: Database, told: tuple[OnDiagnosed, ...], clock: Clock
) -> None:
    for number in (1, 0, 1, 2, 2):
        post(database, told, "a", number, "healthy")
    with database.reading() as session:
        rows = list(session.scalars(select(NodeExposureRow).order_by(NodeExposureRow.node)))
    assert [(row.node, row.windows) for row in rows] == [(f"node-{i}", 3) for i in range(4)]
    assert (rows[0].first_seen, rows[0].last_seen) == (START, START + 180)


def test_a_suspect_does_not_extend_an_exposure(
    database: Database, told: tuple[OnDiagnosed, ...], clock: Clock
) -> None:
    for number, said in ((0, "healthy"), (2, "healthy"), (3, "suspect")):
        post(database, told, "a", number, said)
    with database.session() as session:
        session.delete(session.get_one(ObservationRow, ("a", START + 180, START + 120)))
        session.flush()
        repository.unexpose(session, ["node-0"], "a")
    with database.reading() as session:
        row = session.get_one(NodeExposureRow, ("node-0", "a"))
        assert (row.windows, row.first_seen, row.last_seen) == (1, START, START + 60)


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
    record = NodeRecord("n", 100_000, [blame(day, 1.0) for day in range(5000)])
    assert judged(record, PRIOR) == pytest.approx(1.0)


def test_spans_are_those_of_the_exposures_of_each_node(
    database: Database, told: tuple[OnDiagnosed, ...], clock: Clock
) -> None:
    for number, job in enumerate(("a", "b", "a", "c", "b")):
        post(database, told, job, 10 * number, "nic_degradation" if job == "b" else "healthy")
    with database.session() as session:
        say(session, diagnosed(session, told, job="d", number=90, said="unsure", job_nodes=["node-9"]), NIC)
        session.delete(session.get_one(NodeExposureRow, ("node-0", "a")))
    with database.reading() as session:
        found = repository.records(session, since=clock() - timedelta(days=1))
        spans = repository.spans(session, found, since=clock() - timedelta(days=1))
        rows = list(session.scalars(select(NodeExposureRow)))
    for record in found:
        mine = [row for row in rows if row.node == record.node]
        first, last = min(row.first_seen for row in mine), max(row.last_seen for row in mine)
        assert spans[record.node] == (sum(row.windows for row in mine), first, last)
