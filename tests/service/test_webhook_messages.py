"""Messages in the forms of Slack, Alertmanager and PagerDuty, as their receivers get them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from alertmanager_server import MISSING, alertmanager, alerts_of
from diagnosed import SETTINGS, Clock, diagnosed
from receivers import receiver
from slack_limits import refused
from sqlalchemy import select
from test_webhook_dispatch import LIFE, dispatcher_of, subscribe

from rca_api.incidents.announce import Announcer
from rca_api.incidents.service import IncidentTracker
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.store.database import Database
from rca_api.webhooks.tables import DeliveryRow, WebhookRow

pytestmark = pytest.mark.system

PUBLIC = "https://rca.example.org/"
KEY = "0123456789abcdef0123456789abcdef"
#: Required members of an event, as PagerDuty documents them.
SEVERITIES = {"critical", "error", "warning", "info"}


def happen(database: Database, clock: Clock, *said: str, start: int = 0) -> None:
    tracker = IncidentTracker(SETTINGS, Announcer(Metrics(), PUBLIC), clock)
    for number, each in enumerate(said, start):
        with database.session() as session:
            diagnosed(session, tracker, job="job-7", number=number, said=each)


def sent(database: Database, clock: Clock, form: str, *said: str, **more: Any) -> list[Any]:
    """Bodies that a receiver of this form gets."""
    with receiver() as held:
        subscribe(database, held.url, form=form, **more)
        happen(database, clock, *said)
        dispatcher_of(database, clock).send_due()
    return [orjson.loads(body) for _, body in held.received]


def test_our_own_message_has_the_summary_and_a_link(database: Database, clock: Clock) -> None:
    first, *_, last = sent(database, clock, "standard", *LIFE)
    data = first["data"]
    assert data["url"] == f"https://rca.example.org/ui#/incidents/{data['incident']['id']}"
    assert "nic_degradation" in data["summary"]["headline"]
    assert "Owner" in {each["title"] for each in data["summary"]["parts"]}
    assert "Do this" not in {each["title"] for each in last["data"]["summary"]["parts"]}


def test_slack_gets_what_happened_the_summary_and_a_link(database: Database, clock: Clock) -> None:
    opened, changed, resolved = sent(database, clock, "slack", *LIFE)
    assert opened["text"] == "job-7 is slow: nic_degradation on node-1"
    assert changed["text"] == "job-7 is slow for another cause: cpu_contention on node-1"
    assert resolved["text"] == "job-7 is healthy again"
    blocks = opened["blocks"] + opened["attachments"][0]["blocks"]
    assert "<https://rca.example.org/ui#/incidents/" in orjson.dumps(blocks).decode()
    assert [refused(message) for message in (opened, changed, resolved)] == [[], [], []]


def test_a_name_makes_no_mention_in_slack(database: Database, clock: Clock) -> None:
    with receiver() as held:
        subscribe(database, held.url, form="slack")
        tracker = IncidentTracker(SETTINGS, Announcer(Metrics(), PUBLIC), clock)
        with database.session() as session:
            diagnosed(session, tracker, job="<!channel>", said="nic_degradation")
        dispatcher_of(database, clock).send_due()
    ((_, body),) = held.received
    assert orjson.loads(body)["text"].startswith("&lt;!channel&gt; is slow")


def test_pagerduty_opens_and_resolves_one_incident(database: Database, clock: Clock) -> None:
    opened, changed, resolved = sent(database, clock, "pagerduty", *LIFE, routing_key=KEY)
    assert [each["event_action"] for each in (opened, changed, resolved)] == ["trigger", "trigger", "resolve"]
    assert len({each["dedup_key"] for each in (opened, changed, resolved)}) == 1
    for each in (opened, changed, resolved):
        assert each["routing_key"] == KEY
        assert {"summary", "source", "severity"} <= each["payload"].keys()
        assert each["payload"]["severity"] in SEVERITIES
    assert opened["payload"]["source"] == "node-1"
    assert opened["payload"]["class"] == "nic_degradation"
    assert "nic_degradation" in opened["payload"]["custom_details"]["headline"]
    assert opened["links"][0]["href"].startswith(PUBLIC)


def test_no_stored_message_holds_the_key_and_a_new_one_is_used(database: Database, clock: Clock) -> None:
    with receiver() as held:
        webhook = subscribe(database, held.url, form="pagerduty", routing_key=KEY)
        happen(database, clock, "nic_degradation")
        with database.session() as session:
            (body,) = session.scalars(select(DeliveryRow.body))
            assert KEY.encode() not in body
            session.get_one(WebhookRow, webhook).routing_key = "new"
        dispatcher_of(database, clock).send_due()
    assert orjson.loads(held.received[0][1])["routing_key"] == "new"


def test_a_subscription_to_openings_gets_suspected_incidents(database: Database, clock: Clock) -> None:
    with receiver() as held:
        subscribe(database, held.url, events=["incident.opened"])
        happen(database, clock, "suspect", "suspect", "nic_degradation", "healthy", "healthy", "healthy")
        dispatcher_of(database, clock).send_due()
    kinds = [orjson.loads(body)["type"] for _, body in held.received]
    assert kinds == ["incident.suspected", "incident.confirmed"]


def test_a_stopped_job_is_critical(database: Database, clock: Clock) -> None:
    (opened,) = sent(database, clock, "pagerduty", "process_crash", routing_key=KEY)
    assert opened["payload"]["severity"] == "critical"


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_a_real_alertmanager_has_one_alert_per_cause_until_the_end(
    database: Database, clock: Clock, tmp_path: Path
) -> None:
    # Alertmanager compares times with its own clock.
    clock.at = datetime.now(UTC)
    with alertmanager(tmp_path) as url:
        subscribe(database, f"{url}/api/v2/alerts", form="alertmanager")
        dispatcher = dispatcher_of(database, clock)
        found = []
        for number, said in enumerate(LIFE):
            happen(database, clock, said, start=number)
            dispatcher.send_due()
            found.append(sorted(each["labels"]["cause"] for each in alerts_of(url)))
            if number == 0:
                (alert,) = alerts_of(url)
    assert found == [*[["nic_degradation"]] * 2, *[["cpu_contention"]] * 3, []]
    assert alert["labels"]["alertname"] == "TrainingJobIncident"
    assert alert["annotations"]["summary"] == "job-7 is slow: nic_degradation on node-1"
    assert alert["generatorURL"].startswith(PUBLIC)
