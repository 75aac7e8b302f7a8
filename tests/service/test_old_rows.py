"""Rows go at the age of their kind; what belongs to a kept incident or to feedback stays."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import func, select, update
from test_lists import watched

from rca_api.diagnoses.tables import BlameRow, DiagnosisRow
from rca_api.feedback.tables import FeedbackRow
from rca_api.incidents.tables import FollowedJobRow, IncidentEventRow, IncidentRow, ObservationRow
from rca_api.nodes.repository import NodeExposureRow
from rca_api.shell import lifespan
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store import old_rows, time_limits
from rca_api.shell.store.base import Base, new_id
from rca_api.shell.store.database import Database, StoreError
from rca_api.shell.store.old_rows import Ages, OldRows
from rca_api.shell.store.waits import Listening
from rca_api.training_runs.tables import TrainingRunRow
from rca_api.webhooks.delivery import new_secret
from rca_api.webhooks.tables import DeliveryRow, WebhookRow

NOW = datetime(2026, 6, 1, tzinfo=UTC)
YEAR = timedelta(days=365)
FOR_EVER = Ages(None, None, None, None, None, None, None, None)


def ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


def diagnosis(database: Database, days: float, *, incident: str | None = None, **columns: Any) -> str:
    """A diagnosis with a blame and the observation of its window."""
    found = new_id()
    values = {"state": "done", "job_id": "job", "window_start": days, "window_end": days + 1.0} | columns
    with database.session() as session:
        session.add(DiagnosisRow(id=found, created_at=ago(days), **values))
        session.flush()
        session.add(
            BlameRow(
                diagnosis_id=found,
                place=1,
                cause="hang",
                node="node-1",
                owner="either",
                probability=1,
                seconds_per_step=0,
            )
        )
        session.add(
            ObservationRow(
                job_id=values["job_id"],
                window_end=values["window_end"],
                window_start=days,
                diagnosis_id=found,
                incident_id=incident,
                observed_at=ago(days),
                verdict="sick",
                failure_mode="fail_stop",
                seconds_lost=0,
                gpu_hours_lost=0,
            )
        )
    return found


def incident(database: Database, days: float, *, is_open: bool = False) -> str:
    with database.session() as session:
        row = IncidentRow(
            job_id="job",
            open_job_id="job" if is_open else None,
            failure_mode="fail_stop",
            opened_at=ago(days + 1),
            resolved_at=None if is_open else ago(days),
            began=0,
            ended=1,
        )
        session.add(row)
        session.flush()
        session.add(
            IncidentEventRow(
                incident_id=row.id, kind="opened", at=ago(days), window_end=0, failure_mode="fail_stop"
            )
        )
        return row.id


def feedback(database: Database, diagnosis_id: str, days: float, *, withdrawn: bool = False) -> None:
    with database.session() as session:
        row = FeedbackRow(diagnosis_id=diagnosis_id, created_at=ago(days), verdict="confirmed", label={})
        row.meaning = row.note = row.given_by_name = ""
        row.withdrawn_at = ago(0) if withdrawn else None
        session.add(row)


def count(database: Database, table: type[Base]) -> int:
    with database.reading() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def delete(database: Database, **ages: timedelta | None) -> dict[str, int]:
    """The kinds of which rows were deleted, which a dry run has announced."""
    rows = OldRows(database, Ages(**{**vars(FOR_EVER), **ages}))
    announced = rows.count(NOW)
    deleted = rows.delete(NOW)
    assert deleted == announced
    return {name: number for name, number in deleted.items() if number}


def test_old_diagnoses_go_with_what_was_derived_from_them(database: Database) -> None:
    diagnosis(database, 366)
    young = diagnosis(database, 364)
    assert delete(database) == {}
    assert delete(database, diagnoses=YEAR) == {"diagnoses": 1}
    with database.reading() as session:
        for column in (DiagnosisRow.id, BlameRow.diagnosis_id, ObservationRow.diagnosis_id):
            assert list(session.scalars(select(column))) == [young]


@pytest.mark.parametrize("state", ["queued", "running"])
def test_a_diagnosis_that_is_not_finished_stays(database: Database, state: str) -> None:
    diagnosis(database, 999, state=state)
    assert delete(database, diagnoses=YEAR) == {}


def test_diagnoses_of_an_incident_stay_as_long_as_it(database: Database) -> None:
    for days, is_open in ((500, True), (300, False), (400, False)):
        held = incident(database, days, is_open=is_open)
        diagnosis(database, days + 1, incident=held)
    assert delete(database, diagnoses=timedelta(days=100)) == {}
    ages = {"diagnoses": timedelta(days=100), "incidents": YEAR}
    assert delete(database, **ages) == {"incidents": 1, "diagnoses": 1}
    assert (count(database, IncidentRow), count(database, IncidentEventRow)) == (2, 2)
    assert count(database, DiagnosisRow) == 2


def test_an_incident_goes_and_younger_diagnoses_stay(database: Database) -> None:
    diagnosis(database, 401, incident=incident(database, 400))
    assert delete(database, incidents=YEAR) == {"incidents": 1}
    with database.reading() as session:
        assert list(session.scalars(select(ObservationRow.incident_id))) == [None]


def test_feedback_keeps_its_diagnosis_unless_it_is_withdrawn_or_old_itself(database: Database) -> None:
    kept, withdrawn, old = (diagnosis(database, 400 + n) for n in range(3))
    feedback(database, kept, 10)
    feedback(database, withdrawn, 10, withdrawn=True)
    feedback(database, old, 390)
    assert delete(database, diagnoses=YEAR) == {"diagnoses": 1}
    assert delete(database, diagnoses=YEAR, feedback=YEAR) == {"diagnoses": 1}
    with database.reading() as session:
        assert list(session.scalars(select(DiagnosisRow.id))) == [kept]
        assert list(session.scalars(select(FeedbackRow.diagnosis_id))) == [kept]


def test_node_records_go_when_no_list_reads_them(database: Database) -> None:
    for days in (100, 80, 20):
        with database.session() as session:
            values = {"first_seen": 0, "last_seen": 1, "windows": 1, "updated_at": ago(days)}
            session.add(NodeExposureRow(node="node-1", job_id=f"job-{days}", **values))
    assert delete(database) == {"node records": 1}
    # Without their blames, older jobs would count as clean.
    assert delete(database, diagnoses=timedelta(days=30)) == {"node records": 1}
    assert count(database, NodeExposureRow) == 1


def test_a_row_that_is_refreshed_after_its_selection_stays(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database.session() as session:
        values = {"first_seen": 0, "last_seen": 1, "windows": 1, "updated_at": ago(400)}
        session.add(NodeExposureRow(node="node-1", job_id="job", **values))
        session.add(FollowedJobRow(job_id="job", advanced_at=ago(400)))
    working = OldRows._deleted

    def refreshed(self: OldRows, *arguments: Any) -> int:
        with database.session() as session:
            session.execute(update(NodeExposureRow).values(updated_at=NOW))
            session.execute(update(FollowedJobRow).values(advanced_at=NOW))
        return working(self, *arguments)

    monkeypatch.setattr(OldRows, "_deleted", refreshed)
    deleted = OldRows(database, FOR_EVER.all(YEAR)).delete(NOW)
    assert (deleted["node records"], deleted["jobs"]) == (0, 0)
    assert (count(database, NodeExposureRow), count(database, FollowedJobRow)) == (1, 1)


def test_jobs_without_windows_and_open_incidents_go(database: Database) -> None:
    diagnosis(database, 400, job_id="old")
    diagnosis(database, 400, job_id="older")
    diagnosis(database, 10, job_id="older", window_end=9.0)
    incident(database, 400, is_open=True)
    with database.session() as session:
        session.add_all(FollowedJobRow(job_id=job, advanced_at=ago(400)) for job in ("job", "old", "older"))
        session.add(FollowedJobRow(job_id="young", advanced_at=ago(10)))
    assert delete(database, diagnoses=YEAR) == {"diagnoses": 2, "jobs": 1}
    with database.reading() as session:
        assert set(session.scalars(select(FollowedJobRow.job_id))) == {"job", "older", "young"}


def test_deliveries_go_by_state(database: Database) -> None:
    with database.session() as session:
        webhook = WebhookRow(url="https://x.org/", secret=new_secret(), events=[], causes=[])
        session.add(webhook)
        session.flush()
        for state in ("delivered", "dead", "pending"):
            for days in (100, 1):
                row = DeliveryRow(webhook_id=webhook.id, event="e", incident_id="i", body=b"", state=state)
                row.created_at, row.finished_at = ago(days), None if state == "pending" else ago(days)
                session.add(row)
    ages = {"delivered": timedelta(days=30), "dead": timedelta(days=90)}
    assert delete(database, **ages) == {"delivered webhooks": 1, "dead webhooks": 1}
    assert count(database, DeliveryRow) == 4


def test_only_ended_training_runs_go(database: Database) -> None:
    with database.session() as session:
        for state, days in (("failed", 10), ("succeeded", 400), ("running", 400)):
            session.add(
                training_run := TrainingRunRow(kind="train", order={}, state=state, created_at=ago(days))
            )
            session.flush()
            training_run.active = 1 if state == "running" else None
            session.flush()
    assert delete(database, training_runs=YEAR) == {"training runs": 1}
    assert count(database, TrainingRunRow) == 2


def test_many_rows_are_deleted_in_small_transactions(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rows that stay lie in between, and no query looks at more than three.
    monkeypatch.setattr(old_rows, "_FEW", 2)
    monkeypatch.setattr(old_rows, "_LOOK", 3)
    for number in range(20):
        diagnosis(database, 400, window_end=float(number), state="queued" if number % 3 == 0 else "done")
    with watched(database) as sent:
        assert delete(database, diagnoses=YEAR) == {"diagnoses": 13}
    assert sum(each.statement.startswith("DELETE FROM diagnoses") for each in sent) >= 7


def test_replicas_that_delete_at_the_same_time_do_not_disturb_each_other(database: Database) -> None:
    for number in range(60):
        diagnosis(database, 400, window_end=float(number))
    rows = OldRows(database, Ages(YEAR, None, None, None, None, None, None, None))
    with ThreadPoolExecutor(3) as replicas:
        deleted = list(replicas.map(lambda _: rows.delete(NOW)["diagnoses"], range(3)))
    # Rows that another replica is deleting are left to it.
    assert sum(deleted) == 60
    assert count(database, DiagnosisRow) == 0


def test_a_kind_that_cannot_be_deleted_does_not_stop_the_others(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    diagnosis(database, 400)
    with database.session() as session:
        session.add(FollowedJobRow(job_id="other", advanced_at=ago(400)))
    working = OldRows._deleted

    def failing(self: OldRows, kind: Any, *rest: Any) -> int:
        if kind.name == "diagnoses":
            raise StoreError("locked")
        return working(self, kind, *rest)

    monkeypatch.setattr(OldRows, "_deleted", failing)
    deleted = OldRows(database, FOR_EVER.all(YEAR)).delete(NOW)
    assert "diagnoses" not in deleted
    assert deleted["jobs"] == 1


def test_deletion_may_take_longer_than_a_request(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[float | None] = []
    working = old_rows.delete_rows

    def noted(*arguments: Any) -> int:
        left.append(time_limits.left())
        return working(*arguments)

    monkeypatch.setattr(old_rows, "delete_rows", noted)
    diagnosis(database, 400)
    assert delete(database, diagnoses=YEAR) == {"diagnoses": 1}
    assert left == [pytest.approx(time_limits.TIDYING_SECONDS, abs=5)]


def test_zero_days_are_for_ever() -> None:
    names = ("diagnosis_days", "incident_days", "feedback_days", "training_run_days", "data_shard_days")
    zero = dict.fromkeys((*names, "webhook_keep_days", "webhook_dead_days"), 0.0)
    assert replace(Ages.of(Settings(**zero)), telemetry=None) == FOR_EVER  # type: ignore[arg-type]
    kept = Ages.of(Settings())
    assert (kept.diagnoses, kept.feedback) == (YEAR, None)


def test_what_is_tidied_up_does_not_wait_for_something_else() -> None:
    done = threading.Event()
    stuck = threading.Event()

    def fail() -> None:
        raise StoreError("away")

    async def tidy() -> None:
        listening = Listening()
        works = [
            partial(lifespan.repeated, "stuck", partial(stuck.wait, 20), 0.0, listening),
            partial(lifespan.repeated, "failing", fail, 0.01, listening),
            partial(lifespan.repeated, "working", done.set, 0.0, listening),
        ]
        async with lifespan.running(*works):
            async with asyncio.timeout(10):
                while not done.is_set():
                    await asyncio.sleep(0.01)
            stuck.set()

    asyncio.run(tidy())
    assert done.is_set()
