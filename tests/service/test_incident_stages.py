"""The stages of the recovery from an incident, and its page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from diagnosed import SECONDS, SETTINGS, START, Clock, diagnosed

from rca_api.diagnoses.work import _nodes
from rca_api.incidents.announce import Announcer
from rca_api.incidents.endpoints import _detail
from rca_api.incidents.markdown import page
from rca_api.incidents.repository import found
from rca_api.incidents.service import IncidentTracker
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store.database import Database


def detail(database: Database, *said: str) -> Any:
    """The incident of a job with these windows, of a minute each."""
    tracker = IncidentTracker(SETTINGS, Announcer(Metrics()), Clock())
    for number, each in enumerate(said):
        with database.session() as session:
            diagnosed(session, tracker, number=number, said=each)
    with database.reading() as session:
        (row,) = session.scalars(found())
        return _detail(session, row, Settings(public_url="https://rca.example.org"))


def test_each_stage_has_its_time_since_the_begin(database: Database) -> None:
    held = detail(database, "suspect", "suspect", "nic_degradation", "healthy", "healthy", "healthy")
    stages = {each.name: each.seconds for each in held.stages}
    assert stages == {"detected": 120.0, "localised": 180.0, "explained": 180.0, "recovered": 180.0}
    assert "- Stages: detected after 2 min, localised after 3 min," in page(held)
    assert held.url == f"https://rca.example.org/ui#/incidents/{held.id}"


def test_an_incident_begins_with_the_onset_and_not_with_its_window(database: Database) -> None:
    tracker = IncidentTracker(SETTINGS, Announcer(Metrics()), Clock())
    onset = datetime.fromtimestamp(START + SECONDS + 45, UTC)
    begin = datetime.fromtimestamp(START + 2 * SECONDS, UTC)
    with database.session() as session:
        diagnosed(session, tracker, said="healthy")
        for number, since in ((1, onset), (2, begin)):
            diagnosed(session, tracker, number=number, said="nic_degradation", since=since.isoformat())
    with database.reading() as session:
        (row,) = session.scalars(found())
        held = _detail(session, row, Settings())
    assert held.began == onset
    assert held.stages[0].seconds == 15.0
    written = page(held)
    assert f"- **Since:** {onset:%Y-%m-%d %H:%M:%S} UTC, last seen " in written
    assert written.count("Since") == 1
    assert "sick" not in written


def test_the_onset_is_read_again_when_a_window_is_deleted(database: Database) -> None:
    tracker = IncidentTracker(SETTINGS, Announcer(Metrics()), Clock())
    with database.session() as session:
        first, _ = (
            diagnosed(session, tracker, number=number, said="nic_degradation", since=since)
            for number, since in ((0, None), (1, datetime.fromtimestamp(START + 70, UTC).isoformat()))
        )
        (row,) = session.scalars(found())
        assert row.onset == START
        incident = row.id
        session.delete(first)
        session.flush()
        tracker.withdraw(session, incident)
        assert row.onset == START + 70


def test_a_newer_suspect_does_not_hide_the_summary_of_the_cause(database: Database) -> None:
    held = detail(database, "nic_degradation", "suspect")
    assert [each.verdict for each in held.diagnoses] == ["suspect", "sick"]
    assert held.summary.diagnosis_id == held.diagnoses[1].diagnosis_id
    assert "nic_degradation" in held.summary.headline


def test_recovery_does_not_begin_within_the_last_faulty_window(database: Database) -> None:
    tracker = IncidentTracker(SETTINGS, Announcer(Metrics()), Clock())
    with database.session() as session:
        diagnosed(session, tracker, said="nic_degradation")
        for number in (0.5, 1.5, 2.5):
            diagnosed(session, tracker, number=number)
    with database.reading() as session:
        (row,) = session.scalars(found())
        held = _detail(session, row, Settings())
    assert held.stages[-1].seconds == 60.0


def test_an_open_incident_has_not_recovered(database: Database) -> None:
    held = detail(database, "nic_degradation", "healthy")
    assert held.stages[-1].model_dump() == {"name": "recovered", "at": None, "seconds": None}
    assert "nic_degradation" in held.summary.headline
    assert "- **Owner:**" in page(held)


@pytest.mark.parametrize(("named", "blamed"), [(1, 1), (3, 3), (4, 0)])
def test_a_cause_on_all_nodes_blames_none(make_window: Any, named: int, blamed: int) -> None:
    import rca

    diagnosis = rca.diagnose(make_window(late={5: 0.05}, phase="data_loading_seconds"))
    assert diagnosis.recovery is not None
    assert diagnosis.recovery.job_nodes == 4
    cause = diagnosis.causes[0].model_copy(update={"nodes": [f"node-{n}" for n in range(named)]})
    assert len([node for node in _nodes(cause, diagnosis) if node is not None]) == blamed


def test_an_answer_of_unknown_neither_names_nor_changes_the_cause_of_an_incident(database: Database) -> None:
    held = detail(database, "unknown", "unknown")
    assert (held.cause, held.state) == (None, "open")


def test_an_answer_of_unknown_leaves_the_named_cause(database: Database) -> None:
    held = detail(database, "nic_degradation", "nic_degradation", "unknown", "unknown", "unknown")
    assert held.cause == "nic_degradation"


def test_the_delay_of_each_stage_is_shown(database: Database) -> None:
    tracker = IncidentTracker(SETTINGS, Announcer(Metrics()), Clock())
    began = datetime.fromtimestamp(START, UTC)
    with database.session() as session:
        for number in range(2):
            row = diagnosed(session, tracker, number=number, said="nic_degradation")
            row.created_at = began + timedelta(seconds=3 + 60 * number)
            row.finished_at = row.created_at + timedelta(seconds=2)
    with database.reading() as session:
        (incident,) = session.scalars(found())
        incident.onset = START
        held = _detail(session, incident, Settings())
    after = {each.name: each.seconds for each in held.delays}
    assert list(after) == ["arrived", "noticed", "diagnosed", "announced"]
    assert after["diagnosed"] - after["noticed"] == pytest.approx(2.0)
    assert after["noticed"] == after["arrived"]
    assert "- Delays since the onset: arrived after " in page(held)
