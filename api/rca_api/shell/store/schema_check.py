"""Whether the tables are those that this version expects at its revision.

A revision number does not say it: a migration may have been edited after it ran, or somebody has changed a
table by hand. Alembic compares our tables, columns, indexes and constraints with the models.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from io import StringIO
from typing import Any, NamedTuple

from alembic.autogenerate import produce_migrations
from alembic.migration import MigrationContext
from alembic.operations import MigrateOperation, Operations
from alembic.operations.ops import AddColumnOp, CreateIndexOp, CreateTableOp, DropIndexOp, ModifyTableOps
from sqlalchemy import Dialect

from rca_api.shell.store.database import Database, Schema, StoreError
from rca_api.shell.store.tables import Base

#: Seconds for which tables that were found right are not read again.
_REMEMBERED_SECONDS = 60.0
#: Operations that lose no row.
_HARMLESS = (AddColumnOp, CreateIndexOp, CreateTableOp, DropIndexOp)


class SchemaDifference(NamedTuple):
    """What differs, in words, and the SQL that mends it without the loss of a row; None if there is none."""

    text: str
    statement: str | None


class Tables(NamedTuple):
    """The schema of a database, and how its tables differ from those that this version expects."""

    schema: Schema
    differences: tuple[SchemaDifference, ...]

    @property
    def is_comparable(self) -> bool:
        """Whether the database has the revision of this version; if not, nothing was compared."""
        return self.schema.current == self.schema.newest


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
        if found.differences:
            first, *others = found.differences
            more = f", and {len(others)} more" if others else ""
            raise StoreError(
                f"the tables are not those of revision {found.schema.newest}: {first.text}{more}",
                hint="run `rca db check`: it lists the differences and says how to mend them",
            )
        self._right_until = time.monotonic() + _REMEMBERED_SECONDS

    def read(self) -> Tables:
        """Read the tables and compare them."""
        found = Tables(self._database.schema(), ())
        if not found.is_comparable:
            return found
        with self._database.reading() as session:
            connection = session.connection()
            # Types are not compared: databases give them names of their own.
            options = {"compare_type": False, "include_object": _is_ours}
            context = MigrationContext.configure(connection, opts=options)
            needed = produce_migrations(context, Base.metadata).upgrade_ops
            operations = list(_flat(needed.ops)) if needed is not None else []
            return found._replace(
                differences=tuple(
                    SchemaDifference(_text(each), _sql(each, connection.dialect)) for each in operations
                )
            )


def _is_ours(_object: object, _name: str | None, kind: str, is_found: bool, expected: object) -> bool:
    """Operators may add tables, indexes and constraints of their own; a column of theirs hinders our rows."""
    return kind == "column" or not is_found or expected is not None


def _flat(operations: list[MigrateOperation]) -> Iterator[MigrateOperation]:
    for each in operations:
        if isinstance(each, ModifyTableOps):
            yield from each.ops
        else:
            yield each


def _text(operation: Any) -> str:
    difference = operation.to_diff_tuple()
    if isinstance(difference, list):
        # Of a column.
        _, _, table, column, *_, expected = difference[0]
        return f"column {table}.{column} must {'' if expected else 'not '}be null"
    verb, _, kind = difference[0].partition("_")
    part = difference[-1]
    name = f"{part.table.name}.{part.name}" if kind == "column" else part.name
    return f"{kind} {name} is {'missing' if verb == 'add' else 'not known'}"


def _sql(operation: MigrateOperation, dialect: Dialect) -> str | None:
    if not isinstance(operation, _HARMLESS):
        return None
    written = StringIO()
    offline = MigrationContext.configure(dialect=dialect, opts={"as_sql": True, "output_buffer": written})
    Operations(offline).invoke(operation)
    return written.getvalue().strip().removesuffix(";")
