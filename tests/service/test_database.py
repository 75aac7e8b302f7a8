"""The store: schema, transactions, moments, and what is said when it cannot be used."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from postgres_server import Server
from sqlalchemy import func, select
from sqlalchemy.exc import StatementError
from structlog.testing import capture_logs

from rca.cli import run as run_command_line
from rca_api.diagnoses.tables import WindowRow
from rca_api.shell.lifespan import upgraded
from rca_api.shell.processes.body import Spool
from rca_api.shell.settings.settings import Settings
from rca_api.shell.state import State
from rca_api.shell.store.database import Database, StoreError
from rca_api.shell.store.sqlite_engine import _on_connect
from rca_api.shell.store.tables import Base

pytestmark = pytest.mark.smoke


def row(digest: str, **values: object) -> WindowRow:
    return WindowRow(**{"digest": digest, "job_id": "job", "n_bytes": 0, **values})


def of_a_newer_version(database: Database) -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")


def test_migrations_create_exactly_the_tables_of_the_code(database: Database) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_upgrading_twice_does_nothing(database: Database) -> None:
    before = database.upgrade()
    assert before == database.schema()
    assert before.current == before.newest
    database.check()


def test_indexes_that_cannot_be_measured_do_not_fail_a_migration(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Database) -> None:
        raise StoreError("it took too long")

    monkeypatch.setattr(Database, "analyze", fail)
    database = Database(empty_database_url)
    with capture_logs() as lines:
        assert database.upgrade().current is None
    database.check()
    database.close()
    [line] = [each for each in lines if each["log_level"] == "warning"]
    assert (line["event"], line["reason"]) == ("the indexes are not measured", "it took too long")


def test_an_empty_database_is_not_ready_and_the_error_has_a_hint(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    with pytest.raises(StoreError) as caught:
        database.check()
    database.close()
    assert "needs" in caught.value.message
    assert caught.value.hint == "run `rca db upgrade`"


def test_replicas_that_start_together_migrate_once(empty_database_url: str) -> None:
    databases = [Database(empty_database_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(Database.upgrade, databases))
    databases[0].check()
    for held in databases:
        held.close()


def test_the_write_ahead_log_is_retried_when_sqlite_is_busy() -> None:
    """As SQLite answers at once while another connection changes the mode of a new file."""
    asked: list[str] = []

    class Connection:
        isolation_level: str | None = ""

        def execute(self, statement: str) -> None:
            asked.append(statement)
            if len(asked) < 3:
                error = sqlite3.OperationalError("database is locked")
                error.sqlite_errorcode = sqlite3.SQLITE_BUSY
                raise error

    _on_connect(Connection(), None)
    assert asked[:3] == ["PRAGMA journal_mode=WAL"] * 3
    assert "PRAGMA foreign_keys=ON" in asked


def test_a_failed_transaction_leaves_nothing(database: Database) -> None:
    def fail_midway() -> None:
        with database.session() as session:
            session.add(row("a"))
            session.flush()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_midway()
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(WindowRow)) == 0


def test_concurrent_writers_lose_no_update(database: Database) -> None:
    with database.session() as session:
        session.add(row("a"))

    def add_one(_: int) -> None:
        with database.session() as session:
            held = session.scalars(select(WindowRow).with_for_update()).one()
            held.n_bytes += 1

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add_one, range(40)))
    with database.reading() as session:
        assert session.scalars(select(WindowRow.n_bytes)).one() == 40


def test_times_are_read_back_in_utc(database: Database) -> None:
    noon_in_tokyo = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=9)))
    with database.session() as session:
        session.add(row("a", created_at=noon_in_tokyo))
    with database.reading() as session:
        found = session.scalars(select(WindowRow.created_at)).one()
    assert found == noon_in_tokyo
    assert found.tzinfo == UTC


def test_a_time_without_a_zone_is_refused(database: Database) -> None:
    def store() -> None:
        with database.session() as session:
            session.add(row("a", created_at=datetime(2026, 1, 1)))

    with pytest.raises(StatementError, match="no time zone"):
        store()


def test_the_status_shows_no_password_however_it_is_given(
    postgres: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    with postgres.temporary_database() as url:
        given = f"{url}&password=s3cretpw".replace("rca@", "rca:s3cretpw@")
        with pytest.raises(SystemExit) as left:
            run_command_line(["db", "status", "--database-url", given])
    assert left.value.code == 1
    shown = capsys.readouterr().out
    assert "schema none" in shown
    assert "s3cretpw" not in shown


def test_the_error_of_a_missing_server_has_no_password() -> None:
    database = Database("postgresql://rca:hidden-word@127.0.0.1:9/rca")
    with pytest.raises(StoreError) as caught:
        database.check()
    assert "9" in caught.value.message
    assert "hidden-word" not in caught.value.message


def test_a_database_of_a_newer_version_is_usable(database: Database) -> None:
    of_a_newer_version(database)
    database.check()
    assert database.upgrade().is_newer
    assert database.schema().current == "9999"


def test_this_version_starts_on_a_newer_schema(database: Database, tmp_path: Path) -> None:
    of_a_newer_version(database)
    settings = Settings(data_dir=tmp_path, database_url=str(database.engine.url), processes=1)
    state = State.build(settings)
    with capture_logs() as lines:
        assert upgraded(state)
    state.database.close()
    assert [(line["event"], line["schema"]) for line in lines] == [
        ("the schema is of a newer version", "9999")
    ]


def test_a_user_without_rights_on_tables_gets_an_error(postgres: Server) -> None:
    database = Database(postgres.new_database())
    with database.engine.begin() as connection:
        connection.exec_driver_sql("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        connection.exec_driver_sql("CREATE ROLE looker LOGIN")
    looker = Database(database.engine.url.set(username="looker").render_as_string(hide_password=False))
    with pytest.raises(StoreError, match="cannot be migrated: permission denied"):
        looker.upgrade()
    looker.close()
    with database.engine.begin() as connection:
        connection.exec_driver_sql("DROP ROLE looker")
    database.close()


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((StoreError, OSError)):
        Database(f"sqlite:///{tmp_path / 'file' / 'rca.db'}").upgrade()


def test_a_new_database_is_private(tmp_path: Path) -> None:
    path = tmp_path / "data" / "rca.db"
    database = Database(f"sqlite:///{path}")
    database.upgrade()
    database.check()
    rights = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    database.close()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert rights == {"rca.db": 0o600, "rca.db-wal": 0o600, "rca.db-shm": 0o600}


def test_a_damaged_file_is_an_error_of_the_store(tmp_path: Path) -> None:
    path = tmp_path / "rca.db"
    database = Database(f"sqlite:///{path}")
    database.upgrade()
    database.close()
    content = bytearray(path.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StoreError, match="malformed"), database.reading() as session:
        session.scalars(select(WindowRow)).all()
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match="not a database"):
        database.schema()
    database.close()


def test_the_folder_of_a_service_is_private(tmp_path: Path) -> None:
    Spool(tmp_path / "data" / "spool").clean()
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


def test_existing_rights_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "rca.db"
    path.touch(0o660)
    path.chmod(0o660)
    tmp_path.chmod(0o750)
    database = Database(f"sqlite:///{path}")
    database.upgrade()
    database.close()
    assert [stat.S_IMODE(each.stat().st_mode) for each in (tmp_path, path)] == [0o750, 0o660]


def elsewhere(path: Path, statement: str) -> str:
    """What another process reads, which opens the database and leaves it."""
    code = (
        f"import sqlite3; held = sqlite3.connect({str(path)!r}); "
        f"print(held.execute({statement!r}).fetchone()[0]); held.close()"
    )
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


@pytest.mark.system
def test_another_process_that_closes_the_database_does_not_drop_its_locks(tmp_path: Path) -> None:
    """Whoever leaves last folds the journal in and deletes it: never while this process is connected."""
    path = tmp_path / "rca.db"
    database = Database(f"sqlite:///{path}")
    database.upgrade()
    # A connection of the pool, and then a second one: it must not cost the first one its lock.
    with database.reading() as first:
        first.scalar(select(func.count()).select_from(WindowRow))
        with database.session() as second:
            second.add(row("a" * 64))
    assert elsewhere(path, "SELECT count(*) FROM windows").strip() == "1"
    assert path.with_name("rca.db-wal").exists()
    with database.session() as session:
        session.add(row("b" * 64))
    assert elsewhere(path, "SELECT count(*) FROM windows").strip() == "2"
    database.close()
