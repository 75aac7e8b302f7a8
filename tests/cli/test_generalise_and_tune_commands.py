"""`rca generalise` and `rca tune` hand on what they are asked for; the work is tested in tests/training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rca.classify.classifier import HEADS
from rca.commands.tune import HeadName
from rca.evaluation.intervals import Estimate
from rca.training.generalisation import run as generalisation_run
from rca.training.generalisation.run import Generalisation
from rca.training.settings import read_settings
from rca.training.tuning import run as tuning_run
from rca.training.tuning.nested import Effort, TunedHead
from rca.training.tuning.run import Tuning


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the work was called with."""
    held: dict[str, Any] = {}

    def generalise(n_windows: int, seed: int, collections: Any, **options: Any) -> Generalisation:
        held.update(options, n_windows=n_windows, collections=list(collections))
        return Generalisation("rca generalise", "c" * 64, {}, ())

    def tune(n_windows: int, seed: int, collections: Any, **options: Any) -> Tuning:
        held.update(options, n_windows=n_windows, collections=list(collections))
        won = TunedHead("scope", 90, 0.4, Estimate(0.1, 0.05, 0.2, 90), {"num_leaves": 7})
        lost = TunedHead("mode", 90, 0.4, Estimate(0.0, -0.1, 0.1, 90), None)
        return Tuning("rca tune", "c" * 64, (won, lost))

    monkeypatch.setattr(generalisation_run, "generalise", generalise)
    monkeypatch.setattr(tuning_run, "tune", tune)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("RCA_CACHE_DIR", raising=False)
    return held


def test_generalise_writes_its_report(rca_command: Any, asked: dict[str, Any], tmp_path: Path) -> None:
    mine, out = tmp_path / "mine", tmp_path / "out"
    ran = rca_command("generalise", "--collection", mine, "--per-cell", "3", "--output", out)
    assert ran.code == 0
    assert (asked["n_windows"], asked["per_cell"], asked["settings"]) == (3000, 3, None)
    assert asked["collections"] == [mine]
    assert asked["keep"] == tmp_path / "straggler-rca" / "examples" / "folds"
    assert {"report.md", "scores.json"} <= {path.name for path in out.iterdir()}


def test_generalise_speaks_json(rca_command: Any, asked: dict[str, Any]) -> None:
    told = json.loads(rca_command("generalise", "--windows", "600", "--format", "json").out)
    assert told["command"] == "rca generalise"
    assert asked["n_windows"] == 600


def test_tune_writes_the_settings_of_the_heads_that_won(
    rca_command: Any, asked: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "tuned.json"
    ran = rca_command("tune", "--head", "scope", "--head", "mode", "--trials", "5", "--output", file)
    assert ran.code == 0
    assert (asked["heads"], asked["effort"]) == (["scope", "mode"], Effort(trials=5, outer=3, inner=2))
    assert read_settings(file) == {"scope": {"num_leaves": 7}}
    assert "settings stay" in " ".join(ran.out.split())


def test_generalise_learns_with_tuned_settings(
    rca_command: Any, asked: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "tuned.json"
    rca_command("tune", "--output", file)
    rca_command("generalise", "--settings", file)
    assert asked["settings"] == {"scope": {"num_leaves": 7}}


def test_settings_that_cannot_be_are_refused_before_any_work(
    rca_command: Any, asked: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "tuned.json"
    file.write_text('{"format": 1, "heads": {"mode": {"num_threads": 2}}}')
    for command in (("generalise",), ("train", "--output", tmp_path / "bundle")):
        ran = rca_command(*command, "--settings", file)
        assert ran.code == 2
        assert "cannot be set" in ran.err
    assert asked == {}


def test_every_head_can_be_named() -> None:
    assert {each.value for each in HeadName} == set(HEADS)
