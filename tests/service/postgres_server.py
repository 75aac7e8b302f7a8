"""A PostgreSQL server that tests start, stop and start again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from rca_api.shell.store.base import new_id

#: The server refuses to run as root.
SERVER_USER = "postgres" if os.geteuid() == 0 else None

#: Tables with their columns, indexes and constraints.
_TABLES = """
    SELECT table_name::text, concat_ws(' ', column_name, data_type, is_nullable, column_default)
    FROM information_schema.columns WHERE table_schema = 'public'
    UNION ALL SELECT tablename::text, indexdef FROM pg_indexes WHERE schemaname = 'public'
    UNION ALL SELECT conrelid::regclass::text, pg_get_constraintdef(oid)
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace
    ORDER BY 1, 2
"""
_END_OTHERS = """
    SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_NUMBERS_FROM_ONE = """
    SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, 1, false) FROM pg_sequences
"""


def postgres_binaries() -> Path | None:
    """Folder of `initdb` and `pg_ctl`; Debian does not put them on the PATH."""
    found = shutil.which("pg_ctl")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


def database_name(url: str) -> str:
    return urlsplit(url).path[1:]


class Server:
    """A PostgreSQL server of our own on a Unix socket, which can be taken away and brought back.

    Parameters
    ----------
    binaries : Path
        Folder of its programs.
    folder : str
        Of its cluster and socket.
    """

    def __init__(self, binaries: Path, folder: str) -> None:
        self._folder = folder
        self._emptied: list[str] = []
        self._control = (str(binaries / "pg_ctl"), "-D", f"{folder}/cluster", "-w", "-l", f"{folder}/log")
        options = ("-A", "trust", "-U", "rca", "--no-sync")
        self._run(str(binaries / "initdb"), "-D", f"{folder}/cluster", *options)
        self.start()

    def start(self) -> None:
        self._run(*self._control, "-o", f"-k {self._folder} -c listen_addresses='' -c fsync=off", "start")

    def stop(self) -> None:
        """At once, as in a crash."""
        self._run(*self._control, "-m", "immediate", "stop")

    @contextmanager
    def hanging(self, *, new_connections: bool = True) -> Iterator[None]:
        """Stop its processes as a hung machine does: connections stay open, and nothing is answered.

        Without `new_connections` only those that serve a connection now are stopped.
        """
        first = int(Path(f"{self._folder}/cluster/postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        stopped = [*([first] if new_connections else []), *map(int, children)]
        for process in stopped:
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in stopped:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)

    def new_database(self, template: str | None = None) -> str:
        """Make an empty database, or a copy of another; its URL."""
        name = f"test_{new_id()}"
        self._execute(f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else ""))
        return self._url(name)

    @contextmanager
    def temporary_database(self) -> Iterator[str]:
        """As `new_database`, deleted in the end."""
        url = self.new_database()
        try:
            yield url
        finally:
            self._drop(url)

    @contextmanager
    def emptied_database(self, template: str) -> Iterator[str]:
        """A database with the tables of `template`, which has no rows.

        A copy has 300 files and takes longer than most tests. So one that was used is emptied and used again.
        """
        url = self._emptied.pop() if self._emptied else self.new_database(template)
        try:
            yield url
        finally:
            if self._empty(url, template):
                self._emptied.append(url)
            else:
                self._drop(url)

    def _empty(self, url: str, template: str) -> bool:
        """Take all rows out of a database; False if its tables are no longer those of the template."""
        with psycopg.connect(self._url(template)) as connection:
            tables = connection.execute(_TABLES).fetchall()
            [revision] = connection.execute("SELECT version_num FROM alembic_version").fetchall()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(_END_OTHERS)
            if connection.execute(_TABLES).fetchall() != tables:
                return False
            # Without checks of foreign keys, tables can be emptied in any order.
            connection.execute("SET session_replication_role = replica")
            for table in sorted({table for table, _ in tables}):
                connection.execute(f"DELETE FROM {table}".encode())  # noqa: S608  (names of our own tables)
            connection.execute(_NUMBERS_FROM_ONE)
            connection.execute("INSERT INTO alembic_version VALUES (%s)", revision)
        return True

    def _drop(self, url: str) -> None:
        # Hundreds of databases take minutes to delete once they are on the disk.
        self._execute(f"DROP DATABASE {database_name(url)} WITH (FORCE)")

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _url(self, database: str) -> str:
        return f"postgresql://rca@/{database}?host={self._folder}"

    def _run(self, *command: str) -> None:
        where, user = self._folder, SERVER_USER
        subprocess.run(command, check=True, user=user, cwd=where, stdout=subprocess.DEVNULL, timeout=60)
