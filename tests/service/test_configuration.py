"""Every setting is described once, and shown without its secrets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rca.cli import run
from rca_api.shell.settings import environment
from rca_api.shell.settings.settings import Settings
from tests.for_each import for_each


def shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        run(["serve", "--print-config", *arguments])
    assert not left.value.code
    return capsys.readouterr().out


@for_each("name", Settings.model_fields)
def test_every_setting_says_what_it_is(name: str) -> None:
    description = Settings.model_fields[name].description
    assert description, f"write a docstring below {name} in rca_api/shell/settings/settings.py"
    assert description.strip()[-1] in ".;:)", description


def test_the_table_has_every_setting() -> None:
    table = environment.table()
    assert table.count("\n| `RCA_") == len(Settings.model_fields)
    assert "| `RCA_QUEUE_LIMIT` | `32` |" in table


def test_set_values_are_lines_and_defaults_are_comments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RCA_QUEUE_LIMIT", "7")
    monkeypatch.setenv("RCA_MAX_BODY_BYTES", "1000003")
    lines = shown([], capsys).splitlines()
    assert "RCA_QUEUE_LIMIT=7" in lines
    assert "RCA_MAX_BODY_BYTES=1000003" in lines
    assert "# RCA_MAX_DECODED_BYTES=256MiB" in lines
    assert all(not line or line.startswith(("#", "RCA_")) for line in lines)


def test_the_lines_set_the_same_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("RCA_MAX_BODY_BYTES", "3.5MiB")
    monkeypatch.setenv("RCA_PRIORS", "a folder/priors.json")
    before = Settings()
    file = tmp_path / "service.env"
    file.write_text(shown([], capsys))
    monkeypatch.delenv("RCA_MAX_BODY_BYTES")
    monkeypatch.delenv("RCA_PRIORS")
    assert Settings() != before
    assert Settings(_env_file=file) == before


def test_passwords_are_not_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RCA_DATABASE_URL", "postgresql://rca:hidden-word@db/rca")
    monkeypatch.setenv("RCA_RATE_LIMIT_STORAGE_URL", "redis://:other-word@cache:6379")
    for form in ("env", "json"):
        printed = shown(["--format", form], capsys)
        assert "hidden-word" not in printed
        assert "other-word" not in printed
        assert "db/rca" in printed


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://h/db?user=u&password=hidden-word",
        "postgresql://u:hid/den-word@h/db",
    ],
)
def test_passwords_are_not_shown_however_they_are_written(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RCA_DATABASE_URL", address)
    for form in ("env", "json"):
        printed = shown(["--format", form], capsys)
        assert printed.count("***") == 1
        assert "den-word" not in printed


def test_json_says_where_a_value_is_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RCA_DEADLINE_SECONDS", "12.5")
    held = {each["variable"]: each for each in json.loads(shown(["--format", "json"], capsys))}
    assert held["RCA_DEADLINE_SECONDS"]["value"] == "12.5"
    assert held["RCA_DEADLINE_SECONDS"]["default"] == "60"
    assert held["RCA_DEADLINE_SECONDS"]["source"] == "environment"
    assert held["RCA_MIGRATE"]["value"] == "true"
    assert held["RCA_MIGRATE"]["source"] == "default"
