"""Incidents in the database: late and repeated windows, replicas at once, silence, what they cost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import permutations

import pytest
from diagnosed import SECONDS, SETTINGS, START, Clock, diagnosed
from hypothesis import given, settings
from hypothesis import strategies as st
from incident_windows import WORDS, events, incidents, post
from sqlalchemy import func, select
from test_webhook_dispatch import deliveries, subscribe

from rca_api.diagnoses.tables import WindowRow
from rca_api.incidents import repository
from rca_api.incidents.announce import Announcer
from rca_api.incidents.service import IncidentTracker
from rca_api.incidents.state_machine import Hysteresis
from rca_api.incidents.tables import ObservationRow
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.store.base import new_id
from rca_api.shell.store.database import Database

pytestmark = pytest.mark.smoke


def test_an_incident_from_its_first_to_its_last_window(database: Database, follower: IncidentTracker) -> None:
    post(database, follower, "hnnucchhhhn")
    assert events(database) == ["1 opened", "5 cause_changed", "8 resolved", "10 opened"]
    first, second = incidents(database)
    assert (first.cause, first.windows, first.resolution) == ("cpu_contention", 8, "healthy")
    # Four windows of 100 steps that each lost 0.1 s; what was healthy or undecided lost nothing.
    assert first.seconds_lost == pytest.approx(40.0)
    assert first.gpu_hours_lost == pytest.approx(40.0 * 8 / 3600)
    assert (first.began, first.ended) == (START + SECONDS, START + 9 * SECONDS)
    assert (second.open_job_id, second.windows) == ("job", 1)


def test_an_incident_is_resolved_by_the_window_that_shows_its_end_and_those_that_are_probably_healthy(
    database: Database, follower: IncidentTracker
) -> None:
    post(database, follower, "n")
    until = datetime.fromtimestamp(START + 1.4 * SECONDS, UTC).isoformat()
    with database.session() as session:
        diagnosed(session, follower, number=1, said="nic_degradation", until=until)
    post(database, follower, "uu", [2, 3])
    assert events(database) == ["0 opened", "3 resolved"]
    # Too short a time before the end of the window says nothing.
    post(database, follower, "n", [10])
    late = datetime.fromtimestamp(START + 11.9 * SECONDS, UTC).isoformat()
    with database.session() as session:
        diagnosed(session, follower, number=11, said="nic_degradation", until=late)
    post(database, follower, "uu", [12, 13])
    assert events(database)[2:] == ["10 opened"]


def test_a_suspected_incident_counts_its_loss_until_its_cause_confirms_it(
    database: Database, follower: IncidentTracker
) -> None:
    post(database, follower, "hss")
    (suspected,) = incidents(database)
    assert (suspected.suspected, suspected.cause, suspected.windows) == (True, None, 2)
    assert suspected.seconds_lost == pytest.approx(20.0)
    post(database, follower, "nhhh", range(3, 7))
    assert events(database) == ["2 suspected", "3 confirmed", "6 resolved"]
    (ended,) = incidents(database)
    assert (ended.suspected, ended.cause, ended.windows) == (False, "nic_degradation", 6)


def test_a_late_certain_window_confirms_a_suspected_incident(
    database: Database, follower: IncidentTracker
) -> None:
    post(database, follower, "ssn", [0, 2, 1])
    assert events(database) == ["2 suspected", "1 confirmed"]
    (row,) = incidents(database)
    assert (row.suspected, row.cause, row.windows) == (False, "nic_degradation", 3)
    # The order of the job goes on after the window that opened the incident.
    post(database, follower, "ccnhhh", [1.5, 1.6, 1.7, 3, 4, 5])
    assert events(database)[2:] == ["5 resolved"]


def test_a_suspect_that_turns_out_to_be_certain_confirms_its_incident(
    database: Database, follower: IncidentTracker
) -> None:
    for number, said, digest in ((0, "suspect", "a"), (1, "suspect", "b"), (0, "nic_degradation", "c")):
        with database.session() as session:
            session.add(WindowRow(digest=digest, job_id="job", n_bytes=1))
            session.flush()
            diagnosed(session, follower, number=number, said=said, digest=digest)
    assert events(database) == ["1 suspected", "0 confirmed"]
    (row,) = incidents(database)
    assert (row.suspected, row.cause, row.windows) == (False, "nic_degradation", 2)


@pytest.mark.parametrize(
    ("letters", "suspected", "cause"), [("sss", True, None), ("nnn", False, "nic_degradation")]
)
def test_a_relapse_by_suspects_goes_on_with_the_same_incident(
    database: Database, clock: Clock, letters: str, suspected: bool, cause: str | None
) -> None:
    firm = IncidentTracker(
        Hysteresis(silence_seconds=3600.0, reopen_seconds=900.0), Announcer(Metrics()), clock
    )
    post(database, firm, letters + "hhhsss")
    assert [each.split()[1] for each in events(database)][1:] == ["resolved", "reopened"]
    (row,) = incidents(database)
    assert (row.suspected, row.cause, row.reopened, row.windows) == (suspected, cause, 1, 9)
    with database.reading() as session:
        reopened = repository.timeline(session, row.id)[-1]
        decided = session.scalars(
            select(ObservationRow).where(ObservationRow.diagnosis_id == reopened.diagnosis_id)
        ).one()
    assert (reopened.cause, decided.cause) == (cause, cause)
    # It takes twice as many healthy windows now.
    post(database, firm, "hhhhhh", range(9, 15))
    assert events(database)[3:] == ["14 resolved"]


def test_suspected_incidents_can_be_quiet(database: Database, clock: Clock) -> None:
    subscribe(database, "https://hooks.example.org/")
    quiet = IncidentTracker(SETTINGS, Announcer(Metrics(), notify_suspected=False), clock)
    post(database, quiet, "ssn")
    assert events(database) == ["1 suspected", "2 confirmed"]
    assert [row.event for row in deliveries(database)] == ["incident.confirmed"]


def test_healthy_jobs_never_open_anything(database: Database, follower: IncidentTracker) -> None:
    post(database, follower, "hhuhhuuh")
    assert incidents(database) == []


def test_the_same_window_again_changes_nothing(database: Database, follower: IncidentTracker) -> None:
    post(database, follower, "nhhhh", [0, 1, 1, 1, 1])
    assert events(database) == ["0 opened"]
    post(database, follower, "nc", [0, 0])
    assert incidents(database)[0].windows == 2
    assert incidents(database)[0].seconds_lost == pytest.approx(10.0)


def test_windows_since_the_last_event_may_come_in_any_order(
    database: Database, follower: IncidentTracker
) -> None:
    for order in permutations([1, 2, 3]):
        post(database, follower, "nhhh", [0, *order], job=str(order))
        assert events(database, str(order)) == ["0 opened", "3 resolved"]
    assert {row.windows for row in incidents(database)} == {4}


def test_a_late_faulty_window_still_opens_and_later_healthy_windows_count(
    database: Database, follower: IncidentTracker
) -> None:
    post(database, follower, "hhn", [1, 2, 0])
    assert events(database) == ["0 opened"]
    post(database, follower, "h", [3])
    assert events(database) == ["0 opened", "3 resolved"]


def test_a_window_older_than_the_last_event_only_counts_its_cost(
    database: Database, follower: IncidentTracker
) -> None:
    post(database, follower, "nccn", [0, 2, 3, 1])
    assert events(database) == ["0 opened", "3 cause_changed"]
    assert incidents(database)[0].windows == 4
    post(database, follower, "n", [-500])
    assert incidents(database)[0].windows == 4
    assert events(database) == ["0 opened", "3 cause_changed"]


def test_a_late_window_just_before_an_incident_is_its_beginning(
    database: Database, follower: IncidentTracker
) -> None:
    post(database, follower, "nuhn", [5, 4, 3, 2])
    assert events(database) == ["5 opened"]
    (row,) = incidents(database)
    assert (row.windows, row.began, row.seconds_lost) == (4, START + 2 * SECONDS, pytest.approx(20.0))


def test_a_late_window_before_a_recovery_is_no_part_of_what_came_after(
    database: Database, follower: IncidentTracker
) -> None:
    post(database, follower, "nhhhn", [5, 4, 3, 2, 1])
    (row,) = incidents(database)
    assert (row.windows, row.began) == (1, START + 5 * SECONDS)


def test_overlapping_windows_lose_their_common_time_once(
    database: Database, follower: IncidentTracker
) -> None:
    post(database, follower, "nnn", [0, 0.5, 1.0])
    assert incidents(database)[0].seconds_lost == pytest.approx(20.0)


def test_jobs_do_not_mix(database: Database, follower: IncidentTracker) -> None:
    post(database, follower, "nnn", job="a")
    post(database, follower, "hhh", job="b")
    assert [row.open_job_id for row in incidents(database)] == ["a"]
    assert events(database, "b") == []


def test_a_job_is_followed_again_after_its_clock_went_back(
    database: Database, follower: IncidentTracker, clock: Clock
) -> None:
    post(database, follower, "n", [1000])
    post(database, follower, "hhhh", [0, 1, 2, 3])
    assert events(database) == ["1000 opened"]
    clock.go(SETTINGS.silence_seconds + 1)
    post(database, follower, "hhhh", [100, 101, 102, 103])
    assert events(database) == ["1000 opened", "102 resolved"]


def test_a_window_from_the_future_does_not_make_the_others_old(
    database: Database, follower: IncidentTracker, clock: Clock
) -> None:
    years = 999_999
    post(database, follower, "n", [years])
    assert events(database) == [f"{years} opened"]
    # The first window of the present takes over, and more from the future are left aside.
    for repeat in range(2):
        post(database, follower, "hhhnhhh", [repeat * 20 + each for each in range(7)])
        post(database, follower, "n", [years + 1 + repeat])
    assert events(database)[1:] == ["2 resolved", "3 opened", "6 resolved", "23 opened", "26 resolved"]
    assert max(row.ended for row in incidents(database)) < clock().timestamp()


def test_a_job_with_all_windows_ahead_is_followed_by_its_own_clock(
    database: Database, follower: IncidentTracker, clock: Clock
) -> None:
    ahead = (clock().timestamp() + 1200 - START) / SECONDS
    for number, letter in enumerate("hnhhhnhhh"):
        post(database, follower, letter, [ahead + number])
        clock.go(SECONDS)
    assert [each.split()[1] for each in events(database)] == ["opened", "resolved"] * 2


def test_a_faulty_window_has_precedence_over_other_content_with_its_bounds(
    database: Database, follower: IncidentTracker
) -> None:
    def post_content(number: int, said: str, digest: str) -> None:
        with database.session() as session:
            if session.get(WindowRow, digest) is None:
                session.add(WindowRow(digest=digest, job_id="job", n_bytes=1))
                session.flush()
            diagnosed(session, follower, number=number, said=said, digest=digest)

    # Two jobs of one name: the healthy one is always first.
    for number in range(3):
        post_content(number, "healthy", f"healthy-{number}")
        post_content(number, "nic_degradation", f"sick-{number}")
    assert events(database) == ["0 opened"]
    # Neither the healthy one again nor the sick one again changes anything.
    post_content(2, "healthy", "other")
    post_content(2, "nic_degradation", "sick-2")
    (row,) = incidents(database)
    assert (row.windows, row.seconds_lost) == (3, pytest.approx(30.0))
    # The same content is the same window, also where another model says something else.
    for number in (3, 4, 5):
        post_content(number, "healthy", f"w{number}")
        post_content(number, "nic_degradation", f"w{number}")
    assert events(database) == ["0 opened", "5 resolved"]
    # A window that was counted as healthy turns out to be sick: its cost is added.
    post_content(4, "nic_degradation", "corrected")
    assert incidents(database)[0].seconds_lost == pytest.approx(40.0)


def test_a_relapse_goes_on_with_the_same_incident(database: Database, clock: Clock) -> None:
    firm = IncidentTracker(
        Hysteresis(silence_seconds=3600.0, reopen_seconds=900.0), Announcer(Metrics()), clock
    )
    post(database, firm, "hnhnhhhnhhh" + "hhh" + "h" * 20 + "nn")
    assert events(database) == ["3 opened", "6 resolved", "7 reopened", "13 resolved", "35 opened"]
    first, second = incidents(database)
    # What led to the opening belongs to it.
    assert (first.began, first.windows, first.reopened) == (START + SECONDS, 13, 1)
    assert (second.began, second.windows) == (START + 34 * SECONDS, 2)


def test_a_window_after_a_long_silence_counts_for_the_next_incident(database: Database, clock: Clock) -> None:
    firm = IncidentTracker(Hysteresis(silence_seconds=3600.0), Announcer(Metrics()), clock)
    post(database, firm, "nnnn", [0, 1, 200, 201])
    assert events(database) == ["1 opened", "1 resolved", "201 opened"]
    assert [row.windows for row in incidents(database)] == [2, 2]


def test_place_and_uncertainty_are_announced(database: Database, follower: IncidentTracker) -> None:
    def say(number: int, said: str, node: str) -> None:
        with database.session() as session:
            diagnosed(session, follower, number=number, said=said, nodes=[node])

    for number, node in enumerate(("node-1", "node-1", "node-3", "node-3", "node-3")):
        say(number, "cpu_contention", node)
    assert events(database) == ["0 opened", "3 place_changed"]
    assert incidents(database)[0].place == ["node-3"]
    for number in range(5, 12):
        say(number, ("runtime_gc", "nic_degradation")[number % 2], "node-3")
    assert events(database)[2:] == ["10 cause_uncertain"]
    (row,) = incidents(database)
    assert (row.uncertain, row.cause, row.place) == (True, None, None)
    with database.reading() as session:
        last = repository.timeline(session, row.id)[-1]
    assert (last.previous_cause, last.previous_place) == ("cpu_contention", ["node-3"])


def test_replicas_at_once_open_one_incident(database: Database, follower: IncidentTracker) -> None:
    # SQLite serves one writer at a time; PostgreSQL is where they could meet.
    barrier = threading.Barrier(6)

    def replica(number: int) -> None:
        barrier.wait()
        with database.session() as session:
            diagnosed(session, follower, number=number, said="nic_degradation")

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(replica, range(6)))
    assert [row.open_job_id for row in incidents(database)] == ["job"]
    assert incidents(database)[0].seconds_lost == pytest.approx(60.0)
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(ObservationRow)) == 6


def test_what_fails_later_in_the_transaction_leaves_no_incident(
    database: Database, follower: IncidentTracker
) -> None:
    def fail() -> None:
        with database.session() as session:
            diagnosed(session, follower, said="nic_degradation")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert incidents(database) == []
    post(database, follower, "n")
    assert events(database) == ["0 opened"]


def test_a_long_incident_looks_back_a_bounded_way(
    database: Database, follower: IncidentTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "HORIZON", 4)
    post(database, follower, "nnnnnnnnhhh")
    assert events(database) == ["0 opened", "10 resolved"]
    assert incidents(database)[0].windows == 11


@pytest.fixture(scope="module")
def one_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    held = Database(f"sqlite:///{tmp_path_factory.mktemp('order') / 'rca.db'}")
    held.upgrade()
    yield held
    held.close()


@pytest.mark.system
@settings(max_examples=25)
@given(data=st.data())
def test_as_long_as_nothing_is_announced_the_order_of_arrival_is_without_influence(
    one_database: Database, data: st.DataObject
) -> None:
    quiet = data.draw(st.text("hhu", max_size=5))
    sick = data.draw(st.integers(0, len(quiet)))
    letters = quiet[:sick] + "n" + quiet[sick:]
    numbers = data.draw(st.permutations([i for i in range(len(letters)) if i != sick]))
    follower = IncidentTracker(SETTINGS, Announcer(Metrics()), Clock())
    jobs = new_id(), new_id()
    with one_database.session() as session:
        for number in (*numbers, sick):
            diagnosed(session, follower, job=jobs[0], number=number, said=WORDS[letters[number]])
        for number, letter in enumerate(letters):
            diagnosed(session, follower, job=jobs[1], number=number, said=WORDS[letter])
    assert events(one_database, jobs[0]) == events(one_database, jobs[1])
    shuffled, ordered = (next(row for row in incidents(one_database) if row.job_id == job) for job in jobs)
    assert (shuffled.windows, shuffled.ended) == (ordered.windows, ordered.ended)
