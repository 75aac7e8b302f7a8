"""The command that counts or deletes old rows."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from test_old_rows import NOW, count, diagnosis

from rca.cli import run
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.shell.store.base import now
from rca_api.shell.store.database import Database


@pytest.fixture
def command(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("RCA_DATABASE_URL", database_url)
    monkeypatch.setenv("RCA_DATA_DIR", str(tmp_path))

    def prune(*options: str) -> None:
        with suppress(SystemExit):
            run(("db", "prune", *options))

    return prune


def test_the_command_counts_or_deletes_and_says_what(
    database: Database, command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for days in (500, 200):
        diagnosis(database, days - (now() - NOW).days)

    def shown(*options: str) -> list[list[str]]:
        command(*options)
        return [line.split() for line in capsys.readouterr().out.splitlines()]

    assert ["diagnoses", "365", "days", "1"] in shown("--dry-run")
    assert ["diagnoses", "90d", "2"] in shown("--dry-run", "--older-than", "90d")
    assert count(database, DiagnosisRow) == 2
    table = shown()
    assert ["diagnoses", "365", "days", "1"] in table
    assert ["jobs", "365", "days", "0"] in table
    assert count(database, DiagnosisRow) == 1
    assert ["diagnoses", "1h", "1"] in shown("--dry-run", "--older-than", "1h")
    assert ["diagnoses", "24h", "1"] in shown("--older-than", "24h")


def test_a_dry_run_creates_and_migrates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    monkeypatch.setenv("RCA_DATA_DIR", str(folder))

    def refused() -> str:
        with pytest.raises(SystemExit) as left:
            run(("db", "prune", "--dry-run"))
        assert left.value.code == 2
        return capsys.readouterr().err

    assert "the database does not exist yet" in refused()
    assert not folder.exists()
    database = Database(f"sqlite:///{folder / 'rca.db'}")
    database.upgrade("0001")
    assert "this version needs" in refused()
    assert database.schema().current == "0001"
    database.close()


def test_the_space_of_a_file_returns_to_the_disk_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RCA_DATA_DIR", str(tmp_path))
    path = tmp_path / "rca.db"
    database = Database(f"sqlite:///{path}")
    database.upgrade()
    for number in range(10):
        diagnosis(database, 500 - (now() - NOW).days, window_end=float(number), problem=b"x" * 100_000)
    database.close()
    before = path.stat().st_size
    for options, smaller, said in (
        ((), False, "bytes of the file are free"),
        (("--vacuum",), True, "no free space"),
    ):
        with suppress(SystemExit):
            run(("db", "prune", *options))
        assert (path.stat().st_size < before / 2) is smaller
        assert said in capsys.readouterr().out
