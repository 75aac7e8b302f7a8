"""Whether the tables are those that this version expects at its revision.

A revision number does not say it: a migration may have been edited after it ran, or somebody has changed a
table by hand. The fingerprint is computed from the tables as they are, so it cannot lie. It covers the names
of our tables, columns and indexes and which columns may be null, which are the same on every database.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from alembic.ddl.base import AddColumn
from sqlalchemy import Column, Connection, Index, Table, inspect
from sqlalchemy.schema import CreateIndex, CreateTable, DDLElement

from rca_api.shell.store.database import Database, Schema, StoreError
from rca_api.shell.store.tables import Base

#: Seconds for which tables that were found right are not read again.
_REMEMBERED_SECONDS = 60.0
Part = tuple[str, ...]


@dataclass(frozen=True)
class Tables:
    """The tables of a database compared with those that this version expects.

    Attributes
    ----------
    fingerprint, expected : str
        Of the tables as they are, and as they should be.
    missing, unknown : tuple of str
        In words.
    statements : tuple of str
        SQL that adds what is missing.
    """

    schema: Schema
    fingerprint: str
    expected: str
    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    statements: tuple[str, ...]

    @property
    def is_comparable(self) -> bool:
        """Whether the database has the revision of this version."""
        return self.schema.current == self.schema.newest

    @property
    def differ(self) -> bool:
        """Whether the tables are not those of the revision."""
        return self.is_comparable and self.fingerprint != self.expected


class SchemaCheck:
    """Checks the tables of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._right_until = 0.0

    def require(self) -> None:
        """Raise `StoreError` unless the database answers and has the tables that this version needs.

        Tables that were right a minute ago are not read again: readiness probes come every few seconds.
        """
        self._database.check()
        if time.monotonic() < self._right_until:
            return
        found = self.read()
        if found.differ:
            first, *others = (*found.missing, *found.unknown)
            more = f", and {len(others)} more" if others else ""
            raise StoreError(
                f"the tables are not those of revision {found.schema.newest}: {first}{more}",
                hint="run `rca db check`: it lists the differences and says how to mend them",
            )
        self._right_until = time.monotonic() + _REMEMBERED_SECONDS

    def read(self) -> Tables:
        """Read the tables and compare them."""
        schema = self._database.schema()
        with self._database.reading() as session:
            connection = session.connection()
            found = frozenset(_found(connection))
            expected = dict(_expected())
            missing = sorted(expected.keys() - found)
            # A table that is missing brings its columns and indexes.
            whole = {table for kind, table, *_ in missing if kind == "table"}
            added = [part for part in missing if part[0] == "table" or part[1] not in whole]
            statements = (_statement(connection, part, expected) for part in added)
            return Tables(
                schema,
                _fingerprint(found),
                _fingerprint(frozenset(expected)),
                tuple(f"{_named(part)} is missing" for part in added),
                tuple(f"{_named(part)} is not known" for part in sorted(found - expected.keys())),
                tuple(each for each in statements if each),
            )


def _expected() -> Iterator[tuple[Part, Table | Column[object] | Index]]:
    for table in Base.metadata.sorted_tables:
        yield ("table", table.name), table
        for column in table.columns:
            yield _column(table.name, column.name, nullable=bool(column.nullable)), column
        for index in table.indexes:
            yield ("index", table.name, str(index.name), *index.columns.keys()), index


def _found(connection: Connection) -> Iterator[Part]:
    inspector = inspect(connection)
    ours = {table.name: {index.name for index in table.indexes} for table in Base.metadata.sorted_tables}
    for (_, table), columns in inspector.get_multi_columns(filter_names=list(ours)).items():
        yield "table", table
        for column in columns:
            yield _column(table, column["name"], nullable=column["nullable"])
    for (_, table), indexes in inspector.get_multi_indexes(filter_names=list(ours)).items():
        for index in indexes:
            # Operators may add indexes of their own.
            if index["name"] in ours[table]:
                yield "index", table, str(index["name"]), *(str(name) for name in index["column_names"])


def _column(table: str, name: str, *, nullable: bool) -> Part:
    return "column", table, name, "null" if nullable else "not null"


def _fingerprint(parts: frozenset[Part]) -> str:
    text = "\n".join("\t".join(part) for part in sorted(parts))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _named(part: Part) -> str:
    kind, table, *rest = part
    if kind == "table":
        return f"table {table}"
    return f"column {table}.{rest[0]} ({rest[1]})" if kind == "column" else f"index {rest[0]}"


def _statement(
    connection: Connection, part: Part, expected: dict[Part, Table | Column[object] | Index]
) -> str | None:
    """SQL that adds a missing part; None for what an existing table cannot get, such as a null constraint."""
    element = expected[part]
    if isinstance(element, Table):
        indexes = sorted(element.indexes, key=lambda index: str(index.name))
        made: list[DDLElement] = [CreateTable(element), *(CreateIndex(index) for index in indexes)]
        return ";\n".join(_compiled(connection, each) for each in made)
    if isinstance(element, Index):
        return _compiled(connection, CreateIndex(element))
    present = {column["name"] for column in inspect(connection).get_columns(part[1])}
    return None if element.name in present else _compiled(connection, AddColumn(part[1], element))


def _compiled(connection: Connection, element: DDLElement) -> str:
    return str(element.compile(dialect=connection.dialect)).strip()
