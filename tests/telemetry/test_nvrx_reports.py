"""Reports of NVRx name slow ranks; they have a cost only where a section is a whole step."""

from __future__ import annotations

from pathlib import Path

import pytest
from nvrx_reports import document, json_lines, logged, warning
from watchdog_logs import TABLE, hang

import rca
from rca.errors import InvalidInput
from rca.sources.nvrx.window import MIN_STEPS
from rca.sources.registry import source_of


def log(folder: Path, lines: list[str]) -> Path:
    path = folder / "job.log"
    path.write_text("\n".join(["epoch 1", *lines, "epoch 2", ""]))
    return path


def values(window: rca.Window, name: str) -> dict[int, float]:
    return {row["rank"]: row["value"] for row in window.metrics.to_pylist() if row["name"] == name}


@pytest.mark.parametrize("n_ranks", [4, 16])
def test_logged_scores_name_the_slow_rank_and_no_cost(tmp_path: Path, n_ranks: int) -> None:
    scores = {rank: 0.5 if rank == 3 else 0.97 + 0.001 * (rank % 5) for rank in range(n_ranks)}
    path = log(tmp_path, [line for minute in range(0, 10, 2) for line in logged(scores, minute=minute)])
    window = rca.read_window(path)
    assert source_of(path) is not None
    assert window.job.world_size == n_ranks
    # Reports come every second minute; the line after the scores has the time.
    assert window.job.end - window.job.start == pytest.approx(481)
    assert not any("no time" in note for note in window.notes)
    assert values(window, "nvrx_gpu_relative_slowdown")[3] == pytest.approx(2.0)
    answer = rca.diagnose(window)
    assert (answer.failure_mode, answer.abstained, answer.slowdown.seconds_per_step) == (
        "fail_slow",
        True,
        None,
    )
    assert [(each.ranks, each.straggler_type) for each in answer.stragglers] == [([3], "compute")]
    evidence = {each.signal: each.value for each in answer.causes[0].evidence}
    assert evidence["gpu_slowdown"] == pytest.approx(2.0)


def test_a_rank_that_became_slow_is_named(tmp_path: Path) -> None:
    healthy = dict.fromkeys(range(8), 0.98)
    lines = [line for minute in range(40) for line in logged(healthy, minute=minute, shown=4)]
    slow = {**healthy, 6: 0.6}
    lines += [line for minute in range(40, 50) for line in logged(slow, minute=minute, shown=4)]
    assert rca.diagnose(rca.read_window(log(tmp_path, lines))).stragglers[0].ranks == [6]
    lines = lines[: 40 * len(logged(healthy))]
    answer = rca.diagnose(rca.read_window(log(tmp_path, lines)))
    assert (answer.failure_mode, answer.stragglers) == ("healthy", [])


def test_a_warning_without_scores_is_enough(tmp_path: Path) -> None:
    answer = rca.diagnose(rca.read_window(log(tmp_path, [warning(5)])))
    assert [each.ranks for each in answer.stragglers] == [[5]]
    assert answer.stragglers[0].nodes == ["node-1"]


def test_the_worst_rank_alone_is_named(tmp_path: Path) -> None:
    lines = [
        "GPU relative performance:",
        " Worst performing 1/512 ranks:",
        "  Rank=77 Node=node-9 Score=0.55",
    ]
    answer = rca.diagnose(rca.read_window(log(tmp_path, lines * 5)))
    assert [each.ranks for each in answer.stragglers] == [[77]]


def test_scores_below_0_are_left_out_with_a_note(tmp_path: Path) -> None:
    scores = {0: 0.97, 1: 0.98, 2: 0.99, 3: -0.5}
    window = rca.read_window(log(tmp_path, logged(scores)))
    assert set(values(window, "nvrx_gpu_relative_slowdown")) == {0, 1, 2}
    assert any(note.startswith("scores of 0 or below are left out") and "3" in note for note in window.notes)


@pytest.mark.parametrize(("unit", "message"), [(1e3, "times the time between two reports"), (1e-3, "0.4 ms")])
def test_steps_in_another_unit_are_refused(tmp_path: Path, unit: float, message: str) -> None:
    for rank in range(4):
        reports = [
            document(rank, sections={"train_step": 400.0 * unit}, time=1.8e9 + 60 * turn)
            for turn in range(MIN_STEPS)
        ]
        (tmp_path / f"report-{rank}.jsonl").write_text(json_lines(reports))
    with pytest.raises(InvalidInput, match=message) as caught:
        rca.read_window(tmp_path)
    assert "milliseconds" in str(caught.value.hint)


def test_printed_scores_and_reports_are_read(tmp_path: Path) -> None:
    printed = (
        "Report(gpu_relative_perf_scores={0: 0.99, 1: 0.4, 2: 1.0, 3: nan}, "
        "section_relative_perf_scores={'fwd': {0: 1.0, 1: 0.5, 2: 0.9}}, "
        "gpu_individual_perf_scores={}, section_individual_perf_scores={}, "
        "rank_to_node=defaultdict(<function f at 0x7f>, {0: 'a', 1: 'a', 2: 'b', 3: 'b'}), "
        "local_section_summaries={'fwd': {Statistic.MIN: 1.0, Statistic.MED: 2.0, Statistic.NUM: 60}}, "
        "local_kernel_summaries={}, generate_report_elapsed_time=0.1, gather_on_rank0=True, rank=None)"
    )
    window = rca.read_window(log(tmp_path, [printed]))
    assert values(window, "nvrx_gpu_relative_slowdown") == pytest.approx({0: 1 / 0.99, 1: 2.5, 2: 1.0})
    assert values(window, "nvrx_section_relative_slowdown")[1] == pytest.approx(2.0)
    assert window.job.topology.nodes_of([3]) == ["b"]
    line = "Rank 0 GPUs relative perf: {0: 0.99, 1: 0.4, 2: 1.0, 3: nan}"
    window = rca.read_window(log(tmp_path, [line]))
    assert rca.diagnose(window).stragglers[0].ranks == [1]


def test_medians_of_all_ranks_are_compared_as_nvrx_does(tmp_path: Path) -> None:
    for rank in range(4):
        slow = 2.0 if rank == 2 else 1.0
        report = document(rank, sections={"fwd": 40.0 * slow}, kernel=70.0 * slow)
        (tmp_path / f"report-{rank}.json").write_text(json_lines([report]))
    window = rca.read_window(tmp_path)
    assert values(window, "nvrx_section_relative_slowdown") == {0: 1.0, 1: 1.0, 2: 2.0, 3: 1.0}
    assert values(window, "nvrx_gpu_relative_slowdown") == {0: 1.0, 1: 1.0, 2: 2.0, 3: 1.0}
    answer = rca.diagnose(window)
    assert answer.stragglers[0].ranks == [2]
    assert len(answer.causes) == 1
    assert {each.signal for each in answer.causes[0].evidence} >= {"gpu_slowdown", "section_slowdown"}


def test_a_section_of_the_whole_step_has_a_cost(tmp_path: Path) -> None:
    for rank in range(4):
        reports = []
        for turn in range(3 * MIN_STEPS):
            late = 100.0 if rank == 2 and turn > 20 else 0.0
            noise = (turn * 7 + rank * 3) % 5 * 0.2
            sections = {"forward": 150.0 + late + noise, "backward": 220.0 + noise, "optimizer": 20.0}
            step = 400.0 + noise + (100.0 if turn > 20 else 0.0)
            reports.append(document(rank, sections={**sections, "train_step": step}))
        (tmp_path / f"report-{rank}.jsonl").write_text(json_lines(reports))
    window = rca.read_window(tmp_path)
    assert window.steps.num_rows == 4 * 3 * MIN_STEPS
    assert set(window.steps.column_names) >= {"forward_seconds", "backward_seconds", "optimizer_seconds"}
    answer = rca.diagnose(window)
    assert (answer.failure_mode, answer.stragglers[0].ranks) == ("fail_slow", [2])
    assert answer.slowdown.seconds_per_step == pytest.approx(0.1 * 39 / 60, rel=0.2)


def test_a_stop_in_the_same_log_comes_first(tmp_path: Path) -> None:
    lines = [
        *logged(dict.fromkeys(range(8), 0.9)),
        *(line for each in hang(8, [5]).values() for line in each),
    ]
    window = rca.read_window(log(tmp_path, lines))
    assert any("reports of NVRx in the same logs are left out" in note for note in window.notes)
    assert rca.diagnose(window).failure_mode == "fail_stop"


def test_a_crash_after_the_last_report_comes_first(tmp_path: Path) -> None:
    crash = [line.replace("2025-03-21_02:07", "2026-12-31_10:59") for line in TABLE]
    reports = logged({rank: 0.5 if rank == 3 else 0.97 for rank in range(4)})
    answer = rca.diagnose(rca.read_window(log(tmp_path, [*reports, *crash])))
    assert (answer.failure_mode, answer.abstained, answer.stragglers[0].ranks) == ("fail_stop", False, [1])


def test_failures_in_the_same_log_are_events(tmp_path: Path) -> None:
    window = rca.read_window(log(tmp_path, [*logged(dict.fromkeys(range(4), 0.9)), *TABLE]))
    assert sorted(row["rank"] for row in window.events.to_pylist()) == [1, 2]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (logged(dict.fromkeys(range(4), float("nan"))), "1 reports of NVRx .* none with the score of a rank"),
        (logged(dict.fromkeys(range(4), 97.0)), "gives rank . the score 97, above 1"),
        (["GPU relative performance:", "  Rank=1 Host=a Result=0.5"], "none with the score of a rank"),
    ],
    ids=["nan", "percent", "renamed"],
)
def test_logs_without_scores_are_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        rca.read_window(log(tmp_path, lines))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json_lines([document(1, relative=0.5)])[:-40], r"job\.json is no complete report of NVRx"),
        (json_lines([document(1)]), "neither .*_perf_scores nor local_section_summaries"),
        (json_lines([document(1, sections={"step": 4e12})]), "its times are not milliseconds"),
        (json_lines([document(1, gpu_relative_perf_scores=[0.5])]), "is no complete report"),
    ],
    ids=["cut", "empty", "unit", "list"],
)
def test_damaged_json_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "job.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=message):
        rca.read_window(path)
