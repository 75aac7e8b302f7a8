"""`rca keys` and `rca db`, as an operator types them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from rca.cli import run
from rca_api.shell.security import keys
from rca_api.shell.security.principal import Scope
from rca_api.shell.store.database import Database

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(database_url: str, command: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run a command on the database of the test; gives its code and what it wrote."""
    monkeypatch.setenv("RCA_DATABASE_URL", database_url)
    return command


@pytest.fixture
def call_on_empty(empty_database_url: str, command: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    """As `call`, on a database without tables."""
    monkeypatch.setenv("RCA_DATABASE_URL", empty_database_url)
    return command


@pytest.fixture(name="command")
def _command(capsys: pytest.CaptureFixture[str]) -> Call:
    def command(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            run(arguments)
        written = capsys.readouterr()
        return int(left.value.code or 0), written.out, written.err

    return command


def test_a_key_is_made_used_listed_and_revoked(call: Call, database_url: str) -> None:
    code, out, _ = call(
        "keys", "create", "--scope", "diagnose", "--scope", "read", "--name", "bot", "--quiet"
    )
    assert code == 0
    key = out.strip()
    database = Database(database_url)
    found = keys.verified(database, key)
    assert found is not None
    assert found.scopes == {Scope.diagnose, Scope.read}
    held = json.loads(call("keys", "list", "--json")[1])
    assert [(each["name"], each["scopes"]) for each in held] == [("bot", ["diagnose", "read"])]
    assert key.split("_", 2)[2] not in call("keys", "list")[1]
    assert "is revoked" in call("keys", "revoke", held[0]["id"])[1]
    assert keys.verified(database, key) is None
    database.close()


def test_a_life_is_kept(call: Call) -> None:
    assert call("keys", "create", "--scope", "read", "--expires", "12h")[0] == 0
    assert json.loads(call("keys", "list", "--json")[1])[0]["expires_at"] is not None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--scope", "everything"), "scopes are diagnose, read"),
        (("--scope", "read", "--expires", "soon"), "such as 90d"),
        (("--scope", "read", "--expires", "0d"), "such as 90d"),
    ],
)
def test_wrong_arguments_say_what_is_right(call: Call, arguments: tuple[str, ...], told: str) -> None:
    code, _, err = call("keys", "create", *arguments)
    assert code == 2
    assert told in err


def test_revoking_what_is_not_there(call: Call) -> None:
    code, _, err = call("keys", "revoke", "0123456789abcdef")
    assert code == 2
    assert "rca keys list" in err


def test_the_exit_code_of_status_shows_whether_an_upgrade_is_due(call_on_empty: Call) -> None:
    assert call_on_empty("db", "status")[0] == 1
    assert call_on_empty("db", "upgrade")[0] == 0
    code, out, _ = call_on_empty("db", "status")
    assert code == 0
    assert "nothing to do" in call_on_empty("db", "upgrade")[1]
    assert "newest" in out


def test_a_newer_schema_is_left_alone_and_no_error(call: Call, database_url: str) -> None:
    database = Database(database_url)
    with database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    database.close()
    code, out, _ = call("db", "upgrade")
    assert code == 0
    assert "schema 9999 is newer than" in out
    assert call("db", "status")[0] == 0
    assert call("keys", "list")[0] == 0
    assert call("worker", "--once")[0] == 0
