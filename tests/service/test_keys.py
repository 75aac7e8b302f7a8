"""API keys: what is kept of them, and when they stop to work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from rca.errors import InvalidInput
from rca_api.shell.security import keys
from rca_api.shell.security.keys import ApiKeyRow
from rca_api.shell.security.principal import Scope
from rca_api.shell.store.base import now
from rca_api.shell.store.database import Database


def make(database: Database, *scopes: Scope, life: timedelta | None = None) -> tuple[str, str]:
    with database.session() as session:
        row, key = keys.create(session, "test", scopes, None if life is None else now() + life)
    return row.id, key


def test_a_key_opens_what_it_was_made_for(database: Database) -> None:
    _, key = make(database, Scope.read, Scope.diagnose)
    found = keys.verified(database, key)
    assert found is not None
    assert found.scopes == {Scope.read, Scope.diagnose}
    assert found.may(Scope.read)
    assert not found.may(Scope.train)


def test_admin_may_do_everything(database: Database) -> None:
    found = keys.verified(database, make(database, Scope.admin)[1])
    assert found is not None
    assert all(found.may(scope) for scope in Scope)


def test_the_secret_is_nowhere_in_the_database(database: Database) -> None:
    key_id, key = make(database, Scope.read)
    with database.reading() as session:
        row = session.get_one(ApiKeyRow, key_id)
        kept = " ".join(str(getattr(row, column.key)) for column in ApiKeyRow.__table__.columns)
    assert key.split("_", 2)[2] not in kept


def test_a_changed_key_is_refused(database: Database) -> None:
    _, key = make(database, Scope.read)
    other = "A" if key[-1] != "A" else "B"
    assert keys.verified(database, key[:-1] + other) is None


@pytest.mark.parametrize(
    "given", ["", "rca_", "rca_x_y", "rca_" + "0" * 16 + "_" + "A" * 43, "rca_\x00' OR 1=1"]
)
def test_what_is_no_key_is_refused(database: Database, given: str) -> None:
    assert keys.verified(database, given) is None


def test_a_revoked_key_is_refused_at_once(database: Database) -> None:
    key_id, key = make(database, Scope.read)
    assert keys.verified(database, key) is not None
    with database.session() as session:
        keys.revoke(session, key_id)
    assert keys.verified(database, key) is None


def test_revoking_twice_keeps_the_first_moment(database: Database) -> None:
    key_id, _ = make(database, Scope.read)
    with database.session() as session:
        first = keys.revoke(session, key_id).revoked_at
    with database.session() as session:
        assert keys.revoke(session, key_id).revoked_at == first


def test_a_key_ends_at_its_moment_whatever_the_clock_did_before(database: Database) -> None:
    _, key = make(database, Scope.read, life=timedelta(hours=1))
    assert keys.verified(database, key, now() + timedelta(minutes=59)) is not None
    assert keys.verified(database, key, now() + timedelta(minutes=61)) is None
    assert keys.verified(database, key, now() - timedelta(hours=2)) is not None


def test_use_is_noted_to_the_hour(database: Database) -> None:
    key_id, key = make(database, Scope.read)
    moment = now()
    for minutes in (0, 30, 59):
        keys.verified(database, key, moment + timedelta(minutes=minutes))
    with database.reading() as session:
        assert session.get_one(ApiKeyRow, key_id).used_at == moment
    keys.verified(database, key, moment + timedelta(minutes=61))
    with database.reading() as session:
        assert session.get_one(ApiKeyRow, key_id).used_at == moment + timedelta(minutes=61)


def test_noting_its_use_does_not_bring_a_revoked_key_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_id, key = make(database, Scope.read)
    writing = database.session

    @contextmanager
    def revoked_just_before() -> Iterator[Session]:
        with writing() as session:
            keys.revoke(session, key_id)
        with writing() as session:
            yield session

    monkeypatch.setattr(database, "session", revoked_just_before)
    keys.verified(database, key)
    assert keys.verified(database, key) is None
    with database.reading() as session:
        row = session.get_one(ApiKeyRow, key_id)
    assert row.revoked_at is not None
    assert row.used_at is not None


def test_a_key_without_scope_is_not_made(database: Database) -> None:
    with pytest.raises(InvalidInput, match="needs a scope"):
        make(database)


def test_an_unknown_key_cannot_be_revoked(database: Database) -> None:
    with pytest.raises(InvalidInput, match="there is no key"), database.session() as session:
        keys.revoke(session, "0" * 16)
