"""Pages: together they are the list, for any size and with rows added meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from answers_made_up import answer, kept
from sqlalchemy import select

from rca_api.diagnoses import repository
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.shell.requests.pagination import page
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.store.database import Database

KEYS = (DiagnosisRow.created_at, DiagnosisRow.id)
START = datetime(2026, 1, 1, tzinfo=UTC)


def add(database: Database, seconds: list[int]) -> None:
    with database.session() as session:
        for each in seconds:
            at = START + timedelta(seconds=each)
            repository.add_done(session, kept(), answer(), asked_by=None, at=at)


def pages(database: Database, limit: int) -> list[list[str]]:
    held, cursor = [], None
    while True:
        with database.reading() as session:
            found = page(
                session,
                select(DiagnosisRow),
                keys=KEYS,
                limit=limit,
                cursor=cursor,
                read=lambda row: row.id,
            )
        held.append(found.items)
        cursor = found.next
        if cursor is None:
            return held


@pytest.mark.parametrize("limit", [1, 3, 7, 50])
def test_pages_together_are_the_list_newest_first(database: Database, limit: int) -> None:
    add(database, [0, 1, 1, 1, 2, 5, 5])
    with database.reading() as session:
        rows = session.scalars(select(DiagnosisRow)).all()
    expected = [row.id for row in sorted(rows, key=lambda row: (row.created_at, row.id), reverse=True)]
    found = pages(database, limit)
    assert [each for items in found for each in items] == expected
    assert all(len(items) == limit for items in found[:-1])


def test_rows_added_meanwhile_do_not_shift_pages(database: Database) -> None:
    add(database, [0, 1, 2, 3])
    with database.reading() as session:
        first = page(session, select(DiagnosisRow), keys=KEYS, limit=2, cursor=None, read=lambda row: row.id)
    add(database, [9, 9])
    with database.reading() as session:
        second = page(
            session, select(DiagnosisRow), keys=KEYS, limit=9, cursor=first.next, read=lambda row: row.id
        )
    assert len(second.items) == 2
    assert not set(first.items) & set(second.items)


@pytest.mark.parametrize(
    "cursor", ["", "x", "e30", "W10", "WzEsMl0", "WyIwMDAxLTAxLTAxVDAwOjAwOjAwKzIzOjU5IiwiIl0", "é"]
)
def test_an_invalid_cursor_is_refused(database: Database, cursor: str) -> None:
    with database.reading() as session, pytest.raises(ProblemError) as caught:
        page(session, select(DiagnosisRow), keys=KEYS, limit=2, cursor=cursor, read=lambda row: row.id)
    assert caught.value.code == "invalid-parameters"
