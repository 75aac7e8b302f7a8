"""Webhooks from the event to the receiver: order, retries, dead letters, replicas, and bad receivers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
import receivers
from diagnosed import SETTINGS, Clock, diagnosed
from receivers import Behaviour, answers, receiver, send_until, verified
from sqlalchemy import select

from rca_api.incidents.announce import Announcer
from rca_api.incidents.service import IncidentTracker
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.store.database import Database
from rca_api.webhooks import outbox
from rca_api.webhooks.addresses import Policy
from rca_api.webhooks.delivery import Sender, new_secret
from rca_api.webhooks.dispatcher import Retries, WebhookDispatcher
from rca_api.webhooks.outbox import ClaimedMessage
from rca_api.webhooks.schemas import EVENT_TYPES
from rca_api.webhooks.tables import DeliveryRow, WebhookRow

pytestmark = pytest.mark.system

SECRET = new_secret()
POLICY = Policy(http=True, private=True)
LEASE = timedelta(seconds=60)


class Idle(Exception):
    """Nothing is due and nothing is being sent."""


class UntilIdle(WebhookDispatcher):
    """A dispatcher whose loop ends when it is idle."""

    def send_due(self) -> int:
        """Run the loop to its end; the number of attempts."""
        self.attempts = 0
        with pytest.raises(Idle):
            asyncio.run(self.run())
        return self.attempts

    def _claim(self, limit: int) -> list[ClaimedMessage]:
        claimed = super()._claim(limit)
        self.attempts += len(claimed)
        if not claimed and limit == self.threads:
            raise Idle
        return claimed


def dispatcher_of(
    database: Database,
    clock: Clock,
    *,
    timeout: float = 5.0,
    attempts: int = 3,
    sender: Sender | None = None,
) -> UntilIdle:
    retries = Retries(attempts=attempts, first_pause_seconds=10.0)
    sender = sender or Sender(POLICY, timeout)
    return UntilIdle(database, sender, retries, Metrics(), clock=clock, poll_seconds=0.01)


def subscribe(database: Database, url: str, **more: Any) -> str:
    values: dict[str, Any] = {"url": url, "secret": SECRET, "events": list(EVENT_TYPES), "causes": []}
    with database.session() as session:
        row = WebhookRow(**(values | more))
        session.add(row)
        session.flush()
        return row.id


def happen(database: Database, clock: Clock, *said: str, job: str = "job") -> None:
    follower = IncidentTracker(SETTINGS, Announcer(Metrics()), clock)
    for number, each in enumerate(said):
        with database.session() as session:
            diagnosed(session, follower, job=job, number=number, said=each)


def deliveries(database: Database) -> list[DeliveryRow]:
    with database.reading() as session:
        return list(session.scalars(select(DeliveryRow).order_by(DeliveryRow.number)))


LIFE = ("nic_degradation", "cpu_contention", "cpu_contention", "healthy", "healthy", "healthy")
KINDS = ["incident.opened", "incident.cause_changed", "incident.resolved"]


def test_all_events_of_an_incident_arrive_in_order_and_signed(database: Database, clock: Clock) -> None:
    with receiver() as held:
        subscribe(database, held.url)
        happen(database, clock, *LIFE)
        dispatcher = dispatcher_of(database, clock)
        assert [dispatcher.send_due() for _ in range(2)] == [3, 0]
    bodies = [orjson.loads(body) for _, body in held.received]
    assert [body["type"] for body in bodies] == KINDS
    assert bodies[1]["data"]["event"]["previous_cause"] == "nic_degradation"
    assert bodies[1]["data"]["incident"]["nodes"] == [{"node": "node-1", "probability": 0.9}]
    assert bodies[2]["data"]["incident"]["resolution"] == "healthy"
    for headers, body in held.received:
        assert verified(SECRET, headers, body, clock().timestamp())
        assert headers["host"] == f"127.0.0.1:{held.port}"
        assert headers["content-type"] == "application/json"
    assert held.paths == ["POST /hook?team=a HTTP/1.1"] * 3
    assert {row.state for row in deliveries(database)} == {"delivered"}


def test_only_subscribed_events_are_sent(database: Database, clock: Clock) -> None:
    with receiver() as held:
        subscribe(database, held.url, events=["incident.resolved"])
        subscribe(database, held.url, job_id="other")
        subscribe(database, held.url, causes=["runtime_gc"])
        subscribe(database, held.url, active=False)
        # Subscribers of a cause get the event when the cause changes.
        subscribe(database, held.url, causes=["nic_degradation"])
        happen(database, clock, *LIFE)
    assert [row.event for row in deliveries(database)] == [*KINDS[:2], "incident.resolved"]


def test_failed_deliveries_are_retried_in_order_with_the_same_id(database: Database, clock: Clock) -> None:
    with receiver(answers(500), receivers.closes, answers(200)) as held:
        subscribe(database, held.url)
        happen(database, clock, *LIFE)
        dispatcher = dispatcher_of(database, clock)
        assert dispatcher.send_due() == 1
        assert dispatcher.send_due() == 0
        clock.go(11)
        assert dispatcher.send_due() == 1
        clock.go(41)
        dispatcher.send_due()
    assert [orjson.loads(body)["type"] for _, body in held.received] == [KINDS[0], KINDS[0], *KINDS]
    assert len(set(held.ids)) == 3
    first, *_ = deliveries(database)
    assert (first.state, first.attempts, first.last_error) == ("delivered", 3, None)


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        (answers(301, "Location: http://127.0.0.1:1/"), "redirects are not followed"),
        (answers(404), "status 404"),
        (receivers.closes, "the connection failed"),
        (receivers.lies, "the answer is not HTTP"),
        (receivers.hangs, "no answer within 0.3 s"),
        (receivers.drips, "no answer within 0.3 s"),
    ],
)
def test_bad_receivers_are_reported(
    tmp_path: Path, clock: Clock, behaviour: Behaviour, expected: str
) -> None:
    with sqlite(tmp_path) as database, receiver(behaviour) as held:
        subscribe(database, held.url)
        happen(database, clock, "nic_degradation")
        began = time.monotonic()
        assert dispatcher_of(database, clock, timeout=0.3).send_due() == 1
        assert time.monotonic() - began < 3.0
        (row,) = deliveries(database)
    assert row.state == "pending"
    assert expected in (row.last_error or "")
    assert len(held.received) == 1


def test_the_body_of_an_answer_is_not_waited_for(tmp_path: Path, clock: Clock) -> None:
    with sqlite(tmp_path) as database, receiver(receivers.promises_more_than_it_sends) as held:
        subscribe(database, held.url)
        happen(database, clock, "nic_degradation")
        dispatcher_of(database, clock).send_due()
        assert deliveries(database)[0].state == "delivered"


@contextmanager
def sqlite(folder: Path) -> Iterator[Database]:
    held = Database(f"sqlite:///{folder / 'rca.db'}")
    held.upgrade()
    yield held
    held.close()


def test_a_delivery_without_attempts_left_is_dead_and_the_next_is_sent(
    database: Database, clock: Clock
) -> None:
    with receiver(answers(500), answers(500), answers(500), answers(204)) as held:
        subscribe(database, held.url)
        happen(database, clock, *LIFE)
        dispatcher = dispatcher_of(database, clock)
        for _ in range(3):
            dispatcher.send_due()
            clock.go(1000)
        dispatcher.send_due()
        dead, *others = deliveries(database)
        assert (dead.state, dead.attempts, dead.last_status) == ("dead", 3, 500)
        assert {row.state for row in others} == {"delivered"}
        with database.session() as session:
            outbox.ready_again(session.get_one(DeliveryRow, dead.number), clock())
        dispatcher.send_due()
    assert deliveries(database)[0].state == "delivered"
    assert held.ids.count(dead.id) == 4


@pytest.mark.parametrize("status", [400, 500])
def test_a_failing_message_of_one_incident_does_not_delay_the_others(
    database: Database, clock: Clock, status: int
) -> None:
    with receiver(answers(status), answers(204)) as held:
        subscribe(database, held.url)
        happen(database, clock, *LIFE, job="poison")
        dispatcher = dispatcher_of(database, clock, attempts=8)
        assert dispatcher.send_due() == 1
        happen(database, clock, "nic_degradation", job="good")
        # A receiver that fails is spared for a while; one that refuses a message is not.
        clock.go(10.0 if status == 500 else 0.0)
        assert dispatcher.send_due() >= 1
    jobs = [orjson.loads(body)["data"]["incident"]["job_id"] for _, body in held.received]
    assert jobs[:2] == ["poison", "good"]


def test_a_receiver_that_fails_rests_for_a_minute_at_most(database: Database, clock: Clock) -> None:
    with receiver(*[answers(500)] * 4, answers(204)) as held:
        subscribe(database, held.url)
        happen(database, clock, "nic_degradation", job="poison")
        dispatcher = dispatcher_of(database, clock, attempts=8)
        for pause in (10, 40, 160, 0):
            assert dispatcher.send_due() == 1
            clock.go(pause)
        # The fifth attempt is more than five minutes away.
        happen(database, clock, "nic_degradation", job="good")
        assert dispatcher.send_due() == 0
        clock.go(60)
        assert dispatcher.send_due() == 1
    assert orjson.loads(held.received[-1][1])["data"]["incident"]["job_id"] == "good"


def test_a_pause_ends_if_the_clock_is_put_back_in_it(database: Database, clock: Clock) -> None:
    with receiver(answers(500), answers(204)) as held:
        subscribe(database, held.url)
        happen(database, clock, "nic_degradation")
        dispatcher = dispatcher_of(database, clock)
        assert dispatcher.send_due() == 1
        clock.set(-5 * 3600)
        assert dispatcher.send_due() == 1
    assert deliveries(database)[0].state == "delivered"


@pytest.mark.parametrize(
    ("status", "attempts"), [(400, 3), (404, 3), (307, 3), (408, 8), (425, 8), (429, 8), (503, 8)]
)
def test_rejected_messages_have_fewer_attempts(
    tmp_path: Path, clock: Clock, status: int, attempts: int
) -> None:
    with sqlite(tmp_path) as database, receiver(answers(status)) as held:
        subscribe(database, held.url)
        happen(database, clock, "nic_degradation")
        dispatcher = dispatcher_of(database, clock, attempts=8)
        for _ in range(10):
            dispatcher.send_due()
            clock.go(7 * 3600)
        (row,) = deliveries(database)
    assert (row.state, row.attempts, len(held.received)) == ("dead", attempts, attempts)


def test_a_receiver_that_hangs_has_one_delivery_at_a_time(database: Database, clock: Clock) -> None:
    subscribe(database, "http://127.0.0.1:9/")
    for number in range(5):
        happen(database, clock, "nic_degradation", job=f"job-{number}")
    with database.session() as session:
        assert len(outbox.claim(session, clock(), 4, LEASE)) == 1
    with database.session() as session:
        assert outbox.claim(session, clock(), 4, LEASE) == []


def test_a_receiver_that_answers_gone_gets_no_more_messages(database: Database, clock: Clock) -> None:
    with receiver(answers(410)) as held:
        webhook = subscribe(database, held.url)
        happen(database, clock, *LIFE)
        dispatcher = dispatcher_of(database, clock)
        dispatcher.send_due()
        clock.go(10_000)
        assert dispatcher.send_due() == 0
    with database.reading() as session:
        assert not session.get_one(WebhookRow, webhook).active
    assert deliveries(database)[0].state == "dead"


def test_retry_after_is_respected(database: Database, clock: Clock) -> None:
    with receiver(answers(429, "Retry-After: 600")) as held:
        subscribe(database, held.url)
        happen(database, clock, "nic_degradation")
        dispatcher_of(database, clock).send_due()
    assert deliveries(database)[0].next_attempt_at == clock() + timedelta(seconds=600)


def test_one_bad_receiver_does_not_delay_another(database: Database, clock: Clock) -> None:
    with receiver(answers(500)) as bad, receiver() as good:
        subscribe(database, bad.url)
        subscribe(database, good.url)
        happen(database, clock, *LIFE)
        dispatcher = dispatcher_of(database, clock)
        dispatcher.send_due()
    assert len(good.received) == 3
    assert len(bad.received) == 1


def test_replicas_share_the_work_and_send_nothing_twice(database: Database, clock: Clock) -> None:
    with receiver() as held:
        for _ in range(6):
            subscribe(database, held.url)
        happen(database, clock, *LIFE)
        dispatchers = [dispatcher_of(database, clock) for _ in range(3)]
        with ThreadPoolExecutor(3) as threads:
            assert sum(threads.map(UntilIdle.send_due, dispatchers)) == 18
    assert len(held.ids) == 18
    assert len(set(held.ids)) == 18


def test_a_delivery_claimed_by_a_killed_sender_is_sent_by_another(database: Database, clock: Clock) -> None:
    with receiver() as held:
        subscribe(database, held.url)
        happen(database, clock, "nic_degradation")
        with database.session() as session:
            (lost,) = outbox.claim(session, clock(), 4, LEASE)
        dispatcher = dispatcher_of(database, clock)
        assert dispatcher.send_due() == 0
        clock.go(61)
        assert dispatcher.send_due() == 1
        with database.session() as session:
            assert outbox.LEASES.held_one(session, lost.owner, lost.number) is None
    assert len(held.received) == 1


def test_the_dispatcher_sends_while_one_receiver_hangs_and_stops_when_cancelled(
    tmp_path: Path, clock: Clock
) -> None:
    with sqlite(tmp_path) as database, receiver(receivers.hangs) as bad, receiver() as good:
        subscribe(database, bad.url)
        subscribe(database, good.url)
        happen(database, clock, *LIFE)

        dispatcher = WebhookDispatcher(
            database, Sender(POLICY, 2.0), Retries(), Metrics(), poll_seconds=0.01, clock=clock
        )
        send_until(dispatcher, lambda: len(good.received) == 3)
        states = [row.state for row in deliveries(database)]
    assert states.count("delivered") == 3
    assert len(bad.received) == 1
