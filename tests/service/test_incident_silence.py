"""Silence of a job resolves its incident; a silence of the service or a jump of the clock does not."""

from __future__ import annotations

from datetime import timedelta

import pytest
from diagnosed import SETTINGS, Clock
from incident_windows import events, incidents, post
from sqlalchemy import select
from test_webhook_dispatch import deliveries, subscribe

from rca_api.incidents.schemas import IncidentNotification
from rca_api.incidents.service import IncidentTracker
from rca_api.incidents.sweep import Sweeper
from rca_api.incidents.tables import IncidentRow
from rca_api.shell.store.database import Database
from rca_api.shell.store.waits import Listening
from rca_api.webhooks.messages import title
from rca_api.webhooks.tables import DeliveryRow

pytestmark = pytest.mark.smoke


def sweeper_of(database: Database, follower: IncidentTracker, clock: Clock) -> Sweeper:
    listening = Listening(clock, lambda: clock.ticks)
    return Sweeper(database, follower, SETTINGS.silence_seconds, listening=listening, clock=clock)


def test_silence_resolves(database: Database, follower: IncidentTracker, clock: Clock) -> None:
    sweeper = sweeper_of(database, follower, clock)
    post(database, follower, "n")
    clock.go(SETTINGS.silence_seconds)
    assert sweeper.sweep() == 0
    clock.go(1)
    assert sweeper.sweep() == 1
    assert sweeper.sweep() == 0
    assert incidents(database)[0].resolution == "silence"
    # What was said before does not open it again, and the next sick window opens another one.
    post(database, follower, "hn", [5, 6])
    assert events(database) == ["0 opened", "0 resolved", "6 opened"]


def test_downtime_of_the_service_is_no_silence(
    database: Database, follower: IncidentTracker, clock: Clock
) -> None:
    post(database, follower, "n")
    clock.go(10 * SETTINGS.silence_seconds)
    restarted = sweeper_of(database, follower, clock)
    assert restarted.sweep() == 0
    clock.go(SETTINGS.silence_seconds + 1)
    assert restarted.sweep() == 1


def test_a_clock_that_jumps_is_no_silence(
    database: Database, follower: IncidentTracker, clock: Clock
) -> None:
    sweeper = sweeper_of(database, follower, clock)
    clock.go(2 * SETTINGS.silence_seconds)
    post(database, follower, "n")
    sweeper.sweep()
    clock.set(2 * SETTINGS.silence_seconds)
    assert sweeper.sweep() == 0
    clock.set(-2 * SETTINGS.silence_seconds)
    assert sweeper.sweep() == 0
    assert incidents(database)[0].open_job_id == "job"


def test_silence_resolves_after_the_clock_was_put_back(
    database: Database, follower: IncidentTracker, clock: Clock
) -> None:
    sweeper = sweeper_of(database, follower, clock)
    post(database, follower, "n")
    clock.set(-8 * SETTINGS.silence_seconds)
    assert sweeper.sweep() == 0
    clock.go(SETTINGS.silence_seconds)
    assert sweeper.sweep() == 1
    # The sick window of before does not open it again.
    post(database, follower, "h", [5])
    assert events(database) == ["0 opened", "0 resolved"]


def test_windows_from_the_future_count_after_the_clock_was_put_back(
    database: Database, follower: IncidentTracker, clock: Clock
) -> None:
    post(database, follower, "h")
    clock.set(-100 * SETTINGS.silence_seconds)
    post(database, follower, "n", [1])
    assert events(database) == ["1 opened"]


def muted(database: Database, seconds: float, clock: Clock) -> None:
    with database.session() as session:
        (incident,) = session.scalars(select(IncidentRow))
        incident.muted_until = clock() + timedelta(seconds=seconds)


def test_an_incident_that_is_open_at_the_end_of_its_mute_is_announced_once(
    database: Database, follower: IncidentTracker, clock: Clock
) -> None:
    subscribe(database, "https://a.example")
    sweeper = sweeper_of(database, follower, clock)
    post(database, follower, "n")
    muted(database, 60, clock)
    post(database, follower, "cc", [1, 2])
    sweeper.sweep()
    assert [each.event for each in deliveries(database)] == ["incident.opened"]
    clock.go(61)
    for _ in range(2):
        sweeper.sweep()
    assert [each.event for each in deliveries(database)] == ["incident.opened", "incident.mute_ended"]
    with database.reading() as session:
        told = session.scalars(select(DeliveryRow.body).order_by(DeliveryRow.number.desc())).first()
    assert told is not None
    assert (
        title(IncidentNotification.model_validate_json(told))
        == "job is still slow at the end of the mute: cpu_contention on node-1"
    )
    assert incidents(database)[0].muted_until is None


def test_an_event_after_the_mute_takes_the_place_of_its_message(
    database: Database, follower: IncidentTracker, clock: Clock
) -> None:
    subscribe(database, "https://a.example")
    post(database, follower, "n")
    muted(database, 60, clock)
    clock.go(61)
    post(database, follower, "cc", [1, 2])
    sweeper_of(database, follower, clock).sweep()
    assert [each.event for each in deliveries(database)] == ["incident.opened", "incident.cause_changed"]


def test_nothing_is_announced_at_the_end_of_the_mute_of_a_resolved_incident(
    database: Database, follower: IncidentTracker, clock: Clock
) -> None:
    subscribe(database, "https://a.example")
    post(database, follower, "n")
    muted(database, 60, clock)
    post(database, follower, "hhh", [1, 2, 3])
    clock.go(61)
    sweeper_of(database, follower, clock).sweep()
    assert [each.event for each in deliveries(database)] == ["incident.opened", "incident.resolved"]


def test_the_end_of_a_job_resolves_what_is_only_suspected(
    database: Database, follower: IncidentTracker
) -> None:
    def ended(job: str) -> bool:
        with database.session() as session:
            return follower.end(session, job, "no longer listed by http://p")

    post(database, follower, "ss", job="suspected")
    post(database, follower, "nn", job="certain")
    assert [ended(job) for job in ("suspected", "certain", "nosuch")] == [True, False, False]
    assert events(database, "suspected") == ["1 suspected", "1 resolved"]
    assert {each.job_id: each.resolution for each in incidents(database)} == {
        "suspected": "ended",
        "certain": None,
    }
    assert not ended("suspected")
    assert {each.closing_note for each in incidents(database) if each.resolution == "ended"} == {
        "no longer listed by http://p"
    }


def test_the_same_windows_open_no_incident_after_the_end_of_their_job(
    database: Database, follower: IncidentTracker, clock: Clock
) -> None:
    post(database, follower, "ss")
    with database.session() as session:
        follower.end(session, "job")
    post(database, follower, "ss")
    clock.go(2 * SETTINGS.silence_seconds)
    post(database, follower, "ss")
    assert events(database) == ["1 suspected", "1 resolved"]
