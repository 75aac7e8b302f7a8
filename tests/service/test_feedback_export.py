"""Feedback becomes a collection that training takes: labels, groups, provenance, and what is left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from diagnosed import SETTINGS, Clock, diagnosed
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from rca.errors import SourceError
from rca.lab.training.incidents import incident_examples, incidents, learned_incidents
from rca.sources.labels import LabelledCause, WindowLabel, read_collection
from rca.window.window import Window
from rca.workers import HERE
from rca_api.commands.feedback import app
from rca_api.diagnoses.tables import DiagnosisRow, WindowRow
from rca_api.feedback import labels
from rca_api.feedback.export import ExportCounts, export_collection
from rca_api.feedback.tables import FeedbackRow
from rca_api.incidents.announce import Announcer
from rca_api.incidents.service import IncidentTracker
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.store.base import now
from rca_api.shell.store.database import Database
from rca_api.shell.store.window_store import WindowStore
from tests.for_each import for_each

MakeWindow = Callable[..., Window]
SLOW_NIC = WindowLabel(
    failure_mode="fail_slow",
    causes=(LabelledCause(cause="nic_degradation", ranks=(2, 3), nodes=("node-1",)),),
)
SLOW_CPU = WindowLabel(
    failure_mode="fail_slow", causes=(LabelledCause(cause="cpu_contention", nodes=("node-2",)),)
)
HEALTHY = WindowLabel(failure_mode="healthy")


def judge(session: Session, row: DiagnosisRow, label: WindowLabel, **more: object) -> FeedbackRow:
    given = FeedbackRow(
        diagnosis_id=row.id,
        verdict="corrected",
        label=label.model_dump(mode="json"),
        meaning=labels.meaning(label),
        given_by_name="operations",
        note="cable replaced",
        **{"given_by": "key-1"} | more,
    )
    session.add(given)
    session.flush()
    return given


def stored(session: Session, digest: str, **more: Any) -> DiagnosisRow:
    if session.get(WindowRow, digest) is None:
        session.add(WindowRow(digest=digest, job_id="job", n_bytes=1))
        session.flush()
    follower = IncidentTracker(SETTINGS, Announcer(Metrics()), Clock())
    return diagnosed(session, follower, digest=digest, said="nic_degradation", **more)


def exported(database: Database, windows: dict[str, Window], folder: Path) -> ExportCounts:
    def read(digest: str) -> Window:
        if digest not in windows:
            raise SourceError("the window is gone")
        return windows[digest]

    with database.reading() as session:
        return export_collection(session, read, folder)


def test_labelled_windows_can_be_trained_on(
    database: Database, tmp_path: Path, make_window: MakeWindow
) -> None:
    windows = {"a": make_window(late={2: 0.05}), "b": make_window(seed=1), "c": make_window(seed=2)}
    with database.session() as session:
        first = judge(session, stored(session, "a", number=0), SLOW_NIC, reported_by="on-call")
        judge(session, stored(session, "b", number=1), SLOW_CPU)
        judge(session, stored(session, "c", number=0, job="other"), HEALTHY)
    counts = exported(database, windows, tmp_path / "collection")
    assert counts == ExportCounts(written=3)
    collection = read_collection(tmp_path / "collection")
    assert [entry.id for entry in collection] == ["a", "b", "c"]
    a, b, c = collection
    label = a.read_label()
    assert (label.source, label.causes[0].ranks, label.causes[0].nodes) == ("incident", (2, 3), ("node-1",))
    assert f"feedback {first.id}" in label.notes
    assert "on-call" in label.notes
    assert "cable replaced" in label.notes
    # Only the node was named: its ranks are where the job says.
    assert b.read_label().causes[0].ranks == (4, 5)
    assert c.read_label().failure_mode == "healthy"
    groups = [each.group for each in incidents(collection)]
    assert groups[0] == groups[1] != groups[2]
    # A site has few labels, so all of them are learned from.
    assert {each.part for each in incidents(collection)} == {"train"}
    examples = list(incident_examples(learned_incidents(collection.path), 0, workers=HERE, variants=1))
    assert {each.mode for each in examples} <= {"fail_slow", "healthy"}
    again = exported(database, windows, tmp_path / "again")
    assert again == counts
    manifests = [(tmp_path / name / "manifest.json").read_bytes() for name in ("collection", "again")]
    assert manifests[0] == manifests[1]


def test_disputed_withdrawn_missing_and_incomplete_feedback_is_counted_and_left_out(
    database: Database, tmp_path: Path, make_window: MakeWindow
) -> None:
    windows = {name: make_window(n_steps=4) for name in "abde"}
    vague = WindowLabel(failure_mode="fail_slow", causes=(LabelledCause(cause="nic_degradation"),))
    with database.session() as session:
        disputed = stored(session, "a", number=0)
        judge(session, disputed, SLOW_NIC)
        judge(session, disputed, SLOW_CPU, given_by="key-2")
        # The same window, diagnosed twice: the two opinions are about one truth.
        judge(session, stored(session, "b", number=1), SLOW_NIC)
        judge(session, stored(session, "b", number=1), HEALTHY, given_by="key-2")
        judge(session, stored(session, "c", number=2), SLOW_NIC)
        judge(session, stored(session, "d", number=3), vague)
        settled = stored(session, "e", number=4)
        judge(session, settled, SLOW_NIC)
        judge(session, settled, HEALTHY, withdrawn_at=now())
        # Retention deleted this one's window.
        forgotten = diagnosed(session, number=5, said="nic_degradation")
        judge(session, forgotten, SLOW_NIC)
    counts = exported(database, windows, tmp_path / "collection")
    assert counts == ExportCounts(written=1, conflicting=2, missing=2, incomplete=1)
    collection = read_collection(tmp_path / "collection")
    assert [entry.id for entry in collection] == ["e"]
    assert collection.properties["export"]["conflicting"] == 2


def test_the_newest_feedback_of_an_author_is_exported(
    database: Database, tmp_path: Path, make_window: MakeWindow
) -> None:
    windows = {"a": make_window(n_steps=4)}
    with database.session() as session:
        first = stored(session, "a", number=0)
        judge(session, first, SLOW_NIC)
        judge(session, first, SLOW_CPU)
        # On another diagnosis of the same window.
        judge(session, stored(session, "a", number=0), HEALTHY)
    assert exported(database, windows, tmp_path) == ExportCounts(written=1)
    (entry,) = read_collection(tmp_path)
    assert entry.read_label().failure_mode == "healthy"


def test_without_feedback_the_collection_is_empty(database: Database, tmp_path: Path) -> None:
    assert exported(database, {}, tmp_path) == ExportCounts()
    assert len(read_collection(tmp_path)) == 0


@for_each(
    ("one", "other", "same"),
    [
        (SLOW_NIC, SLOW_NIC.model_copy(update={"pattern": "persistent"}), True),
        (
            SLOW_NIC,
            WindowLabel(
                failure_mode="fail_slow", causes=(LabelledCause(cause="nic_degradation", ranks=(3, 2)),)
            ),
            True,
        ),
        (SLOW_NIC, SLOW_CPU, False),
        (SLOW_NIC, HEALTHY, False),
        (SLOW_NIC, SLOW_NIC.model_copy(update={"failure_mode": "fail_stop"}), False),
    ],
)
def test_labels_that_agree_have_one_meaning(one: WindowLabel, other: WindowLabel, same: bool) -> None:
    assert (labels.meaning(one) == labels.meaning(other)) is same


def test_the_command_writes_a_collection_and_counts_what_it_leaves_out(
    tmp_path: Path, make_window: MakeWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RCA_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("RCA_DATABASE_URL", f"sqlite:///{tmp_path / 'rca.db'}")
    database = Database(f"sqlite:///{tmp_path / 'rca.db'}")
    database.upgrade()
    digest = WindowStore(str(tmp_path / "data" / "windows")).put(make_window(late={2: 0.05})).digest
    with database.session() as session:
        judge(session, stored(session, digest, number=0), SLOW_NIC)
        judge(session, stored(session, "gone", number=1), SLOW_NIC)
    database.close()
    ran = CliRunner().invoke(app, ["export", str(tmp_path / "all")])
    assert ran.exit_code == 0, ran.output
    assert "1 windows in" in ran.output
    assert "left out: 1 no longer stored" in ran.output
    assert [each.summary["split"] for each in read_collection(tmp_path / "all")] == ["train"]
    assert CliRunner().invoke(app, ["export", str(tmp_path / "parts"), "--hold-out"]).exit_code == 0
    assert "split" not in next(iter(read_collection(tmp_path / "parts"))).summary
