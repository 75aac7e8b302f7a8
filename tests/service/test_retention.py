"""Retention deletes windows that are old or too many, and none that is in use."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from answers_made_up import answer, kept
from sqlalchemy import func, select

from rca.window.window import Window
from rca_api.diagnoses import repository
from rca_api.diagnoses.journal import Journal
from rca_api.diagnoses.tables import DiagnosisRow, WindowRow
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.settings.settings import Settings
from rca_api.shell.store.base import now
from rca_api.shell.store.database import Database
from rca_api.shell.store.window_store import WindowStore
from rca_api.stored_windows.retention import Keeper, Retention

NOW = datetime(2026, 6, 1, tzinfo=UTC)
#: Files made by a test are as young as it is.
NO_GRACE = -1.0


@pytest.fixture(params=["{folder}", "memory://{folder}"], ids=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> WindowStore:
    return WindowStore(request.param.format(folder=tmp_path / "windows"))


@pytest.fixture
def add(database: Database, store: WindowStore, make_window):
    def stored(name: str, days_ago: float, *, queued: bool = False) -> str:
        small: Window = make_window(2, 3)
        put = store.put(replace(small, job=small.job.model_copy(update={"job_id": name})))
        window = kept(digest=put.digest, n_bytes=100, job_id=name)
        at = NOW - timedelta(days=days_ago)
        with database.session() as session:
            if queued:
                repository.add_queued(session, window, diagnosis_id=name, asked_by=None, turn=0, at=at)
            else:
                repository.add_done(session, window, answer(), asked_by=None, at=at)
        return put.digest

    return stored


def prune(database: Database, store: WindowStore, *keepers: Keeper, **settings: float) -> tuple[int, int]:
    retention = Retention(database, store, Settings(**settings), keepers)  # type: ignore[arg-type]
    announced = retention.count(NOW)
    done = retention.prune(NOW, NO_GRACE)
    assert (announced.windows, announced.n_bytes) == (done.windows, done.n_bytes)
    return done.windows, done.orphans


def left(database: Database, store: WindowStore) -> set[str]:
    with database.reading() as session:
        rows = set(session.scalars(select(WindowRow.digest)))
    assert rows == set(store.digests())
    return rows


def test_old_windows_are_deleted_and_their_diagnoses_stay(
    database: Database, store: WindowStore, add
) -> None:
    add("old", 31)
    young = add("young", 29)
    assert prune(database, store, window_days=30) == (1, 0)
    assert left(database, store) == {young}
    with database.reading() as session:
        rows = session.scalars(select(DiagnosisRow).order_by(DiagnosisRow.created_at)).all()
        assert [row.window_digest for row in rows] == [None, young]


def test_over_the_size_limit_the_windows_used_longest_ago_are_deleted(
    database: Database, store: WindowStore, add
) -> None:
    digests = [add(f"w{number}", 10 - number) for number in range(5)]
    assert prune(database, store, max_window_store_bytes=250) == (3, 0)
    assert left(database, store) == set(digests[3:])


def test_a_window_in_use_stays(database: Database, store: WindowStore, add) -> None:
    waiting, wanted = add("waiting", 99, queued=True), add("wanted", 99)
    add("old", 99)
    assert prune(database, store, WindowRow.job_id == "wanted", window_days=30) == (1, 0)
    assert left(database, store) == {waiting, wanted}
    assert prune(database, store, WindowRow.job_id == "wanted", max_window_store_bytes=1) == (0, 0)


def test_a_window_that_is_posted_again_is_kept(database: Database, store: WindowStore, add) -> None:
    add("w", 99)
    digest = add("w", 1)
    assert prune(database, store, window_days=30) == (0, 0)
    assert left(database, store) == {digest}


def test_old_files_without_a_row_are_deleted(database: Database, store: WindowStore, make_window) -> None:
    store.put(make_window(2, 3))
    retention = Retention(database, store, Settings())
    assert retention.prune(NOW).orphans == 0
    assert retention.prune(NOW, NO_GRACE).orphans == 1
    assert left(database, store) == set()


@pytest.fixture
def again(database: Database, store: WindowStore, make_window):
    """Store a window and then promise it, as a request does in two steps."""
    journal = Journal(database, Metrics(), (), store.has)
    small: Window = make_window(2, 3)

    def storing() -> Callable[[], None]:
        window = kept(digest=store.put(small).digest)
        return lambda: journal.record(window, answer(), asked_by=None)

    return storing


def promised(database: Database) -> int:
    with database.reading() as session:
        return session.scalar(select(func.count()).where(DiagnosisRow.window_digest.is_not(None))) or 0


@pytest.mark.parametrize("has_row", [True, False], ids=["old", "orphan"])
def test_a_window_that_was_deleted_after_it_was_stored_is_refused(
    database: Database, store: WindowStore, again, has_row: bool
) -> None:
    if has_row:
        again()()
    promise = again()
    Retention(database, store, Settings()).prune(now() + timedelta(days=999), NO_GRACE)
    with pytest.raises(ProblemError, match="send it again"):
        promise()
    assert (promised(database), left(database, store)) == (0, set())
    again()()
    assert (promised(database), len(left(database, store))) == (1, 1)


@pytest.mark.parametrize("has_row", [True, False], ids=["old", "orphan"])
def test_a_request_for_a_window_that_is_being_deleted_waits_and_is_refused(
    database: Database, store: WindowStore, again, has_row: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_row:
        again()()
    promise, delete = again(), store.delete

    def deleting(*arguments: Any, **options: Any) -> bool:
        meanwhile.append(beside.submit(promise))
        wait(meanwhile, timeout=0.3)
        return delete(*arguments, **options)

    meanwhile: list[Future[None]] = []
    monkeypatch.setattr(store, "delete", deleting)
    with ThreadPoolExecutor(1) as beside:
        Retention(database, store, Settings()).prune(now() + timedelta(days=999), NO_GRACE)
    with pytest.raises(ProblemError, match="send it again"):
        meanwhile[0].result()
    assert (promised(database), left(database, store)) == (0, set())


def test_a_window_queued_just_before_its_deletion_stays(
    database: Database, store: WindowStore, again, monkeypatch: pytest.MonkeyPatch
) -> None:
    again()()
    retention = Retention(database, store, Settings(window_days=30))
    doomed = retention._doomed

    def chosen(at: datetime) -> Any:
        rows = doomed(at)
        again()()
        return rows

    monkeypatch.setattr(retention, "_doomed", chosen)
    assert retention.prune(now() + timedelta(days=999), NO_GRACE).windows == 0
    assert (promised(database), len(left(database, store))) == (2, 1)
