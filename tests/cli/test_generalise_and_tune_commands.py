"""`rca generalise` and `rca tune` pass their options on; tests/training tests the work itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rca.classify.classifier import HEADS
from rca.commands.tune import HeadName
from rca.lab.evaluation.intervals import Estimate
from rca.lab.evaluation.run import Evaluation, EvaluationPlan, evaluate_collection
from rca.lab.training import generalise as generalise_module
from rca.lab.training import tune as tune_module
from rca.lab.training.settings import read_settings
from rca.lab.training.tune import TunedHead

WINDOWS = Path(__file__).resolve().parents[2] / "data" / "windows"


@pytest.fixture
def passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Arguments of the last call."""
    held: dict[str, Any] = {}

    def generalise(n_windows: int, seed: int, collections: Any, **options: Any) -> Evaluation:
        held.update(options, n_windows=n_windows, collections=list(collections))
        return Evaluation(EvaluationPlan(), "a fold", evaluate_collection(WINDOWS).cases[:2])

    def tune(n_windows: int, seed: int, collections: Any, **options: Any) -> list[TunedHead]:
        held.update(options, n_windows=n_windows, collections=list(collections))
        return [
            TunedHead("scope", 0.4, Estimate(0.1, 0.05, 0.2, 90), {"num_leaves": 7}),
            TunedHead("mode", 0.4, Estimate(0.0, -0.1, 0.1, 90), {"num_leaves": 9}),
        ]

    monkeypatch.setattr(generalise_module, "generalise", generalise)
    monkeypatch.setattr(tune_module, "tune", tune)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("RCA_CACHE_DIR", raising=False)
    return held


@pytest.mark.system
def test_generalise_writes_its_report(rca_command: Any, passed_on: dict[str, Any], tmp_path: Path) -> None:
    mine, out = tmp_path / "mine", tmp_path / "out"
    ran = rca_command("generalise", "--collection", mine, "--by", "model", "--output", out)
    assert ran.code == 0
    assert (passed_on["n_windows"], passed_on["by"], passed_on["settings"]) == (3000, "model", None)
    assert passed_on["collections"] == [mine]
    assert passed_on["results"] == tmp_path / "straggler-rca" / "examples" / "folds"
    assert {"report.md", "scores.json", "judged.parquet"} <= {path.name for path in out.iterdir()}


def test_generalise_writes_json(rca_command: Any, passed_on: dict[str, Any]) -> None:
    ran = rca_command("generalise", "--collection", "mine", "--windows", "600", "--format", "json")
    assert json.loads(ran.out)["n_windows"] == 2
    assert passed_on["n_windows"] == 600


def test_tune_writes_the_settings_of_the_heads_that_won(
    rca_command: Any, passed_on: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "tuned.json"
    ran = rca_command("tune", "--head", "scope", "--head", "mode", "--trials", "5", "--output", file)
    assert ran.code == 0
    assert (passed_on["heads"], passed_on["trials"]) == (["scope", "mode"], 5)
    assert read_settings(file) == {"scope": {"num_leaves": 7}}
    assert "tuned" in ran.out


def test_generalise_fits_with_tuned_settings(
    rca_command: Any, passed_on: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "tuned.json"
    rca_command("tune", "--output", file)
    rca_command("generalise", "--collection", "mine", "--settings", file)
    assert passed_on["settings"] == {"scope": {"num_leaves": 7}}


def test_invalid_settings_are_refused_before_any_work(
    rca_command: Any, passed_on: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "tuned.json"
    file.write_text('{"format": 1, "heads": {"mode": {"num_threads": 2}}}')
    for command in (("generalise", "--collection", "mine"), ("train", "--output", tmp_path / "bundle")):
        ran = rca_command(*command, "--settings", file)
        assert ran.code == 2
        assert "cannot be set" in ran.err
    assert passed_on == {}


def test_every_head_can_be_named() -> None:
    assert {each.value for each in HeadName} == set(HEADS)
