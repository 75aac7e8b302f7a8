"""Bringing the schema up to date where a process starts, and saying so in its log."""

from __future__ import annotations

import structlog

from rca_api.store.database import Database

_log = structlog.stdlib.get_logger("rca_api")


def migrate(database: Database) -> None:
    """Bring the schema up to date, and say what was found.

    Raises
    ------
    StoreError
        If the database cannot be used.
    """
    before = database.upgrade()
    if before.is_newer:
        _log.warning("the schema is of a newer version", schema=before.current, known=before.newest)
    elif before.current != before.newest:
        _log.info("the schema was migrated", before=before.current, schema=before.newest)
