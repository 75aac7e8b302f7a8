"""Lists read no documents, and filters use their indexes, on both databases."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from incident_service import live, service_without_model, state_of
from sqlalchemy import UniqueConstraint, event, insert
from starlette.testclient import TestClient

from rca_api.diagnoses.tables import BlameRow, DiagnosisRow
from rca_api.incidents.tables import IncidentEventRow, IncidentRow, ObservationRow
from rca_api.jobs.tables import StreamedJobRow
from rca_api.nodes.repository import NodeExposureRow
from rca_api.shell.store.base import new_id, now
from rca_api.shell.store.database import Database
from rca_api.shell.store.tables import Base
from rca_api.webhooks.delivery import new_secret
from rca_api.webhooks.tables import WebhookRow

TABLES = "|".join(Base.metadata.tables)
#: Columns whose values may be megabytes.
LARGE = re.compile(r"diagnoses\.document|webhook_deliveries\.body")


class Sent(NamedTuple):
    """A statement as the driver got it."""

    statement: str
    parameters: Any


@contextmanager
def watched(database: Database) -> Iterator[list[Sent]]:
    """The statements that are executed meanwhile."""
    sent: list[Sent] = []

    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        sent.append(Sent(statement, parameters))

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(database.engine, "before_cursor_execute", note)


@pytest.fixture
def client(database_url: str, tmp_path: Path) -> Iterator[TestClient]:
    with service_without_model(database_url, tmp_path) as held:
        yield held


def lists(client: TestClient) -> list[str]:
    """Paths of the operations that answer with `items`."""
    document = client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]

    def is_list(operation: dict[str, Any]) -> bool:
        content = operation["responses"]["200"].get("content", {}).get("application/json", {})
        name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        return "items" in schemas.get(name, {}).get("properties", {})

    paths = document["paths"].items()
    return [path for path, methods in paths if "get" in methods and is_list(methods["get"])]


@pytest.mark.system
def test_no_list_reads_a_document(client: TestClient) -> None:
    database = state_of(client).database
    with database.session() as session:
        webhook = WebhookRow(
            url="https://hooks.example.org/", secret=new_secret(), events=["incident.opened"], causes=[]
        )
        session.add(webhook)
        session.add(StreamedJobRow(job_id="job", world_size=2))
    found = live(client, "nic_degradation", "nic_degradation", "healthy")
    given = client.post(f"/v1/diagnoses/{found[0]}/feedback", json={"verdict": "confirmed"})
    assert given.status_code == 201
    incident = client.get("/v1/incidents").json()["items"][0]["id"]
    taken = client.post(f"/v1/incidents/{incident}/actions", json={"action": "drain_node"})
    assert taken.status_code == 201
    shards = client.post("/v1/data-shards", json={"name": "set", "n_samples": 20, "shard_size": 8})
    assert shards.status_code == 201
    names = {
        "diagnosis_id": found[0],
        "incident_id": incident,
        "job_id": "job",
        "node": "node-1",
        "webhook_id": webhook.id,
    }
    paths = lists(client)
    assert len(paths) >= 8
    for path in paths:
        with watched(database) as sent:
            answer = client.get(path.replace(":path", "").format(**names), params={"limit": 200})
        if path == "/v1/models":
            # Read from the registry.
            continue
        assert answer.status_code == 200, path
        assert path == "/v1/training-runs" or answer.json()["items"], path
        assert sent, path
        assert [each.statement for each in sent if LARGE.search(each.statement)] == [], path
    # The pattern finds what it has to find.
    with watched(database) as sent:
        client.get(f"/v1/diagnoses/{found[0]}")
    assert any(LARGE.search(each.statement) for each in sent)


def fill(database: Database, n: int = 4000) -> None:
    """Diagnoses of many jobs, of which a few have each rare property."""
    at = now()
    rows: dict[type[Base], list[dict[str, Any]]] = {
        table: []
        for table in (IncidentRow, DiagnosisRow, BlameRow, IncidentEventRow, ObservationRow, NodeExposureRow)
    }
    for number in range(n):
        found, seen = new_id(), at - timedelta(seconds=number)
        job, start = f"job-{number % 400}", float(number)
        rare = number % 400 == 0
        rows[DiagnosisRow].append(
            {
                "id": found,
                "created_at": seen,
                "state": "failed" if rare else "done",
                "job_id": job,
                "window_start": start,
                "window_end": start + 1,
                "failure_mode": "fail_stop" if rare else "healthy",
                "abstained": rare,
            }
        )
        rows[NodeExposureRow].append(
            {
                "node": f"node-{number % 100}",
                "job_id": f"job-{number}",
                "first_seen": start,
                "last_seen": start,
                "windows": 1,
                "updated_at": seen,
            }
        )
        blame = {"place": 1, "owner": "infrastructure", "probability": 0.9, "seconds_per_step": 0.1}
        named = {
            "diagnosis_id": found,
            "cause": "hang" if rare else "nic_degradation",
            "node": f"node-{number % 400}",
        }
        rows[BlameRow].append(blame | named)
        if number % 4 == 0:
            incident = {"id": new_id(), "job_id": job, "failure_mode": "fail_slow", "opened_at": seen}
            incident |= {"began": start, "ended": start, "open_job_id": job if number < 40 else None}
            rows[IncidentRow].append(incident)
            said = {"failure_mode": "fail_slow", "cause": named["cause"]}
            event_ = {"incident_id": incident["id"], "kind": "opened", "at": seen, "window_end": start}
            rows[IncidentEventRow].append(event_ | said | {"diagnosis_id": found})
            window = {"job_id": job, "window_end": start + 1, "window_start": start, "observed_at": seen}
            window |= {"diagnosis_id": found, "incident_id": incident["id"], "verdict": "sick"}
            rows[ObservationRow].append(window | said | {"seconds_lost": 0.0, "gpu_hours_lost": 0.0})
    with database.session() as session:
        for table, values in rows.items():
            session.execute(insert(table), values)
    database.analyze()
    if not database.is_sqlite:
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ANALYZE")


def plan(database: Database, sent: Sent) -> str:
    """How the database executes a statement, if it may not read a whole table unless it has to."""
    how = "EXPLAIN QUERY PLAN " if database.is_sqlite else "EXPLAIN "
    with database.engine.connect() as connection:
        if not database.is_sqlite:
            connection.exec_driver_sql("SET enable_seqscan = off")
        rows = connection.exec_driver_sql(how + sent.statement, sent.parameters).all()
        if not database.is_sqlite:
            connection.exec_driver_sql("SET enable_seqscan = on")
    return "\n".join(str(row[-1]) for row in rows)


#: Address -> indexes that have to serve it, `|` between those that are as good.
SERVED = {
    "/v1/diagnoses": {"ix_diagnoses_newest"},
    "/v1/diagnoses?job=job-7": {"ix_diagnoses_job_newest"},
    "/v1/diagnoses?job=job-7&failure_mode=healthy&state=done&abstained=false": {"ix_diagnoses_job_newest"},
    "/v1/diagnoses?node=node-7": {"ix_blames_node_cause_diagnosis"},
    "/v1/diagnoses?cause=hang": {"ix_blames_cause_diagnosis"},
    "/v1/diagnoses?node=node-0&cause=hang": {"ix_blames_node_cause_diagnosis"},
    "/v1/diagnoses?abstained=true": {"ix_diagnoses_abstained_newest"},
    "/v1/diagnoses?failure_mode=fail_stop": {"ix_diagnoses_failure_mode_newest"},
    "/v1/diagnoses?state=failed": {"ix_diagnoses_state_newest"},
    "/v1/incidents": {"ix_incidents_newest"},
    "/v1/incidents?state=open": {"ix_incidents_open_newest|uq_incidents_open_job_id"},
    "/v1/incidents?cause=hang": {"ix_incident_events_cause_incident"},
    "/v1/incidents?node=node-8": {"ix_blames_node_cause_diagnosis", "ix_observations_diagnosis_id"},
    "/v1/nodes": {
        "ix_node_exposures_summary|ix_node_exposures_updated_at",
        "ix_observations_sick_observed_at",
    },
}


@pytest.mark.system
def test_filters_use_their_indexes(client: TestClient) -> None:
    database = state_of(client).database
    fill(database)
    for path, indexes in SERVED.items():
        with watched(database) as sent:
            assert client.get(path).json()["items"], path
        plans = "\n".join(plan(database, each) for each in sent if each.statement.startswith("SELECT"))
        unused = {index for index in indexes if not re.search(rf"\b({index})\b", plans)}
        assert unused == set(), f"{path}\n{plans}"
        # A whole table is read only through an index that has its order.
        assert re.findall(rf"Seq Scan on \w+|SCAN (?:{TABLES})$", plans, re.MULTILINE) == [], (
            f"{path}\n{plans}"
        )


def test_every_reference_has_an_index() -> None:
    """Deleting a row looks for the rows that refer to it, once for each deleted row."""
    for table in Base.metadata.tables.values():
        unique = (each for each in table.constraints if isinstance(each, UniqueConstraint))
        first = {next(iter(each.columns)) for each in (*table.indexes, *unique, table.primary_key)}
        assert {column for column in table.columns if column.foreign_keys} <= first, table.name
