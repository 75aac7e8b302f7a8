"""Each window of an archive gets one answer, whatever interrupts the sweep; bad windows do not end it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import rca
from rca.cli import run as rca_command
from rca.diagnosis.bundle import baseline
from rca.errors import InvalidInput, SourceError
from rca.sweep import Answers, Swept, archived, sweep
from rca.sweep import answers as module
from rca.sweep.answers import SCHEMA
from rca.sweep.data_set import Row
from rca.sweep.incident_report import incident_report
from rca.sweep.report import SweepReport
from rca.workers import Workers

fsspec = pytest.importorskip("fsspec", reason="the extra [scale] is not installed")

WINDOWS = Path(__file__).resolve().parents[2] / "data" / "windows"
NAMES = ("cpu-contention-node", "healthy", "killed-rank")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Two directories, a file, and two files that are no windows."""
    folder = tmp_path / "archive"
    for name in NAMES[:2]:
        shutil.copytree(WINDOWS / name, folder / "deep" / name)
    (folder / "killed.json.gz").write_bytes(gzipped(rca.read_window(WINDOWS / "killed-rank").to_json()))
    (folder / "bad.json").write_text('{"steps": []}')
    (folder / "notes.txt").write_text("not a window")
    (folder / "manifest.json").write_text("{}")
    return folder


def gzipped(content: bytes) -> bytes:
    import gzip

    return gzip.compress(content)


def swept(archive: Path | str, folder: Path | str, **options: Any) -> Swept:
    return sweep(archived([str(archive)]), Answers(str(folder)), bundle=baseline(), **options)


def rows(folder: Path | str) -> dict[str, Row]:
    return {row["url"].rsplit("/", 1)[-1]: row for row in Answers(str(folder)).read().to_pylist()}


def test_windows_are_found_by_their_files(archive: Path) -> None:
    found = archived([str(archive), str(archive / "deep")])
    names = [Path(each.url).relative_to(archive).as_posix() for each in found]
    assert names == ["bad.json", "deep/cpu-contention-node", "deep/healthy", "killed.json.gz"]
    assert all(each.is_local and each.n_bytes > 0 for each in found)


def test_each_window_gets_the_answer_of_diagnose(archive: Path, tmp_path: Path) -> None:
    done = swept(archive, tmp_path / "answers")
    assert (done.found, done.kept) == (4, 0)
    assert done.outcomes == {"fail_slow": 1, "healthy": 1, "fail_stop": 1, "refused": 1}
    found = rows(tmp_path / "answers")
    slow = found["cpu-contention-node"]
    alone = rca.diagnose(rca.read_window(archive / "deep" / "cpu-contention-node"))
    document = json.loads(slow["document"])
    for name in ("diagnosis_id", "created_at"):
        del document[name]
    assert alone.to_dict() | document == alone.to_dict()
    assert (slow["cause"], slow["nodes"], slow["ranks"]) == ("cpu_contention", ["node-1"], [2, 3])
    (named,) = slow["causes"]
    part = alone.causes[0].seconds_per_step / alone.slowdown.seconds_per_step
    assert named["gpu_hours_lost"] == pytest.approx(alone.slowdown.gpu_hours_lost * part)
    assert 0 < part < 1
    assert slow["gpu_hours_lost"] == alone.slowdown.gpu_hours_lost > 0
    assert slow["window_start"].tzinfo is not None
    assert found["bad.json"]["error"] == "invalid-window"
    assert found["bad.json"]["error_message"].startswith("job: is missing")
    assert found["bad.json"]["verdict"] is None


def test_a_repeated_sweep_only_looks_at_what_is_new(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept(archive, tmp_path / "answers")
    before = rows(tmp_path / "answers")
    shutil.copytree(WINDOWS / "killed-rank", archive / "killed-rank")
    (archive / "bad.json").write_text("mended, but still no window")
    again = swept(archive, tmp_path / "answers")
    assert (again.found, again.kept) == (5, 3)
    assert again.outcomes == {"fail_stop": 1, "refused": 1}
    after = rows(tmp_path / "answers")
    assert len(after) == 5
    assert after["healthy"] == before["healthy"]
    assert after["bad.json"]["error_message"] != before["bad.json"]["error_message"]


def test_an_interrupted_sweep_keeps_its_answers(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = 0

    def interrupted(*given: Any, **options: Any) -> Any:
        nonlocal answered
        answered += 1
        if answered == 2:
            raise KeyboardInterrupt
        return rca.diagnose(*given, **options)

    monkeypatch.setattr(module, "diagnose", interrupted)
    with pytest.raises(KeyboardInterrupt):
        swept(archive, tmp_path / "answers")
    assert set(rows(tmp_path / "answers")) == {"bad.json", "cpu-contention-node"}
    assert swept(archive, tmp_path / "answers").kept == 2
    assert len(rows(tmp_path / "answers")) == 4


@pytest.fixture
def bucket() -> Iterator[str]:
    """A bucket in the memory of this process."""
    files = fsspec.filesystem("memory")
    for path in (WINDOWS / "healthy").iterdir():
        files.pipe_file(f"/windows/healthy/{path.name}", path.read_bytes())
    files.pipe_file("/windows/killed.json", rca.read_window(WINDOWS / "killed-rank").to_json())
    yield "memory://"
    files.rm("/", recursive=True)


def test_buckets_are_read_and_written(bucket: str) -> None:
    done = swept(f"{bucket}windows", f"{bucket}answers")
    assert done.outcomes == {"healthy": 1, "fail_stop": 1}
    assert {row["url"] for row in Answers(f"{bucket}answers").read().to_pylist()} == {
        "memory:///windows/healthy",
        "memory:///windows/killed.json",
    }
    assert swept(f"{bucket}windows", f"{bucket}answers").kept == 2


def test_places_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file or directory"):
        archived([str(tmp_path / "nowhere")])
    with pytest.raises(InvalidInput, match="nonsense"):
        archived(["nonsense://bucket"])
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match="cannot be written"):
        Answers(str(tmp_path / "file" / "answers")).write([row(1)])


T0 = datetime(2026, 11, 27, 3, tzinfo=UTC)


def cause(name: str = "gpu_throttling", gpu_hours: float | None = 2.0, *nodes: str) -> dict[str, Any]:
    place = {"ranks": [8, 9], "nodes": list(nodes or ("node-1",))}
    return {"cause": name, "probability": 0.9, "gpu_hours_lost": gpu_hours, **place}


def row(number: int, **changes: Any) -> Row:
    """A slow window of ten minutes, a quarter of an hour after the one before."""
    start = T0 + timedelta(minutes=15 * number)
    facts = {
        "url": f"w{number}", "version": "1", "model_sha256": "m", "swept_at": T0, "job_id": "job",
        "window_start": start, "window_end": start + timedelta(minutes=10), "verdict": "fail_slow",
        "failure_mode": "fail_slow", "causes": [cause()], "ranks": [8, 9], "nodes": ["node-1"],
        "gpu_hours_lost": 2.0,
    }  # fmt: skip
    return dict.fromkeys(SCHEMA.names) | facts | changes


def summed(tmp_path: Path, *held: Row) -> SweepReport:
    answers = Answers(str(tmp_path / "answers"))
    answers.write(held)
    return incident_report(answers)


def of(found: SweepReport, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """Columns of a table of the report."""
    return [tuple(row[name] for name in columns) for row in found.tables[table].rows.to_dict("records")]


def test_windows_of_one_fault_are_one_incident(tmp_path: Path) -> None:
    later = row(20)
    found = summed(
        tmp_path,
        row(0),
        row(1),
        later,
        row(2, causes=[cause("gpu_throttling", 2.0, "node-2")]),
        row(3, job_id="other"),
    )
    assert of(found, "incidents", "job_id", "places", "windows") == [
        ("job", ("node-1",), 2),
        ("job", ("node-1",), 1),
        ("job", ("node-2",), 1),
        ("other", ("node-1",), 1),
    ]
    assert of(found, "causes", "name", "incidents", "jobs", "windows", "gpu_hours") == [
        ("gpu_throttling", 4, 2, 5, 10.0),
    ]
    assert of(found, "nodes", "name", "gpu_hours") == [("node-1", 8.0), ("node-2", 2.0)]
    assert found.facts["gpu_hours_lost"] == 10.0


def test_each_cause_has_its_part_of_the_loss(tmp_path: Path) -> None:
    held = [
        cause("nic_degradation", 0.5),
        cause("gpu_throttling", 1.0, "node-1", "node-2"),
        cause("unknown", 0.2),
    ]
    found = summed(tmp_path, row(0, causes=held))
    assert dict(of(found, "causes", "name", "gpu_hours")) == {
        "nic_degradation": 0.5, "gpu_throttling": 1.0, "no cause named": 0.2,
    }  # fmt: skip
    assert dict(of(found, "nodes", "name", "gpu_hours")) == {
        "node-1": pytest.approx(1.2),
        "node-2": 0.5,
    }
    assert (found.facts["gpu_hours_lost"], found.facts["gpu_hours_unexplained"]) == (2.0, 0.5)


def test_rival_guesses_are_no_incidents_and_jobs_have_all_of_their_loss(tmp_path: Path) -> None:
    guess = cause("process_crash", 0.3, "node-2") | {"probability": 0.05}
    found = summed(tmp_path, row(0, causes=[cause("hang", 1.5), guess]))
    assert of(found, "incidents", "cause") == [("hang",)]
    assert (found.facts["gpu_hours_unexplained"], of(found, "by_job", "gpu_hours")) == (0.5, [(2.0,)])


def test_parts_of_the_causes_are_not_above_the_loss() -> None:
    from rca.diagnosis.result import Slowdown
    from rca.sweep.answers import _causes

    slowdown = Slowdown(
        ratio=2.0,
        seconds_per_step=1.0,
        versus_own_past=None,
        interval=None,
        gpu_hours_lost=5.0,
        gpu_hours_idle=3.0,
    )
    named = rca.diagnose(rca.read_window(WINDOWS / "cpu-contention-node")).causes[0]
    stop = named.model_copy(update={"cause": "hang", "seconds_per_step": None})
    slow = named.model_copy(update={"seconds_per_step": 0.8})
    parts = [each["gpu_hours_lost"] for each in _causes([stop, stop.model_copy(), slow, slow], slowdown)]
    assert parts == [3.0, None, pytest.approx(1.0), pytest.approx(1.0)]


def test_time_that_several_windows_cover_counts_once(tmp_path: Path) -> None:
    half = row(0, url="half", window_start=T0 + timedelta(minutes=5), window_end=T0 + timedelta(minutes=15))
    found = summed(tmp_path, row(0), row(0, url="copy"), half, row(0, url="other", job_id="other"))
    assert found.facts["gpu_hours_lost"] == pytest.approx(2.0 + 1.0 + 2.0)
    assert of(found, "by_job", "gpu_hours") == [(pytest.approx(3.0),), (2.0,)]


def test_nodes_of_undecided_windows_are_suspects_without_a_cost(tmp_path: Path) -> None:
    found = summed(tmp_path, row(0, verdict="undecided"), row(1, verdict="undecided", failure_mode="healthy"))
    assert of(found, "suspects", "name", "windows", "gpu_hours") == [("node-1", 1, 0.0)]
    assert "named by undecided windows" in found.to_html()


def test_answers_of_two_models_are_named(tmp_path: Path, rca_command: Any) -> None:
    summed(tmp_path, row(0), row(1, model_sha256="n"))
    assert (
        "answers of 2 models: m (1 windows), n (1 windows)"
        in rca_command("sweep", "report", tmp_path / "answers").out
    )


def test_only_faults_are_incidents(tmp_path: Path) -> None:
    found = summed(
        tmp_path,
        row(0, verdict="healthy", failure_mode="healthy"),
        row(1, verdict="undecided"),
        row(2, verdict=None, error="invalid-window", error_message="no rows", window_start=None),
        row(3, causes=[cause("unknown")]),
        row(4, causes=[], nodes=[], window_start=None, window_end=None),
    )
    assert of(found, "incidents", "cause", "begin") == [
        ("no cause named", "unknown"), ("no cause named", "2026-11-27 03:45"),
    ]  # fmt: skip
    assert found.facts["verdicts"] == {"fail_slow": 2, "healthy": 1, "refused": 1, "undecided": 1}
    assert found.refused.to_numpy().tolist() == [["w2", "no rows"]]
    assert json.loads(found.to_json())["incidents"][0]["start"] is None


def test_the_newest_answer_about_a_window_counts(tmp_path: Path) -> None:
    answers = Answers(str(tmp_path / "answers"))
    answers.write([row(0)])
    answers.write([row(0, version="2", swept_at=T0 + timedelta(days=1), causes=[cause("nic_degradation")])])
    assert of(incident_report(answers), "incidents", "cause") == [("nic_degradation",)]


def test_the_page_shows_names_as_text(tmp_path: Path) -> None:
    page = summed(tmp_path, row(0, job_id="<script>alert(1)</script>")).to_html()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "2.00 GPU-hours lost in 1 incident," in page


def test_the_command_sweeps_and_reports(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("sweep", str(archive), "--processes", "1") == 0
    said = capsys.readouterr()
    assert said.out.startswith(
        "4 windows, 0 with an answer before: 1 fail-slow, 1 fail-stop, 1 healthy, 1 refused"
    )
    assert f"refused: {archive / 'bad.json'}: job: is missing" in said.err
    assert command("sweep", "report") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "4 windows of 3 jobs: 1 fail-slow, 1 fail-stop, 1 healthy, 1 refused"
    assert lines[2].strip() == "by cause"
    assert lines[-1].startswith(f"refused: {archive / 'bad.json'}: job: is missing")
    assert command("sweep", "report", "--format", "json") == 0
    assert {each["name"] for each in json.loads(capsys.readouterr().out)["causes"]} == {
        "cpu_contention",
        "process_crash",
    }
    assert command("sweep", "report", "--output", "page.html") == 0
    assert "<h2>by node</h2>" in (tmp_path / "page.html").read_text()
    assert command("sweep", "report", "nothing-there") == 2
    assert "rca sweep URL... writes some" in capsys.readouterr().err


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        rca_command(arguments)
    return int(ended.value.code or 0)


def test_a_window_that_cannot_be_read_is_tried_again(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: object) -> Any:
        raise SourceError(f"{self}: cannot be read: connection lost")

    with monkeypatch.context() as broken:
        broken.setattr("rca.sweep.archive.Found.read", failing)
        assert swept(archive, tmp_path / "answers").outcomes == {"refused": 4}
    assert swept(archive, tmp_path / "answers").kept == 0
    again = swept(archive, tmp_path / "answers")
    assert (again.kept, again.outcomes) == (4, {})
    assert swept(archive, tmp_path / "answers", retry=True).outcomes == {"refused": 1}


def test_a_window_that_breaks_the_diagnosis_does_not_end_the_sweep(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(window: Any, **options: Any) -> Any:
        if window.job.job_id == "capture-killed-rank":
            raise ZeroDivisionError("no steps")
        return rca.diagnose(window, **options)

    monkeypatch.setattr(module, "diagnose", broken)
    done = swept(archive, tmp_path / "answers")
    assert done.outcomes == {"refused": 2, "fail_slow": 1, "healthy": 1}
    assert "a defect of straggler-rca" in dict(done.refused)[str(archive / "killed.json.gz")]


def test_names_that_are_no_text_and_files_that_are_pipes_do_not_matter(archive: Path, tmp_path: Path) -> None:
    import os

    os.mkfifo(archive / "pipe.json")
    shutil.copytree(WINDOWS / "healthy", os.fsdecode(os.fsencode(archive) + b"/odd\xff name"))
    (archive / "loop").symlink_to(archive)
    assert swept(archive, tmp_path / "answers").found == 5
    assert swept(archive, tmp_path / "answers").kept == 5
    assert "odd\\udcff name" in rows(tmp_path / "answers")


def test_folders_that_cannot_be_listed_are_refused(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    real = os.scandir

    def scandir(path: Any = ".") -> Any:
        # The tests may run as root, who may list everything.
        if str(path).endswith("healthy"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    done = swept(archive, tmp_path / "answers")
    assert (str(archive / "deep" / "healthy"), "cannot be listed: Permission denied") in done.refused


def test_archives_in_files_and_odd_names_are_read(archive: Path, tmp_path: Path) -> None:
    odd = shutil.copytree(archive / "deep", tmp_path / "a::b" / "job[1]")
    assert swept(odd.parent, tmp_path / "local").outcomes == {"fail_slow": 1, "healthy": 1}
    shutil.make_archive(str(tmp_path / "zipped"), "zip", odd)
    url = f"zip://::{tmp_path}/zipped.zip"
    assert swept(url, tmp_path / "zip").outcomes == {"fail_slow": 1, "healthy": 1}
    assert {row["url"] for row in Answers(str(tmp_path / "zip")).read().to_pylist()} == {
        f"zip://cpu-contention-node::{tmp_path}/zipped.zip",
        f"zip://healthy::{tmp_path}/zipped.zip",
    }
    assert swept(url, tmp_path / "zip").kept == 2
    files = fsspec.filesystem("memory")
    for path in (WINDOWS / "healthy").iterdir():
        files.pipe_file(f"/odd/job[1]/{path.name}", path.read_bytes())
    files.pipe_file("/odd/job[1]/checkpoints/a.json", b"no window")
    try:
        assert swept("memory://odd/job[1]", tmp_path / "bucket").outcomes == {"healthy": 1, "refused": 1}
    finally:
        files.rm("/odd", recursive=True)


def test_damaged_and_foreign_files_are_named(archive: Path, tmp_path: Path) -> None:
    swept(archive, tmp_path / "answers")
    shutil.copy(next((WINDOWS / "healthy").glob("*.parquet")), tmp_path / "answers")
    assert len(rows(tmp_path / "answers")) == 4
    part = next((tmp_path / "answers").glob("part-*.parquet"))
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(SourceError, match=f"{part.name}: is damaged") as caught:
        Answers(str(tmp_path / "answers")).read()
    assert "delete this file" in str(caught.value.hint)


def test_an_output_that_cannot_be_written_is_refused_before_the_work(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    asked: list[int] = []
    with pytest.raises(SourceError, match="cannot be written"):
        swept(archive, tmp_path / "file", progress=lambda done, total: asked.append(total))
    assert asked == []


def test_the_newest_answer_of_two_bundles_is_the_known_one(tmp_path: Path) -> None:
    answers = Answers(str(tmp_path / "answers"))
    answers.write([row(0)])
    answers.write([row(0, model_sha256="n", swept_at=T0 + timedelta(days=1))])
    assert {model for _, _, model in answers.known()} == {"n"}
    assert incident_report(answers).facts["models"] == {"n": 1}


def test_an_empty_folder_is_refused(tmp_path: Path, rca_command: Any) -> None:
    ran = rca_command("sweep", tmp_path, "--output", tmp_path / "answers")
    assert (ran.code, "a window is a directory with window.json" in ran.err) == (2, True)


def test_workers_of_a_scheduler_are_not_given_what_they_cannot_read(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workers, "share_files", False)
    with pytest.raises(InvalidInput, match="the workers of a scheduler cannot read it") as raised:
        swept(archive, tmp_path / "answers")
    assert "file:///FOLDER" in str(raised.value.hint)
    done = swept(f"file://{archive}", tmp_path / "answers")
    assert done.outcomes == {"fail_slow": 1, "healthy": 1, "fail_stop": 1, "refused": 1}
