"""Transactions that exclude one another, whatever rows they read and write."""

from __future__ import annotations

from enum import IntEnum

from sqlalchemy import Connection, text


class Exclusion(IntEnum):
    """What only one transaction does at a time: numbers of locks of the server."""

    migration = 7_221_001
    #: Reading the actions that count in a budget, and recording another one.
    budgets = 7_221_002


def exclude_others(connection: Connection, work: Exclusion) -> None:
    """Wait for other transactions that do the same, and let none begin before this one ends.

    In SQLite a transaction that writes excludes all others.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": int(work)})
