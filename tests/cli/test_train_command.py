"""`rca train` hands on what it is asked for; training itself is tested in tests/training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rca.lab.training import run
from rca.lab.training.run import TrainedBundle
from rca.lab.training.tracking import default_uri
from rca_api.shell.settings.settings import Settings


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What `train` was called with."""
    held: dict[str, Any] = {}

    def train(output: Path, **options: Any) -> TrainedBundle:
        held.update(options)
        score = {"accuracy": {"value": 0.9, "low": 0.8, "high": 1.0, "n": 20}}
        return TrainedBundle(output, "a" * 64, "c" * 64, score, {"mine": score}, "# Card", "run-1", 7)

    monkeypatch.setattr(run, "train", train)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("RCA_CACHE_DIR", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return held


def test_features_are_kept_and_the_bundle_is_registered_unless_told_otherwise(
    rca_command: Any, asked: dict[str, Any], tmp_path: Path
) -> None:
    ran = rca_command("train", "--output", tmp_path / "bundle", "--card", tmp_path / "card.md")
    assert ran.code == 0
    assert ran.err.startswith("loading modules: ")
    assert asked["cache"].folder == tmp_path / "straggler-rca" / "examples"
    assert (asked["registered"], asked["tracking_uri"]) == (True, Settings().registry_uri)
    assert "registered as version 7, the challenger" in ran.out
    assert "held-out windows of mine" in ran.out
    assert (tmp_path / "card.md").read_text() == "# Card\n"


def test_models_are_looked_up_in_the_store_of_the_service(
    rca_command: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("RCA_TRACKING_URI", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RCA_DATA_DIR", str(tmp_path))
    assert default_uri() == Settings().registry_uri == f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("RCA_TRACKING_URI", f"sqlite:///{tmp_path / 'other.db'}")
    assert "there is no MLflow store at this URI" in rca_command("models", "list").err


def test_neither_cache_nor_registry_nor_tracking_if_not_wanted(
    rca_command: Any, asked: dict[str, Any], tmp_path: Path
) -> None:
    rca_command("train", "--output", tmp_path / "bundle", "--no-cache", "--no-tracking", "--no-register")
    assert (asked["cache"], asked["registered"], asked["tracking_uri"]) == (None, False, None)


def test_the_alarm_alone_is_fitted_again_of_a_bundle_or_the_shipped_one(
    rca_command: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken: list[tuple[Path, dict[str, Any]]] = []

    def fit_alarm_only(bundle: Path, output: Path, **options: Any) -> str:
        taken.append((bundle, options))
        return "b" * 64

    monkeypatch.setattr(run, "fit_alarm_only", fit_alarm_only)
    ran = rca_command("train", "--alarm-of", "shipped", "--output", tmp_path / "ours", "--seed", "7")
    assert ran.code == 0
    assert f"rca evaluate COLLECTION --bundle {tmp_path / 'ours'}" in ran.out
    rca_command("train", "--alarm-of", tmp_path / "mine", "--output", tmp_path / "ours", "--windows", "300")
    (shipped, first), (mine, second) = taken
    assert (shipped / "alarm.txt.gz").is_file()
    assert (first["seed"], first["n_windows"]) == (7, 4000)
    assert (mine, second["n_windows"]) == (tmp_path / "mine", 300)


def test_a_bundle_that_is_not_there_is_refused_before_anything_is_simulated(
    rca_command: Any, tmp_path: Path
) -> None:
    ran = rca_command("train", "--alarm-of", tmp_path / "nothing", "--output", tmp_path / "ours")
    assert ran.code != 0
    assert "manifest.json" in ran.err
    assert not (tmp_path / "ours").exists()


def test_the_cache_may_lie_elsewhere(rca_command: Any, asked: dict[str, Any], tmp_path: Path) -> None:
    rca_command("train", "--output", tmp_path / "bundle", "--cache", tmp_path / "elsewhere")
    assert asked["cache"].folder == tmp_path / "elsewhere"


def test_a_training_may_continue_from_the_shipped_bundle_or_another(
    rca_command: Any, asked: dict[str, Any], tmp_path: Path
) -> None:
    rca_command("train", "--output", tmp_path / "bundle")
    assert asked["continue_from"] is None
    rca_command("train", "--output", tmp_path / "bundle", "--continue-from", tmp_path / "mine")
    assert asked["continue_from"] == tmp_path / "mine"
    rca_command("train", "--output", tmp_path / "bundle", "--continue-from", "shipped")
    assert (asked["continue_from"] / "manifest.json").is_file()
