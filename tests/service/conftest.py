"""Databases of both kinds for the service's tests; PostgreSQL where its binaries are installed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from diagnosed import Clock
from following import FakeRegistry, Serve, serving_from
from incident_windows import follower  # noqa: F401 - a fixture
from postgres_server import SERVER_USER, Server, database_name, postgres_binaries
from starlette.testclient import TestClient

from rca_api.shell.app import create_app
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store import sqlite_engine
from rca_api.shell.store.database import Database


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A server; skips where PostgreSQL is not installed."""
    binaries = postgres_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed")
    # Not below pytest's folder: a socket's path may have 107 bytes, and the server's user must reach it.
    with tempfile.TemporaryDirectory(prefix="rca-pg-", dir="/tmp") as name:
        if SERVER_USER is not None:
            try:
                shutil.chown(name, SERVER_USER)
            except LookupError:
                pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
        server = Server(binaries, name)
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session", autouse=True)
def _no_waits_for_the_disk() -> Iterator[None]:
    """SQLite in this process does not wait until a commit is on the disk: no test cuts the power."""
    connected = sqlite_engine._on_connect

    def on_connect(connection: Any, record: object) -> None:
        connected(connection, record)
        connection.execute("PRAGMA synchronous=OFF")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_engine, "_on_connect", on_connect)
        yield


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the newest schema, to be copied: all migrations take longer than most tests."""
    path = tmp_path_factory.mktemp("migrated") / "rca.db"
    _migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def migrated_template(postgres: Server) -> str:
    """Name of a PostgreSQL database with the newest schema, as the tests have it."""
    url = postgres.new_database()
    _migrate(url)
    return database_name(url)


def _migrate(url: str) -> None:
    database = Database(url)
    database.upgrade()
    database.close()


KINDS = ("sqlite", pytest.param("postgresql", marks=pytest.mark.system))


@pytest.fixture(params=KINDS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database with the newest schema; every test that uses it runs on both kinds."""
    if request.param == "sqlite":
        shutil.copyfile(request.getfixturevalue("migrated_file"), tmp_path / "rca.db")
        yield f"sqlite:///{tmp_path / 'rca.db'}"
        return
    server: Server = request.getfixturevalue("postgres")
    with server.emptied_database(request.getfixturevalue("migrated_template")) as url:
        yield url


@pytest.fixture(params=KINDS)
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without tables, of both kinds."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'rca.db'}"
        return
    server: Server = request.getfixturevalue("postgres")
    with server.temporary_database() as url:
        yield url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A database with the newest schema."""
    held = Database(database_url)
    yield held
    held.close()


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """For requests that change nothing. Not started: none of them needs a process."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("read"), auth="off", rate_limit="")
    app = create_app(settings)
    app.state.parts.database.upgrade()
    yield TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False, follow_redirects=False)
    app.state.parts.database.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry(tmp_path: Path) -> FakeRegistry:
    return FakeRegistry(tmp_path / "registry")


@pytest.fixture
def serve(tmp_path: Path, registry: FakeRegistry, make_window: Any) -> Serve:
    """Start services that follow the registry."""
    return serving_from(tmp_path / "data", registry, make_window)
