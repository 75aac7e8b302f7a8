"""How alembic reaches the database: over the connection that `Database.upgrade` hands it."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context

from rca_api.shell.store.base import UtcDateTime
from rca_api.shell.store.packed import PackedDocument
from rca_api.shell.store.tables import Base


def render_item(kind: str, item: Any, autogen_context: Any) -> str | Literal[False]:
    """Write plain column types into migrations: they must go on working when our classes have moved."""
    if kind == "type" and isinstance(item, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    if kind == "type" and isinstance(item, PackedDocument):
        return "sa.LargeBinary()"
    return False


connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    # SQLite cannot alter tables in place.
    render_as_batch=connection.dialect.name == "sqlite",
    compare_type=True,
    render_item=render_item,
)
with context.begin_transaction():
    context.run_migrations()
