"""Released migrations never change, and a database of the version before is upgraded with all it holds."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import orjson
import pytest
from diagnosed import diagnosed, document
from sqlalchemy import select, text
from typer.testing import CliRunner

from rca_api.commands.db import app
from rca_api.diagnoses import repository
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.incidents.tables import IncidentRow
from rca_api.shell.health import check_database
from rca_api.shell.store.database import Database, StoreError
from rca_api.shell.store.schema_check import SchemaCheck
from rca_api.webhooks.tables import WebhookRow

pytestmark = pytest.mark.smoke

ROOT = Path(__file__).parents[2]
VERSIONS = ROOT / "api" / "rca_api" / "shell" / "store" / "migrations" / "versions"
#: Release -> SHA-256 of the migrations that came with it. A released file must not change: databases have run
#: it. At a release, add a line with those that are new.
RELEASED = {
    "0.2.0": {
        "0001": "1b46aeb594b144b1b3400ac5e54db93aaab570b598f38e8581d41d569bb3b8b4",
        "0002": "bbe8e0f293f14b2aae6e7095c34f4b154eeecb91655ee773638c459568c472c3",
    },
    "0.3.0": {"0011": "8b2688d69b8d941af86457683615fb2a0be97769a955f032ee299553bc45a413"},
}
#: The revision of the last release.
BEFORE = "0002"


def test_released_migrations_are_as_they_were() -> None:
    for frozen in RELEASED.values():
        for revision, digest in frozen.items():
            [file] = VERSIONS.glob(f"{revision}_*.py")
            assert hashlib.sha256(file.read_bytes()).hexdigest() == digest, (
                f"{file.name} was released: write another migration instead of changing it"
            )


def test_a_release_freezes_its_migrations() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert version in RELEASED, f"add the migrations of {version} to RELEASED; none is an empty dictionary"


#: Rows as the last release writes them: tables of today have more columns.
OLD_ROWS = (
    "INSERT INTO incidents (id, job_id, open_job_id, failure_mode, cause, opened_at, began, ended, windows, "
    "seconds_lost, gpu_hours_lost) VALUES ('i', 'job', 'job', 'fail_slow', 'nic_degradation', "
    "'2026-11-21 20:00:00', 1, 2, 1, 3, 4)",
    "INSERT INTO webhooks (id, created_at, url, description, secret, events, causes, active) VALUES ('w', "
    "'2026-11-21 20:00:00', 'https://a.example', '', 'whsec_', '[\"incident.opened\"]', '[]', true)",
    "INSERT INTO webhooks (id, created_at, url, description, secret, events, causes, active) VALUES ('v', "
    "'2026-11-21 20:00:00', 'https://a.example', '', 'whsec_', '[\"incident.resolved\"]', '[]', true)",
)


def at_last_release(url: str) -> Database:
    """A database as the last release leaves it, with diagnoses, an incident and webhooks."""
    database = Database(url)
    database.upgrade(BEFORE)
    with database.session() as session:
        # The rows are written by today's class, so its later column exists meanwhile.
        session.execute(text("ALTER TABLE diagnoses ADD COLUMN turn BIGINT NOT NULL DEFAULT 0"))
        for number, said in enumerate(("nic_degradation", "nic_degradation", "healthy")):
            row = diagnosed(session, number=number, said=said)
            plain = orjson.dumps(document(row.id, "job", said))
            session.flush()
            # That version does not pack.
            session.execute(
                text("UPDATE diagnoses SET document = :document WHERE id = :id"),
                {"document": plain, "id": row.id},
            )
        session.execute(text("ALTER TABLE diagnoses DROP COLUMN turn"))
        for statement in OLD_ROWS:
            session.execute(text(statement.replace(":", r"\:")))
    return database


def test_a_database_of_the_last_release_keeps_what_it_holds(empty_database_url: str) -> None:
    database = at_last_release(empty_database_url)
    assert database.schema().current == BEFORE
    with database.reading() as session:
        found = list(session.scalars(select(DiagnosisRow.id).order_by(DiagnosisRow.window_end)))
    assert database.upgrade().current == BEFORE
    SchemaCheck(database).require()
    with database.reading() as session:
        for each in found:
            row = repository.find(session, each)
            assert row is not None
            assert orjson.loads(row.document or b"")["diagnosis_id"] == each
        assert set(
            session.scalars(repository.matching(cause="nic_degradation").with_only_columns(DiagnosisRow.id))
        ) == {*found[:2]}
        incident = session.get_one(IncidentRow, "i")
        assert (incident.cause, incident.suspected, incident.uncertain) == ("nic_degradation", False, False)
        assert incident.onset == incident.began
        opened, resolved = (session.get_one(WebhookRow, each) for each in "wv")
        assert (opened.events, resolved.events) == (["incident.opened"], ["incident.resolved"])
        assert (opened.form, opened.routing_key) == ("standard", None)
    database.close()


def test_a_new_database_has_the_expected_tables(database: Database) -> None:
    found = SchemaCheck(database).read()
    assert found.is_comparable
    assert found.differences == ()


CHANGES = {
    "column incidents.place is missing": "ALTER TABLE incidents DROP COLUMN place",
    "index ix_diagnoses_newest is missing": "DROP INDEX ix_diagnoses_newest",
    "table api_keys is missing": "DROP TABLE api_keys",
    "column webhooks.extra is not known": "ALTER TABLE webhooks ADD COLUMN extra INTEGER",
}


@pytest.mark.parametrize("change", CHANGES)
def test_tables_that_differ_are_not_ready_and_the_command_says_why(
    database: Database, database_url: str, change: str
) -> None:
    with database.session() as session:
        session.execute(text(CHANGES[change]))
    check = check_database(SchemaCheck(database))
    assert (check.ready, check.code) == (False, "store-unavailable")
    assert change in check.detail
    assert "rca db check" in check.detail
    shown = CliRunner().invoke(app, ["check", "--database-url", database_url])
    assert shown.exit_code == 1
    assert f"- {change}" in shown.output


@pytest.mark.parametrize("change", [each for each in CHANGES if each.endswith("missing")])
def test_the_statements_add_what_is_missing(database: Database, change: str) -> None:
    with database.session() as session:
        session.execute(text(CHANGES[change]))
    for difference in SchemaCheck(database).read().differences:
        assert difference.statement is not None
        with database.session() as session:
            session.execute(text(difference.statement))
    SchemaCheck(database).require()


def test_an_index_of_other_columns_is_made_anew(database: Database) -> None:
    with database.session() as session:
        session.execute(text("DROP INDEX ix_diagnoses_newest"))
        session.execute(text("CREATE INDEX ix_diagnoses_newest ON diagnoses (world_size)"))
    with pytest.raises(StoreError, match="index ix_diagnoses_newest"):
        SchemaCheck(database).require()
    with database.session() as session:
        for difference in SchemaCheck(database).read().differences:
            assert difference.statement is not None
            session.execute(text(difference.statement))
    SchemaCheck(database).require()


def test_a_column_that_may_not_be_null_is_no_column_that_may(database: Database) -> None:
    if database.is_sqlite:
        pytest.skip("SQLite cannot change a column")
    with database.session() as session:
        session.execute(text("ALTER TABLE incidents ALTER COLUMN job_id DROP NOT NULL"))
    assert [each.text for each in SchemaCheck(database).read().differences] == [
        "column incidents.job_id must not be null"
    ]


def test_indexes_and_tables_of_others_do_not_matter(database: Database) -> None:
    with database.session() as session:
        session.execute(text("CREATE TABLE huey_queue (id INTEGER)"))
        session.execute(text("CREATE INDEX of_the_operator ON diagnoses (world_size)"))
    SchemaCheck(database).require()


def test_tables_that_were_right_are_read_again_after_a_minute(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = SchemaCheck(database)
    check.require()
    with database.session() as session:
        session.execute(text("DROP INDEX ix_diagnoses_newest"))
    check.require()
    monkeypatch.setattr(check, "_right_until", 0.0)
    with pytest.raises(StoreError, match="ix_diagnoses_newest"):
        check.require()


def test_a_schema_between_two_releases_is_refused_with_what_to_do(database: Database) -> None:
    """Its tables lack columns that this version writes; it is older, not newer."""
    with database.session() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '0005'"))
    for use in (database.schema, database.upgrade):
        with pytest.raises(StoreError, match="schema 0005 is of no release") as refused:
            use()
        assert "begin with a new database" in str(refused.value.hint)


def test_a_newer_schema_is_not_compared(database: Database) -> None:
    with database.session() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        session.execute(text("ALTER TABLE webhooks ADD COLUMN extra INTEGER"))
    SchemaCheck(database).require()
