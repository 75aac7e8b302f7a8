"""Databases of both kinds for the service's tests; PostgreSQL where its binaries are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from rca_api.store.base import new_id
from rca_api.store.database import Database

#: The server refuses to run as root.
_SERVER_USER = "postgres" if os.geteuid() == 0 else None


def postgres_binaries() -> Path | None:
    """Folder of `initdb` and `pg_ctl`; Debian does not put them on the PATH."""
    found = shutil.which("pg_ctl")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A PostgreSQL server of our own on a Unix socket; gives its URL without a database."""
    binaries = postgres_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed")
    # Not below pytest's folder: a socket's path may have 107 bytes, and the server's user must reach it.
    with tempfile.TemporaryDirectory(prefix="rca-pg-", dir="/tmp") as name:
        if _SERVER_USER is not None:
            try:
                shutil.chown(name, _SERVER_USER)
            except LookupError:
                pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
        cluster = f"{name}/cluster"

        def server(*command: str) -> None:
            subprocess.run(
                command, check=True, user=_SERVER_USER, cwd=name, stdout=subprocess.DEVNULL, timeout=60
            )

        server(str(binaries / "initdb"), "-D", cluster, "-A", "trust", "-U", "rca", "--no-sync")
        options = f"-k {name} -c listen_addresses='' -c fsync=off"
        control = (str(binaries / "pg_ctl"), "-D", cluster, "-w", "-l", f"{name}/log")
        server(*control, "-o", options, "start")
        try:
            yield f"postgresql://rca@/{{database}}?host={name}"
        finally:
            server(*control, "-m", "immediate", "stop")


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database; every test that asks for it runs on both kinds."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'rca.db'}"
    template: str = request.getfixturevalue("postgres")
    name = f"test_{new_id()}"
    with psycopg.connect(template.format(database="postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return template.format(database=name)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A database with the newest schema."""
    held = Database(database_url)
    held.upgrade()
    yield held
    held.close()
