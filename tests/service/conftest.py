"""Databases of both kinds for the service's tests; PostgreSQL where its binaries are installed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import SERVER_USER, Server, postgres_binaries

from rca_api.store.database import Database


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


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database; every test that uses it runs on both kinds."""
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
    held.upgrade()
    yield held
    held.close()
