"""The SQLite file of an MLflow store is complete or not there, whoever is killed while it is made."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.for_each import for_each

pytest.importorskip("mlflow")

from rca.errors import SourceError
from rca.lab.training import store_file
from rca.lab.training.store_file import complete_file
from rca.lab.training.tracking import check_store, open_store

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    # MLflow asks SQLAlchemy for it.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
]
#: The newest revision is written last.
UNFINISHED = "UPDATE alembic_version SET version_num = '451aebb31d03'"
N_KILLS = 10
PROCESSES = Path(__file__).with_name("store_processes.py")


@pytest.fixture(scope="module")
def processes(request: pytest.FixtureRequest) -> Any:
    """What came of two processes at once, and, with `--long`, of ten that were killed."""
    n_kills = N_KILLS if request.config.getoption("--long") else 0
    # MLflow waits for the disk some hundred times.
    memory = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        command = [sys.executable, "-W", "ignore", PROCESSES, folder, str(n_kills)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A complete file without data."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    check_store(f"sqlite:///{path}")
    return path.read_bytes()


@pytest.fixture
def copies(made: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """New files are copies, because MLflow takes seconds to make one."""
    monkeypatch.setattr(store_file, "_make_tables", lambda path, _: path.write_bytes(made))


def edit(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


def revision(path: Path) -> str:
    with closing(sqlite3.connect(path)) as database:
        return str(database.execute("SELECT version_num FROM alembic_version").fetchone()[0])


@pytest.mark.long
def test_a_store_can_be_opened_whenever_its_maker_was_killed(processes: Any) -> None:
    found = processes["killed"]
    assert len(found["states"]) == N_KILLS
    assert "in part" not in found["states"]
    assert found["opens"]


@pytest.mark.long
def test_processes_that_start_together_make_one_store(processes: Any) -> None:
    assert processes["together"] == {"statuses": [0, 0], "opens": True}


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize(
    "statements",
    [
        ("DROP TABLE runs", UNFINISHED),
        ("DROP TABLE runs", "DELETE FROM alembic_version"),
        (UNFINISHED,),
        ("DROP TABLE alembic_version",),
    ],
)
def test_a_file_that_an_earlier_version_left_in_part_is_made_anew(
    tmp_path: Path, made: bytes, statements: tuple[str, ...]
) -> None:
    path = tmp_path / "mlflow.db"
    path.write_bytes(made)
    whole = revision(path)
    edit(path, *statements)
    complete_file(path)
    assert revision(path) == whole
    with open_store(f"sqlite:///{path}"):
        pass


@pytest.mark.usefixtures("copies")
def test_an_empty_file_and_left_files_of_a_killed_process_do_not_matter(tmp_path: Path, made: bytes) -> None:
    path = tmp_path / "mlflow.db"
    path.touch()
    for name in (".mlflow.db.new", ".mlflow.db.new-journal", "mlflow.db-journal", ".mlflow.db.lock"):
        (tmp_path / name).write_bytes(made[:5000])
    complete_file(path)
    check_store(f"sqlite:///{path}")
    assert sorted(each.name for each in tmp_path.iterdir()) == [".mlflow.db.lock", "mlflow.db"]


@pytest.mark.parametrize(
    "row",
    [
        "INSERT INTO registered_models (name) VALUES ('straggler-rca')",
        "INSERT INTO experiments (experiment_id, name, workspace) VALUES (7, 'straggler-rca', 'default')",
    ],
)
def test_a_file_in_part_with_data_is_left_alone_and_the_error_says_what_to_do(
    tmp_path: Path, made: bytes, row: str
) -> None:
    path = tmp_path / "mlflow.db"
    path.write_bytes(made)
    edit(path, row, UNFINISHED)
    before = path.read_bytes()
    with pytest.raises(SourceError, match="unfinished schema") as caught:
        complete_file(path)
    assert "mlflow db upgrade" in (caught.value.hint or "")
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    path.write_text("not a database, but long enough to be one" * 100)
    with pytest.raises(SourceError, match="cannot be read"):
        complete_file(path)
    with pytest.raises(SourceError, match="cannot be read"):
        complete_file(tmp_path)


def test_a_folder_that_cannot_be_made_is_reported() -> None:
    with pytest.raises(SourceError, match="cannot be written"):
        complete_file(Path("/proc/nowhere/mlflow.db"))


@for_each(
    ("uri", "file"),
    [
        ("sqlite:////data/mlflow.db", Path("/data/mlflow.db")),
        ("sqlite:///mlflow.db", Path("mlflow.db")),
        ("sqlite:///mlflow.db?timeout=5", Path("mlflow.db")),
        ("sqlite:///:memory:", None),
        ("sqlite://", None),
        ("http://mlflow:5000", None),
        ("postgresql://mlflow@db/mlflow", None),
    ],
)
def test_only_stores_in_a_file_have_one(uri: str, file: Path | None) -> None:
    assert store_file.store_file(uri) == file


@for_each(
    "uri",
    [
        "http://user:s3cretpw@127.0.0.1:1/mlflow",
        "http://user:s3cret%70w@127.0.0.1:1",
        "foo://user:s3cretpw@db/mlflow?password=s3cretpw",
        "mssql+pyodbc://user:s3cretpw@db/mlflow",
        "postgresql://user:s3cretpw@127.0.0.1:port/mlflow",
        "s3cretpw",
    ],
)
def test_an_error_of_the_store_does_not_hold_its_password(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(SourceError) as caught:
        check_store(uri)
    assert "s3cret" not in caught.value.message + str(caught.value.hint)
