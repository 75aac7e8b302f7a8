"""`rca evaluate` from the shell: the same answers however they are computed and written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from rca.cli import run
from rca.commands.evaluate import training_seeds
from rca.errors import InvalidInput
from rca.lab.evaluation.run import PRODUCT, RULES, EvaluationPlan, evaluate_collection, forest_from_collection
from rca.lab.evaluation.signal_sets import SIGNAL_SETS
from rca.lab.simulation import sample_second, simulate
from rca.lab.simulation.mechanisms.parts import changed
from rca.lab.training.collection import simulate_collection
from rca.lab.training.split import part_of
from rca.sources.labels import WindowLabel, write_labelled, write_manifest
from rca.workers import Workers

pytestmark = pytest.mark.slow
N_WINDOWS = 6


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collections") / "corpus"
    simulate_collection(folder, N_WINDOWS, seed=4)
    return folder


@pytest.fixture
def rca(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "120")  # pytest-xdist hands its own width to the workers

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            run(["evaluate", *map(str, arguments)])
        told = capsys.readouterr()
        return int(left.value.code or 0), told.out, told.err

    return call


def test_the_plain_command_tells_windows_scores_and_alarms(rca, real_windows: Path) -> None:
    code, out, _ = rca(real_windows)
    assert code == 0
    assert "cpu-contention-node" in out
    assert "failure_mode_accuracy" in out
    assert "false alarms per healthy job-hour" in out
    assert "random forest" not in out


def test_what_was_learned_from_is_said_and_can_be_left_out(rca, real_windows: Path) -> None:
    entries = json.loads((real_windows / "manifest.json").read_text())["windows"]
    held_out = [each["id"] for each in entries if each.get("split") == "test"]
    _, _, err = rca(real_windows)
    assert f"{len(entries) - len(held_out)} of {len(entries)} windows are not in the test part" in err
    code, out, err = rca(real_windows, "--part", "test", "--format", "json")
    assert code == 0
    assert [each["id"] for each in json.loads(out)["windows"]] == held_out
    assert "not in the test part" not in err
    code, _, err = rca(real_windows, "--part", "validation")
    assert code == 2
    assert "the collection has test 1, train 7" in err


def test_a_window_is_printed_under_the_name_it_has(rca, real_windows: Path, tmp_path: Path) -> None:
    shutil.copytree(real_windows / "healthy", tmp_path / "window")
    entry = {"id": "[/red] :bug: [b]", "path": "window"}
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 1, "windows": [entry]}))
    code, out, _ = rca(tmp_path)
    assert code == 0
    assert entry["id"] in out


def test_json_has_scores_groups_and_confusion(rca, real_windows: Path) -> None:
    code, out, _ = rca(real_windows, "--format", "json", "--by", "cause")
    found = json.loads(out)
    assert code == 0
    assert found["scores"]["failure_mode_accuracy"]["n"] == 8
    assert set(found["groups"]["cause"]) == set(found["confusion"])
    assert len(found["windows"]) == found["n_windows"] == 8


@pytest.mark.long
def test_every_signal_set_and_baseline_is_judged_on_every_window(corpus: Path) -> None:
    plan = EvaluationPlan(tuple(SIGNAL_SETS), baselines=True)
    rows = evaluate_collection(corpus, plan).rows
    assert len(rows) == N_WINDOWS * len(SIGNAL_SETS) * (1 + len(RULES))
    assert {row.method for row in rows} == {PRODUCT, *RULES}


@pytest.mark.long
def test_workers_have_no_influence_on_the_result(corpus: Path, two_workers: Workers) -> None:
    plan = EvaluationPlan(("phases-only",), baselines=True)
    alone = evaluate_collection(corpus, plan).rows
    shared = evaluate_collection(corpus, plan, workers=two_workers).rows
    assert list(map(repr, alone)) == list(map(repr, shared))


@pytest.mark.long
def test_a_report_is_four_files(rca, corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    folder = tmp_path / "evaluation"
    code, out, _ = rca(corpus, "--baselines", "--forest-windows", 30, "--delay", "-o", folder)
    assert code == 0
    assert "random forest" in out
    assert sorted(path.name for path in folder.iterdir()) == [
        "confusion.png", "judged.parquet", "report.md", "scores.json",
    ]  # fmt: skip
    assert pq.read_table(folder / "judged.parquet").num_rows == N_WINDOWS * 5
    scores = json.loads((folder / "scores.json").read_bytes())
    assert set(scores["methods"]["all"]) == {PRODUCT, *RULES, "random forest"}
    assert set(scores["detection_delay_steps"]) == {"faulty", "healthy"}
    report = (folder / "report.md").read_text()
    for heading in ("Methods compared", "By world size", "Detection delay", "Confusion"):
        assert f"## {heading}" in report


@pytest.mark.system
def test_a_forest_is_never_measured_on_its_own_training_windows(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    with pytest.raises(InvalidInput, match="is also evaluated"):
        forest_from_collection(corpus, corpus)
    simulate_collection(tmp_path / "other", N_WINDOWS, seed=5)
    assert forest_from_collection(tmp_path / "other", corpus).n_windows == N_WINDOWS


def test_the_forest_s_scenarios_belong_to_training() -> None:
    seeds = training_seeds(50)
    assert len(set(seeds)) == 50
    assert {part_of(f"simulation-{seed}") for seed in seeds} == {"train"}


def test_windows_without_steps_have_an_unknown_cost_and_are_scored_by_mechanism(rca, tmp_path: Path) -> None:
    drawn = sample_second(np.random.default_rng(2), mechanism="vanished_rank")
    made = simulate(changed(drawn, telemetry={"steps_reported": False}))
    write_labelled(made.window, WindowLabel.model_validate(made.label), tmp_path / "bare")
    write_manifest(tmp_path, [{"id": "bare", "path": "bare"}], {})
    code, out, err = rca(tmp_path, "--by", "mechanism")
    assert (code, err.count("rror")) == (0, 0)
    assert "unknown" in out
    assert "vanished_rank" in out


def test_an_empty_collection_is_refused(rca, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 1, "windows": []}')
    code, _, err = rca(tmp_path)
    assert code == 2
    assert "has no windows" in err


def test_unknown_signals_are_an_argument_error(rca, real_windows: Path) -> None:
    code, _, err = rca(real_windows, "--signals", "everything")
    assert code == 2
    assert "no-gpu-metrics" in err
