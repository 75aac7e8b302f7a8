"""After the clock of the service was put back by hours, nothing waits for hours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from diagnosed import SETTINGS, Clock, diagnosed
from sqlalchemy import select
from watched_streams import Streams

from rca.runtime.data_shards.shard_plan import ShardPlan
from rca_api.data_shards import repository as shards
from rca_api.data_shards.repository import StoredShards
from rca_api.diagnoses import keys
from rca_api.diagnoses.keys import Hold, Key, Keys
from rca_api.incidents.announce import Announcer
from rca_api.incidents.service import IncidentTracker
from rca_api.incidents.tables import FollowedJobRow, IncidentRow
from rca_api.jobs import repository as jobs
from rca_api.jobs.tables import StreamedJobRow
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store.database import Database
from rca_api.shell.store.waits import Listening, is_recent, is_waiting
from rca_api.webhooks import outbox
from rca_api.webhooks.delivery import new_secret
from rca_api.webhooks.tables import DeliveryRow, WebhookRow

NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)
BEFORE = NOON + timedelta(hours=2)
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("until", "waits"),
    [
        (NOON, False),
        (NOON + MINUTE, True),
        # Replicas have clocks that differ, and other settings.
        (NOON + 10 * MINUTE, True),
        (NOON + 11 * MINUTE, False),
    ],
)
def test_a_wait_further_ahead_than_it_is_set_is_over(until: datetime, waits: bool) -> None:
    assert is_waiting(until, NOON, MINUTE) is waits


def test_a_long_wait_may_lie_far_ahead() -> None:
    assert is_waiting(BEFORE, NOON, timedelta(hours=1))


@pytest.mark.parametrize(
    ("moment", "recent"),
    [
        (NOON - 2 * MINUTE, False),
        (NOON - MINUTE, True),
        # Replicas have clocks that differ.
        (NOON + 10 * MINUTE, True),
        (NOON + 11 * MINUTE, False),
    ],
)
def test_what_happened_further_ahead_than_clocks_differ_is_long_ago(moment: datetime, recent: bool) -> None:
    assert is_recent(moment, NOON, MINUTE) is recent


def test_the_key_of_a_request_that_died_is_free(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Keys(database, kept=timedelta(days=1), held=MINUTE)
    monkeypatch.setattr(keys, "now", lambda: BEFORE)
    held.take(Key("", "k", "d"))
    monkeypatch.setattr(keys, "now", lambda: NOON)
    assert isinstance(held.take(Key("", "k", "d")), Hold)


def delivery(database: Database, **values: object) -> None:
    """A delivery of a webhook that rests, if it failed before."""
    failed = "last_error" in values
    with database.session() as session:
        webhook = WebhookRow(url="https://a.example", secret=new_secret(), events=[], causes=[])
        webhook.resting_until = BEFORE if failed else None
        session.add(webhook)
        session.flush()
        row = {"event": "incident.opened", "incident_id": "i", "body": b"{}", "created_at": BEFORE} | values
        session.add(DeliveryRow(webhook_id=webhook.id, **row))


def sent(database: Database, at: datetime) -> int:
    with database.session() as session:
        return len(outbox.claim(session, at, 4, MINUTE))


def test_a_message_is_sent_that_was_stored_before_the_clock_was_put_back(database: Database) -> None:
    delivery(database, next_attempt_at=BEFORE)
    # Its sender was killed: the lease lies ahead as well.
    assert [sent(database, BEFORE), sent(database, NOON)] == [1, 1]


def test_a_pause_after_a_failure_lasts_six_hours_at_most(database: Database) -> None:
    asked_for = NOON + outbox.MAX_PAUSE
    delivery(database, next_attempt_at=asked_for, last_status=503, last_error="HTTP 503", attempts=1)
    assert [sent(database, NOON), sent(database, asked_for), sent(database, NOON - timedelta(days=1))] == [
        0,
        1,
        1,
    ]


def test_the_shard_of_a_lost_worker_is_handed_out_again(database: Database) -> None:
    plan = ShardPlan(8, 8, lease_seconds=60.0)
    with database.session() as session:
        shards.create(session, "set", plan, BEFORE)
        assert StoredShards(session, "set", BEFORE).lease("lost").lease is not None
        assert StoredShards(session, "set", NOON).lease("other").lease is not None


def test_a_job_is_looked_at_that_was_looked_at_before(database: Database) -> None:
    job = StreamedJobRow(job_id="job", world_size=1, pending=True, created_at=BEFORE, updated_at=BEFORE)
    job.looked_at = BEFORE
    with database.session() as session:
        session.add(job)
    every = timedelta(seconds=5)
    with database.reading() as session:
        due = [len(jobs.due(session, at, every, every, 10)) for at in (BEFORE, BEFORE + 2 * every, NOON)]
    assert due == [0, 1, 1]


def streamed(job_id: str, caller: str, at: datetime, **values: Any) -> StreamedJobRow:
    """A job that began at a time, and was heard then for the last time."""
    made = {"world_size": 1, "created_at": at, "updated_at": at, "last_step": 0} | values
    return StreamedJobRow(job_id=job_id, begun_by=caller, **made)


def test_a_job_heard_before_is_silent_once_the_service_has_listened_for_as_long(database: Database) -> None:
    listened = Clock()
    listening = Listening(listened, lambda: listened.ticks)
    streams = Streams(database, listening=listening)
    silence = timedelta(seconds=Settings().job_silence_seconds)
    streams.now = NOON
    streams.begin("key:a", "job")
    streams.now -= timedelta(hours=5)
    assert streams.round() == ["job"]
    streams.now += silence
    assert streams.round() == []
    listened.go(silence.total_seconds())
    assert streams.round() == ["job"]
    with database.reading() as session:
        assert session.get_one(StreamedJobRow, "job").silent


def test_jobs_heard_before_take_no_place_of_their_caller(database: Database) -> None:
    with database.session() as session:
        session.add(streamed("job", "key:a", NOON, pending=False))
    with database.reading() as session:
        with pytest.raises(ProblemError, match="1 jobs of this caller"):
            jobs.refuse_beyond(1, session, "new", "key:a", NOON)
        jobs.refuse_beyond(1, session, "new", "key:a", NOON - timedelta(hours=5))


def test_a_caller_whose_jobs_were_looked_at_before_does_not_come_last(database: Database) -> None:
    """Its look lies hours ahead; those of the others were just now."""
    with database.session() as session:
        session.add(streamed("a", "key:a", NOON, looked_at=NOON + timedelta(hours=5)))
        session.add(streamed("b", "key:b", NOON, looked_at=NOON - MINUTE))
    with database.reading() as session:
        found = jobs.due(session, NOON, timedelta(seconds=5), None, 1)
    assert [each.job_id for each in found] == ["a"]


def test_windows_count_after_an_incident_was_resolved_by_silence(database: Database) -> None:
    clock = Clock()
    tracker = IncidentTracker(SETTINGS, Announcer(Metrics()), clock)
    with database.session() as session:
        diagnosed(session, tracker, number=0, said="nic_degradation")
        diagnosed(session, tracker, number=1, said="nic_degradation")
    clock.go(10 * SETTINGS.silence_seconds)
    with database.session() as session:
        assert tracker.resolve_silent(session, "job")
        assert session.get_one(FollowedJobRow, "job").since == clock()
    clock.go(-9 * SETTINGS.silence_seconds)
    for number in (200, 201):
        with database.session() as session:
            diagnosed(session, tracker, number=number, said="nic_degradation")
    with database.reading() as session:
        opened = session.scalars(select(IncidentRow).where(IncidentRow.open_job_id == "job")).all()
    assert len(opened) == 1
