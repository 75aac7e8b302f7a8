"""A database that hangs or is locked costs a request its deadline at most, and the service recovers."""

from __future__ import annotations

import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from incident_service import live, state_of
from postgres_server import Server
from sqlalchemy import text
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from rca_api.shell.app import create_app
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store import time_limits
from rca_api.shell.store.database import Database, StoreError
from tests.for_each import for_each
from tests.waiting import until

pytestmark = pytest.mark.system

DEADLINE_SECONDS = 1.0
#: The machine of the tests may be busy.
GRACE_SECONDS = 2.0


@contextmanager
def served(database_url: str, folder: Path) -> Iterator[TestClient]:
    """The service with a short deadline, and a limit of the database that is far longer."""
    settings = Settings(
        data_dir=folder,
        database_url=database_url,
        deadline_seconds=DEADLINE_SECONDS,
        database_timeout_seconds=30,
        incident_sure_probability=0.5,
        incident_opening_windows=2,
    )
    client = TestClient(create_app(settings), raise_server_exceptions=False)
    state_of(client).database.upgrade()
    live(client, "nic_degradation")
    try:
        yield client
    finally:
        state_of(client).database.close()


@pytest.fixture
def on_server(postgres: Server, tmp_path: Path) -> Iterator[TestClient]:
    with postgres.temporary_database() as url, served(url, tmp_path) as client:
        yield client


@pytest.fixture
def on_file(tmp_path: Path) -> Iterator[TestClient]:
    with served(f"sqlite:///{tmp_path / 'rca.db'}", tmp_path) as client:
        yield client


def read(client: TestClient) -> int:
    return client.get("/v1/incidents").status_code


def write(client: TestClient) -> int:
    found = client.get("/v1/diagnoses").json()["items"][0]["diagnosis_id"]
    return client.post(f"/v1/diagnoses/{found}/feedback", json={"verdict": "confirmed"}).status_code


def timed(ask: Callable[[], object]) -> tuple[object, float]:
    began = time.monotonic()
    return ask(), time.monotonic() - began


def test_a_hung_server_is_a_503_within_the_deadline(on_server: TestClient, postgres: Server) -> None:
    with postgres.hanging():
        status, seconds = timed(lambda: read(on_server))
        assert status == 503
        assert seconds < DEADLINE_SECONDS + GRACE_SECONDS
        problem = on_server.get("/v1/incidents").json()
        assert problem["code"] == "store-unavailable"
    until(lambda: read(on_server) == 200, seconds=10)


def test_while_a_server_hangs_later_requests_do_not_wait_for_each_other(
    on_server: TestClient, postgres: Server
) -> None:
    """More requests than threads and connections: none may have to wait until another one has given up."""
    with postgres.hanging(), ThreadPoolExecutor(80) as callers:
        found = list(callers.map(lambda _: timed(lambda: read(on_server)), range(80)))
    assert {status for status, _ in found} == {503}
    # One after the other on 15 connections, the last would wait for six deadlines.
    assert max(seconds for _, seconds in found) < 5 * DEADLINE_SECONDS
    until(lambda: read(on_server) == 200, seconds=10)


def test_connections_that_hang_are_replaced(on_server: TestClient, postgres: Server) -> None:
    """As behind a firewall that forgets connections: new ones work."""
    assert read(on_server) == 200
    with postgres.hanging(new_connections=False):
        _, seconds = timed(lambda: read(on_server))
        assert seconds < DEADLINE_SECONDS + GRACE_SECONDS
        until(lambda: read(on_server) == 200, seconds=10)


def test_a_lock_of_another_session_is_a_503_within_the_deadline(on_server: TestClient) -> None:
    url = state_of(on_server).database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE incidents, feedback IN ACCESS EXCLUSIVE MODE")
        for ask in (read, write):
            status, seconds = timed(lambda ask=ask: ask(on_server))  # type: ignore[misc]
            assert status == 503
            assert seconds < DEADLINE_SECONDS + GRACE_SECONDS
        # Others do not suffer: the server answers.
        assert on_server.get("/v1/diagnoses").status_code == 200
        other.rollback()
    assert (read(on_server), write(on_server)) == (200, 201)


def test_a_lock_on_the_file_is_a_503_within_the_deadline(on_file: TestClient) -> None:
    path = state_of(on_file).database.url.database
    assert path is not None
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        status, seconds = timed(lambda: write(on_file))
        assert status == 503
        assert seconds < DEADLINE_SECONDS + GRACE_SECONDS
        assert read(on_file) == 200
        other.execute("ROLLBACK")
    assert write(on_file) == 201


def test_a_server_that_accepts_and_never_answers_is_given_up(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        database = Database(f"postgresql://rca@127.0.0.1:{silent.getsockname()[1]}/rca", longest_seconds=0.5)

        def check() -> None:
            with pytest.raises(StoreError):
                database.check()

        assert timed(check)[1] < 0.5 + GRACE_SECONDS
        database.close()


def test_connections_notice_that_the_other_end_is_gone(postgres: Server) -> None:
    with postgres.temporary_database() as url:
        for given, expected in (("", "10"), ("&keepalives_idle=77", "77")):
            database = Database(url + given, longest_seconds=7.0)
            with database.engine.connect() as connection:
                driver = connection.connection.driver_connection
                assert isinstance(driver, psycopg.Connection)
                parameters = driver.info.get_parameters()
            database.close()
            assert (parameters["keepalives_idle"], parameters["tcp_user_timeout"]) == (expected, "7000")
            assert parameters["connect_timeout"] == "7"


SLOW = {
    True: "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
    False: "SELECT pg_sleep(20)",
}


def test_a_slow_statement_ends_in_time_and_the_connection_stays_usable(database: Database) -> None:
    def run() -> None:
        with pytest.raises(StoreError), database.reading(longest_seconds=0.5) as session:
            session.execute(text(SLOW[database.is_sqlite]))

    for _ in range(3):
        assert timed(run)[1] < 0.5 + GRACE_SECONDS
    database.check()


def test_a_transaction_that_waits_for_a_connection_gives_up(database: Database) -> None:
    refused = threading.Semaphore(0)
    others_gave_up = threading.Barrier(15, action=lambda: [refused.acquire(timeout=20) for _ in range(5)])

    def reading(_: int) -> bool:
        try:
            with database.reading(longest_seconds=0.5) as session:
                session.execute(text("SELECT 1"))
                others_gave_up.wait(20)
        except StoreError:
            refused.release()
            return False
        return True

    with ThreadPoolExecutor(20) as threads:
        assert sum(threads.map(reading, range(20))) == 15
    assert database.schema().current is not None


@for_each(
    ("deadline", "longest", "expected"),
    [(None, 10.0, 10.0), (5.0, 10.0, 4.5), (60.0, 10.0, 10.0), (0.0, 10.0, 1.0), (5.0, None, None)],
)
def test_the_earlier_of_deadline_and_limit_counts(
    deadline: float | None, longest: float | None, expected: float | None
) -> None:
    time_limits.answer_within(deadline)
    try:
        with time_limits.transaction(longest):
            assert time_limits.left() == (None if expected is None else pytest.approx(expected, abs=0.1))
        assert time_limits.left() is None
    finally:
        time_limits.answer_within(None)


def milliseconds(session: Session, name: str) -> int:
    shown: str = session.scalars(text(f"SHOW {name}")).one()
    return int(shown.removesuffix("ms"))


def test_migrations_have_no_limit(empty_database_url: str) -> None:
    database = Database(empty_database_url, longest_seconds=1.0)
    with database.engine.begin() as connection:
        connection.execute(text("SELECT 1"))
        if not database.is_sqlite:
            assert connection.execute(text("SHOW statement_timeout")).scalar() == "0"
    with database.reading() as session:
        if not database.is_sqlite:
            assert 800 < milliseconds(session, "statement_timeout") <= 900
            assert 700 < milliseconds(session, "lock_timeout") <= 800
            assert session.execute(text("SHOW idle_in_transaction_session_timeout")).scalar() == "1min"
        else:
            assert 700 < session.scalars(text("PRAGMA busy_timeout")).one() <= 800
    database.upgrade()
    database.close()
