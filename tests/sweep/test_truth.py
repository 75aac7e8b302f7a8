"""What was found out about jobs makes a collection of an archive, which training and evaluation read."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rca
from rca.diagnosis.bundle import baseline
from rca.errors import InvalidInput
from rca.lab.evaluation.run import evaluate_collection
from rca.lab.training.incidents import learned_incidents
from rca.sweep import Answers, archived, read_findings, sweep, write_collection
from rca.sweep.truth import ConfirmedFinding, label_of
from rca.window.window import Window

pytest.importorskip("fsspec", reason="the extra [scale] is not installed")
WINDOWS = Path(__file__).resolve().parents[2] / "data" / "windows"
SLOW, HEALTHY, KILLED = "capture-cpu-contention-node", "capture-healthy", "capture-killed-rank"


@pytest.fixture(scope="module")
def window() -> Window:
    """66 steps of 0.18 s on eight ranks of four nodes."""
    return rca.read_window(WINDOWS / "cpu-contention-node")


@pytest.fixture(scope="module")
def span(window: Window) -> tuple[float, float]:
    covered = rca.diagnose(window).window
    assert covered is not None
    return covered.start.timestamp(), covered.end.timestamp()


def finding(cause: str, start: float, end: float, **more: Any) -> ConfirmedFinding:
    return ConfirmedFinding("truth.csv: line 2", SLOW, cause, start, end, **more)


def test_lines_are_read(tmp_path: Path) -> None:
    (tmp_path / "truth.csv").write_text(
        "job,cause,start,end,nodes,ranks\n"
        'a,nic_degradation,1795770000,1795770020,"node[1-2],node7",\n'
        "b,process_crash,2026-11-27T09:00:00Z,,,3\n"
        "c,healthy,1795770000,1795770020,,\n"
        "d,unknown,1795770000,1795770020,node-1 node-2,8-9 11\n"
    )
    found = read_findings(tmp_path / "truth.csv")
    assert [each.cause for each in found] == ["nic_degradation", "process_crash", "healthy", "unknown"]
    assert [each.nodes for each in found] == [("node1", "node2", "node7"), (), (), ("node-1", "node-2")]
    assert [each.ranks for each in found] == [(), (3,), (), (8, 9, 11)]
    assert found[1].end == found[1].start == 1_795_770_000
    assert found[1].place.endswith("truth.csv: line 3")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("a,broken_cable,1,2,", "'broken_cable' is no cause of the catalogue"),
        ("a,nic_degradation,1795770000,,", "nic_degradation has no end"),
        ("a,nic_degradation,1795770001,1795770000,", "the cause nic_degradation ends at 1795770000"),
        ("a,nic_degradation,1795770000,1795770001,node[1", "its brackets do not match"),
        ("a,none,1795770000,1795770001,", "'none' is no cause of the catalogue"),
        ("a,,1795770000,1795770001,", "'' is no cause of the catalogue"),
        (",healthy,1795770000,1795770001,", "it has no job"),
    ],
)
def test_bad_lines_are_refused_with_the_place(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "truth.csv").write_text(f"job,cause,start,end,nodes\n{line}\n")
    with pytest.raises(InvalidInput, match=r"truth.csv: line 2: ") as caught:
        read_findings(tmp_path / "truth.csv")
    assert reason in str(caught.value)


def test_a_cause_labels_the_windows_in_which_it_acts(window: Window, span: tuple[float, float]) -> None:
    start, end = span
    half = (start + end) / 2
    label = label_of([finding("cpu_contention", half, end + 60, nodes=("node-1",))], start, end, window)
    assert label is not None
    (cause,) = label.causes
    assert (label.failure_mode, cause.cause, cause.ranks, cause.nodes) == (
        "fail_slow", "cpu_contention", (2, 3), ("node-1",),
    )  # fmt: skip
    assert 20 < cause.first_step < 50  # type: ignore[operator]
    assert cause.last_step == 65
    assert label.notes == "truth.csv: line 2"


def test_a_window_that_a_cause_hardly_touches_is_left_out(window: Window, span: tuple[float, float]) -> None:
    start, end = span
    late = finding("cpu_contention", end - 0.1 * (end - start), end)
    assert label_of([late, finding("healthy", start - 1, end + 1)], start, end, window) is None
    assert label_of([finding("healthy", start + 1, end)], start, end, window) is None
    well = label_of([finding("healthy", start - 1, end + 1)], start, end, window)
    assert well is not None
    assert (well.failure_mode, well.causes) == ("healthy", ())


def test_several_lines_about_one_cause_are_one(window: Window, span: tuple[float, float]) -> None:
    start, end = span
    part = (end - start) / 10
    lines = [finding("cpu_contention", start + at * part, start + (at + 1.5) * part) for at in (0, 1, 5)]
    label = label_of(lines, start, end, window)
    assert label is not None
    assert len(label.causes) == 1
    assert label_of(lines[:1], start, end, window) is None
    halves = [finding("healthy", start - 1, start + 5 * part), finding("healthy", start + 5 * part, end)]
    assert label_of(halves, start, end, window) is not None


def test_a_stop_is_the_label_beside_slowness(window: Window, span: tuple[float, float]) -> None:
    start, end = span
    found = [finding("nic_degradation", start, end), finding("process_crash", end - 1, end - 1, ranks=(3,))]
    label = label_of(found, start, end, window)
    assert label is not None
    assert [(each.cause, each.ranks) for each in label.causes] == [("process_crash", (3,))]
    assert label.failure_mode == "fail_stop"
    everywhere = label_of([finding("storage_degradation", start, end)], start, end, window)
    assert everywhere is not None
    assert everywhere.causes[0].ranks == tuple(range(8))


def test_a_finding_that_does_not_fit_its_job_is_refused(window: Window, span: tuple[float, float]) -> None:
    for more, reason in (
        ({"ranks": (8,)}, "rank 8 is not one of"),
        ({"nodes": ("node-9",)}, "'node-9' is not"),
    ):
        with pytest.raises(InvalidInput, match=reason):
            label_of([finding("cpu_contention", *span, **more)], *span, window)


def test_an_archive_becomes_a_collection(tmp_path: Path, rca_command: Any) -> None:
    for name in ("cpu-contention-node", "healthy", "killed-rank", "slow-dataset"):
        shutil.copytree(WINDOWS / name, tmp_path / "archive" / name)
    sweep(archived([str(tmp_path / "archive")]), Answers(str(tmp_path / "answers")), bundle=baseline())
    (tmp_path / "truth.csv").write_text(
        "job|cause|start|end|nodes|ranks\n"
        f"{SLOW}|cpu_contention|2026-11-21T09:00:00Z|2026-11-21T11:00:00Z|node-1|\n"
        f"{HEALTHY}|healthy|2026-11-01T00:00:00Z|2026-11-30T00:00:00Z||\n"
        f"{KILLED}|storage_degradation|2026-11-01T00:00:00Z|2026-11-02T00:00:00Z||\n"
    )
    asked = ("sweep", "export", tmp_path / "answers", tmp_path / "mine", "--truth", tmp_path / "truth.csv")
    ran = rca_command(*asked)
    assert ran.code == 0, ran.err
    assert "2 windows in" in ran.out
    assert "left out: 1 neither faulty nor healthy" in ran.err
    found = learned_incidents(tmp_path / "mine", every_part=True)
    assert {each.entry.summary["group"] for each in found} == {f"job-{SLOW}", f"job-{HEALTHY}"}
    judged = evaluate_collection(tmp_path / "mine").rows
    assert sorted((each.cause, each.first_cause) for each in judged) == [
        ("cpu_contention", "cpu_contention"), ("healthy", "healthy"),
    ]  # fmt: skip


def test_windows_without_steps_or_files_are_left_out(tmp_path: Path, window: Window) -> None:
    archive = tmp_path / "archive"
    shutil.copytree(WINDOWS / "cpu-contention-node", archive / "slow")
    bare = replace(window, steps=window.steps.slice(0, 0), events=window.events)
    (archive / "bare.json").write_bytes(bare.to_json())
    answers = Answers(str(tmp_path / "answers"))
    sweep(archived([str(archive)]), answers, bundle=baseline())
    shutil.rmtree(archive / "slow")
    found = [finding("cpu_contention", 1.7e9, 1.8e9, nodes=("node-1",))]
    with pytest.raises(InvalidInput, match="2 windows gets a label: 1 no longer there, 1 without steps"):
        write_collection(answers, found, tmp_path / "mine")
    shutil.copytree(WINDOWS / "cpu-contention-node", archive / "slow")
    written, left_out = write_collection(answers, found, tmp_path / "mine")
    assert (written, left_out) == (1, {"without steps": 1})
    for folder in (tmp_path / "mine", archive):
        with pytest.raises(InvalidInput, match="holds something"):
            write_collection(answers, found, folder)


def test_an_export_that_fails_can_be_repeated_with_its_folder(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    shutil.copytree(WINDOWS / "cpu-contention-node", archive / "slow")
    answers = Answers(str(tmp_path / "answers"))
    sweep(archived([str(archive)]), answers, bundle=baseline())

    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    found = [finding("cpu_contention", 1.7e9, 1.8e9, nodes=("node-1",))]
    with pytest.raises(KeyboardInterrupt):
        write_collection(answers, found, tmp_path / "mine", progress=interrupted)
    written, _ = write_collection(answers, found, tmp_path / "mine")
    assert written == 1


def test_findings_about_other_jobs_are_refused(tmp_path: Path) -> None:
    answers = Answers(str(tmp_path / "answers"))
    sweep(archived([str(WINDOWS / "healthy")]), answers, bundle=baseline())
    with pytest.raises(InvalidInput, match="holds no window of the jobs elsewhere"):
        write_collection(answers, [ConfirmedFinding("a", "elsewhere", "healthy", 0, 1)], tmp_path / "mine")
