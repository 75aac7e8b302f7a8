"""Each trace of an archive gets one result, whatever interrupts the sweep; bad traces do not end it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from synthetic_jobs import Key, execute, make_job, table_of

from rca import workers as workers_module
from rca.cli import run as rca_command
from rca.errors import InvalidInput, SourceError
from rca.sweep import Answers, Swept, archived
from rca.sweep import what_if as module
from rca.sweep.data_set import Row
from rca.sweep.traces import ArchivedTrace, traces_of
from rca.sweep.what_if import JobLosses, sweep_what_if
from rca.sweep.what_if_report import what_if_report
from rca.whatif.analysis import what_if
from rca.window import Window
from rca.workers import Workers

fsspec = pytest.importorskip("fsspec", reason="the extra [scale] is not installed")

pytestmark = pytest.mark.system

JOB = make_job(pp=2, dp=2, microbatches=3)
META = {**JOB.meta, "tp_size": 4, "world_size": 16}


def slow_rank(key: Key, d: int, step: int) -> float:
    return 1.6 if (d, key[2]) == (1, 0) and key[0].endswith("compute") else 1.0


def slow_stage(key: Key, d: int, step: int) -> float:
    return 1.4 if key[2] == 1 and key[0].endswith("compute") else 1.0


def trace_of(slow: Any, n_steps: int = 4, seed: int = 0) -> pa.Table:
    return table_of(execute(JOB, n_steps=n_steps, slow=slow, seed=seed).rows)


RANK, STAGE = trace_of(slow_rank), trace_of(slow_stage)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Traces in the three layouts, one that is damaged, and Parquet and JSON files of other programs."""
    folder = tmp_path / "archive"
    (folder / "own" / "run-7").mkdir(parents=True)
    pq.write_table(RANK, folder / "trace-AR.parquet")
    (folder / "meta-AR.yaml").write_text(yaml.safe_dump(META | {"trial_name": "AR", "run_id": 3}))
    (folder / "result-AR.json").write_text('{"blocking_slowdown": 1.2}')
    pq.write_table(STAGE, folder / "own" / "last.parquet")
    (folder / "own" / "last.meta.yaml").write_text(yaml.safe_dump(META))
    pq.write_table(trace_of(slow_stage, seed=1), folder / "own" / "run-7" / "trace.parquet")
    (folder / "own" / "run-7" / "meta.yaml").write_text("tp_size: 2\n")
    pq.write_table(STAGE.drop_columns(["duration"]), folder / "bad.parquet")
    pq.write_table(pa.table({"rank": [1]}), folder / "other.parquet")
    return folder


def swept(archive: Path | str, folder: Path | str, **options: Any) -> Swept:
    return sweep_what_if([str(archive)], JobLosses(str(folder)), **options)


def rows(folder: Path | str) -> dict[str, Row]:
    """Rows by URL, without the time at which they were made."""
    found = JobLosses(str(folder)).read().to_pylist()
    return {row["url"].rsplit("/", 1)[-1]: row | {"swept_at": None} for row in found}


def test_the_sizes_are_in_a_file_beside_the_trace(archive: Path) -> None:
    found = archived([str(archive)], traces_of)
    metas = {
        Path(each.url).name: each.meta and Path(each.meta).name
        for each in found
        if isinstance(each, ArchivedTrace)
    }
    assert metas == {
        "trace-AR.parquet": "meta-AR.yaml",
        "last.parquet": "last.meta.yaml",
        "trace.parquet": "meta.yaml",
        "bad.parquet": None,
        "other.parquet": None,
    }
    (alone,) = archived([str(archive / "trace-AR.parquet")], traces_of)
    assert alone in found


def test_each_trace_gets_the_result_of_what_if(archive: Path, tmp_path: Path) -> None:
    done = swept(archive, tmp_path / "results")
    assert done.outcomes == {"analysed": 3, "refused": 1, "left_out": 2}
    assert done.refused == [(str(archive / "bad.parquet"), "operation trace lacks column(s) duration")]
    found = rows(tmp_path / "results")
    alone = what_if(archive / "trace-AR.parquet", archive / "meta-AR.yaml")
    row = found["trace-AR.parquet"]
    assert row["document"] == alone.to_json(per_step=False)
    assert (row["job_id"], row["world_size"], row["steps"]) == ("AR", 16, 4)
    assert row["slowdown"] == alone.slowdown > 1.1
    assert row["gpu_hours_lost"] == pytest.approx(row["gpu_hours"] * row["waste"])
    assert row["worst_rank"] == alone.m_w.ranks[0]
    worst = max(alone.by_type.slowdown(alone.ideal).values())
    assert row["types"][0]["seconds_per_step"] == pytest.approx((worst - 1) * alone.ideal.mean())
    assert [found[name]["job_id"] for name in ("last.parquet", "trace.parquet")] == ["last", "run-7"]
    assert found["trace.parquet"]["world_size"] == 8
    assert {name: row["outcome"] for name, row in found.items() if row["outcome"] != "analysed"} == {
        "bad.parquet": None,
        "other.parquet": "left_out",
        "result-AR.json": "left_out",
    }


def test_a_repeated_sweep_only_looks_at_what_is_new(archive: Path, tmp_path: Path) -> None:
    swept(archive, tmp_path / "results")
    before = rows(tmp_path / "results")
    pq.write_table(STAGE, archive / "bad.parquet")
    (archive / "meta-AR.yaml").write_text(yaml.safe_dump(META | {"trial_name": "renamed"}))
    shutil.copy(archive / "own" / "last.parquet", archive / "new.parquet")
    again = swept(archive, tmp_path / "results")
    assert (again.found, again.kept) == (7, 4)
    assert again.outcomes == {"analysed": 3}
    after = rows(tmp_path / "results")
    assert after["last.parquet"] == before["last.parquet"]
    assert after["trace-AR.parquet"]["job_id"] == "renamed"
    assert after["bad.parquet"]["error"] is None
    assert swept(archive, tmp_path / "results").outcomes == {}


def test_results_in_a_folder_of_the_archive_are_no_traces(archive: Path) -> None:
    for _ in range(2):
        swept(archive, archive / "results")
    assert swept(archive, archive / "results").found == 6
    assert swept(f"file://{archive}", archive / "results").found == 6


def test_an_interrupted_sweep_keeps_its_results(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any, **options: Any) -> Any:
        if given[0].name == "trace.parquet":
            raise KeyboardInterrupt
        return replay_of(*given, **options)

    replay_of = module.replay_of
    monkeypatch.setattr(module, "replay_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        swept(archive, tmp_path / "results")
    monkeypatch.undo()
    again = swept(archive, tmp_path / "results")
    assert (again.kept, again.outcomes) == (3, {"analysed": 2, "left_out": 1})


def test_a_defect_in_one_trace_is_listed_and_tried_again(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "replay_of", lambda path, meta: {}[path.name])
    done = swept(archive, tmp_path / "results")
    assert done.outcomes == {"refused": 4, "left_out": 2}
    assert "a defect of straggler-rca" in dict(done.refused)[str(archive / "trace-AR.parquet")]
    monkeypatch.undo()
    again = swept(archive, tmp_path / "results", retry=True)
    assert again.outcomes == {"analysed": 3, "refused": 1}


def test_long_traces_are_read_in_blocks(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept(archive, tmp_path / "whole")
    monkeypatch.setattr(module, "STREAMED_FROM", 100)
    monkeypatch.setattr(module, "replay_of", None)
    swept(archive, tmp_path / "streamed")
    whole, streamed = rows(tmp_path / "whole"), rows(tmp_path / "streamed")
    assert streamed["trace-AR.parquet"]["slowdown"] == pytest.approx(whole["trace-AR.parquet"]["slowdown"])
    assert streamed["bad.parquet"] == whole["bad.parquet"]


def test_windows_are_replayed_by_their_operations_or_else_their_phases(
    make_window: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    plain = make_window(4, 6, parallelism={"data": 2, "pipeline": 2})
    job = json.loads(plain.to_json())["job"]
    events = pa.table({"time": [float(job["start"])], "kind": ["oom"]})
    held = {
        "plain": plain,
        "traced": Window.from_tables(job, plain.steps, ops=RANK),
        "events": Window.from_tables(job, events=events),
    }
    for name, window in held.items():
        window.to_directory(folder / name)
    done = swept(folder, tmp_path / "results")
    assert done.outcomes == {"analysed": 2, "left_out": 1}
    found = rows(tmp_path / "results")
    for name in ("plain", "traced"):
        assert found[name]["job_id"] == "test"
        assert found[name]["document"] == what_if(held[name]).to_json(per_step=False)


def test_a_simulated_fleet_has_a_page(tmp_path: Path) -> None:
    fleet, page = tmp_path / "fleet", tmp_path / "fleet.html"
    assert command("simulate", str(fleet), "--windows", "4", "--seed", "3", "--operations") == 0
    assert command("sweep", "what-if", str(fleet), "--output", str(tmp_path / "results")) == 0
    assert command("sweep", "report", str(tmp_path / "results"), "--output", str(page)) == 0
    found = rows(tmp_path / "results")
    assert {row["job_id"] for row in found.values()} == {f"fleet-3-0000{number}" for number in range(1, 5)}
    assert all(json.loads(row["document"])["source"] == "operations" for row in found.values())
    assert "4 traces of 4 jobs" in page.read_text()


def test_damaged_files_do_not_end_the_sweep(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    folder.mkdir()
    pq.write_table(RANK, folder / "whole.parquet")
    whole = (folder / "whole.parquet").read_bytes()
    (folder / "empty.parquet").write_bytes(b"")
    (folder / "cut.parquet").write_bytes(whole[:-100])
    (folder / "footer.parquet").write_bytes(whole[:-20] + b"\xff" * 12 + whole[-8:])
    (folder / "sizes.parquet").write_bytes(whole)
    (folder / "sizes.meta.yaml").write_text("dp_size: [")
    (folder / "window.arrow").write_bytes(b"no window")
    (folder / "log.json").write_text("started\n")
    done = swept(folder, tmp_path / "results")
    assert done.outcomes == {"analysed": 1, "refused": 5, "left_out": 1}
    reasons = {url.rsplit("/", 1)[1]: reason for url, reason in done.refused}
    assert reasons["sizes.parquet"].startswith("job metadata sizes.meta.yaml: line 1 is no YAML")
    assert reasons["cut.parquet"].startswith("not a readable Parquet trace")
    assert swept(folder, tmp_path / "results").kept == 7
    assert not any("\n" in reason or str(tmp_path) in reason for reason in reasons.values())


@pytest.fixture
def bucket(archive: Path) -> Iterator[str]:
    """A bucket in the memory of this process."""
    files = fsspec.filesystem("memory")
    files.put(str(archive), "/traces", recursive=True)
    yield "memory://"
    files.rm("/", recursive=True)


def test_buckets_are_read_and_written(bucket: str, archive: Path, tmp_path: Path) -> None:
    swept(f"{bucket}traces", f"{bucket}results")
    swept(archive, tmp_path / "results")
    assert without_places(rows(f"{bucket}results")) == without_places(rows(tmp_path / "results"))
    assert swept(f"{bucket}traces", f"{bucket}results").outcomes == {}


def without_places(found: dict[str, Row]) -> dict[str, Row]:
    return {name: row | {"url": "", "version": ""} for name, row in found.items()}


@pytest.mark.slow
def test_results_do_not_depend_on_the_workers(
    archive: Path, tmp_path: Path, two_workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed", reason="the extra [scale] is not installed")
    swept(archive, tmp_path / "one")
    assert len(rows(tmp_path / "one")) == 6
    monkeypatch.setattr(workers_module, "MIN_WINDOWS", 0)
    swept(archive, tmp_path / "two", workers=two_workers)
    monkeypatch.setattr(Workers, "share_files", False)
    swept(f"file://{archive}", tmp_path / "shared", workers=two_workers)
    assert rows(tmp_path / "two") == rows(tmp_path / "one")
    assert without_places(rows(tmp_path / "shared")) == without_places(rows(tmp_path / "one"))


def test_a_folder_of_other_rows_is_refused(archive: Path, tmp_path: Path) -> None:
    swept(archive, tmp_path / "results")
    with pytest.raises(InvalidInput, match="holds no answers"):
        Answers(str(tmp_path / "results")).known()
    (part,) = (tmp_path / "results").glob("part-*.parquet")
    part.write_bytes(b"no Parquet")
    with pytest.raises(SourceError, match="is damaged"):
        JobLosses(str(tmp_path / "results")).known()


def test_the_report_sorts_jobs_by_the_share_of_lost_time(archive: Path, tmp_path: Path) -> None:
    shutil.copy(archive / "trace-AR.parquet", archive / "trace-again.parquet")
    shutil.copy(archive / "meta-AR.yaml", archive / "meta-again.yaml")
    swept(archive, tmp_path / "results")
    found = what_if_report(JobLosses(str(tmp_path / "results")))
    held = found.tables["jobs"].rows.to_dict("records")
    shares = [job["waste"] for job in held]
    assert shares == sorted(shares, reverse=True)
    jobs = {job["job_id"]: job for job in held}
    assert set(jobs) == {"AR", "last", "run-7"}
    alone = what_if(archive / "trace-AR.parquet", archive / "meta-AR.yaml")
    assert len(jobs["AR"]["urls"]) == 2
    assert jobs["AR"]["gpu_hours_lost"] == pytest.approx(2 * alone.gpu_hours_lost)
    assert jobs["AR"]["slowdown"] == pytest.approx(alone.slowdown)
    assert jobs["AR"]["seconds_per_step"] == pytest.approx(alone.seconds_lost_per_step)
    assert (jobs["AR"]["pattern"], jobs["last"]["pattern"]) == ("few slow workers", "slow last stage")
    patterns = {row["name"]: row["main"] for row in found.tables["patterns"].rows.to_dict("records")}
    assert patterns["few slow workers"] == "AR"
    facts = found.facts
    assert facts["waste"] == pytest.approx(facts["gpu_hours_lost"] / facts["gpu_hours"])
    assert facts["traces"] == 4
    assert found.refused.reason.tolist() == ["operation trace lacks column(s) duration"]
    assert len(facts["left_out"]) == 2


def test_a_page_shows_a_fleet_by_step_and_by_worker(tmp_path: Path) -> None:
    """A made-up fleet: a slow rank, a slow stage, a fault that begins in the middle, and healthy jobs."""

    def begins(key: Key, d: int, step: int) -> float:
        return slow_rank(key, d, step) if step >= 2 else 1.0

    fleet = {"rank": slow_rank, "stage": slow_stage, "begins": begins, "healthy": lambda *_: 1.0}
    (tmp_path / "fleet").mkdir()
    for name, slow in fleet.items():
        pq.write_table(trace_of(slow), tmp_path / "fleet" / f"{name}.parquet")
    swept(tmp_path / "fleet", tmp_path / "results")
    found = what_if_report(JobLosses(str(tmp_path / "results")))
    by_step, *by_worker = found.heat_maps
    steps = dict(by_step.rows)
    assert set(steps) == set(fleet)
    assert max(steps["begins"][:2]) < 1.05 < 1.15 < min(steps["begins"][2:])
    assert max(steps["healthy"]) < 1.05
    workers = {each.title.split(":")[0]: each.rows for each in by_worker}
    assert [name for name, _ in workers["rank"]] == ["stage 0", "stage 1"]
    cells = {(s, d): value for s, (_, row) in enumerate(workers["rank"]) for d, value in enumerate(row)}
    assert max(cells, key=cells.get) == (0, 1)
    shares = {row["name"]: row["share"] for row in found.tables["patterns"].rows.to_dict("records")}
    assert 0 < shares["slow last stage"] < 1
    assert "1 jobs have a slowdown above 1.1 (25.0%)" in found.headline[1]
    page = found.to_html()
    assert page.count("<svg") == 4 + sum(len(each.rows) for each in by_worker)
    assert not any(foreign in page for foreign in ("<script", "http:", "https:", "<link", "<img"))


def test_many_steps_and_data_ranks_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CELLS", 2)
    wide = make_job(pp=1, dp=5, microbatches=2)
    slow = table_of(
        execute(wide, n_steps=5, slow=lambda _key, d, step: 2.0 if (d, step) == (4, 4) else 1.0).rows
    )
    (tmp_path / "fleet").mkdir()
    pq.write_table(slow, tmp_path / "fleet" / "wide.parquet")
    swept(tmp_path / "fleet", tmp_path / "results")
    (row,) = rows(tmp_path / "results").values()
    first, last = row["step_slowdowns"]
    assert first < 1.05 < last
    ((left, right),) = row["worker_slowdowns"]
    assert left < right


def test_results_of_an_earlier_version_have_no_heat_maps(archive: Path, tmp_path: Path) -> None:
    swept(archive, tmp_path / "results")
    for part in (tmp_path / "results").glob("part-*.parquet"):
        pq.write_table(pq.read_table(part).drop_columns(["step_slowdowns", "worker_slowdowns"]), part)
    found = what_if_report(JobLosses(str(tmp_path / "results")))
    assert found.facts["traces"] == 3
    assert found.heat_maps == []


def test_a_report_without_results_lists_what_was_refused(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "bad.parquet").write_bytes(b"")
    swept(tmp_path / "archive", tmp_path / "results")
    found = what_if_report(JobLosses(str(tmp_path / "results")))
    assert found.headline[0] == "0.00 of 0.00 GPU-hours lost to stragglers (0.0%)"
    assert "bad.parquet" in found.to_html()
    assert json.loads(found.to_json())["jobs"] == []


def test_the_command_sweeps_and_reports(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (archive / "meta-AR.yaml").write_text(yaml.safe_dump(META | {"trial_name": "<b>AR</b>"}))
    assert command("sweep", "what-if", str(archive), "--processes", "1") == 0
    said = capsys.readouterr()
    assert said.out.startswith("6 files, 0 with a result before: 3 analysed, 2 left-out, 1 refused")
    assert f"refused: {archive / 'bad.parquet'}: operation trace lacks" in said.err
    assert command("sweep", "report", "what-if") == 0
    text = capsys.readouterr().out
    assert "3 traces of 3 jobs" in text
    assert "few slow workers" in text
    assert command("sweep", "report", "what-if", "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {job["job_id"] for job in found["jobs"]} == {"<b>AR</b>", "last", "run-7"}
    assert command("sweep", "report", "what-if", "--output", "page.html") == 0
    page = (tmp_path / "page.html").read_text()
    assert "&lt;b&gt;AR&lt;/b&gt;" in page
    assert "<b>" not in page
    assert "<h2>by pattern (patterns overlap)</h2>" in page


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        rca_command(arguments)
    return int(ended.value.code or 0)
