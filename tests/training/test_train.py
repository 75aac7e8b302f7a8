"""`train` end to end on the smallest corpus that has every kind of window in every part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import rca
from rca.training import heads
from rca.training.run import TrainingResult, train

pytest.importorskip("mlflow")
pytest.importorskip("dowhy")

pytestmark = [
    pytest.mark.slow,
    # MLflow asks SQLAlchemy for it.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
]
N_WINDOWS, SEED = 260, 3


@pytest.fixture(scope="module", autouse=True)
def _few_rounds() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heads, "MAX_ROUNDS", 12)
        patch.setattr(heads, "PATIENCE", 4)
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tracking") / "mlflow.db"


@pytest.fixture(scope="module")
def phases() -> list[str]:
    return []


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, store: Path, phases: list[str]) -> TrainingResult:
    def progress(phase: str, done: int, total: int) -> None:
        assert 0 <= done <= total
        if phase not in phases:
            phases.append(phase)

    output = tmp_path_factory.mktemp("first") / "bundle"
    return train(
        output,
        n_windows=N_WINDOWS,
        seed=SEED,
        processes=1,
        tracking_uri=f"sqlite:///{store}",
        progress=progress,
    )


def test_the_same_seed_gives_the_same_bundle_byte_for_byte(result: TrainingResult, tmp_path: Path) -> None:
    again = train(tmp_path / "bundle", n_windows=N_WINDOWS, seed=SEED, processes=1)
    assert again.sha256 == result.sha256
    assert again.corpus_digest == result.corpus_digest
    for path in result.bundle.iterdir():
        assert (again.bundle / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_bundle_loads_and_diagnoses(result: TrainingResult, make_window) -> None:
    bundle = rca.Bundle.load(result.bundle)
    assert bundle.model.sha256 == result.sha256
    assert bundle.manifest["provenance"]["corpus_sha256"] == result.corpus_digest
    assert bundle.manifest["provenance"]["command"] == f"rca train --windows {N_WINDOWS} --seed {SEED}"
    diagnosis = rca.diagnose(make_window(late={5: 0.1}, steps=slice(12, 30)), bundle=bundle)
    assert diagnosis.model.sha256 == result.sha256
    assert sum(diagnosis.failure_mode_probability.values()) == pytest.approx(1.0)


def test_no_time_or_place_of_the_run_is_in_the_bundle(result: TrainingResult) -> None:
    """They would make two equal runs differ."""
    text = "".join(path.read_text() for path in result.bundle.iterdir() if path.suffix == ".json")
    assert str(result.bundle.parent) not in text


def test_the_scores_are_of_held_out_windows_with_intervals(result: TrainingResult) -> None:
    accuracy = result.test_scores["failure_mode_accuracy"]
    assert 0 < accuracy["n"] < N_WINDOWS / 4
    assert accuracy["low"] <= accuracy["value"] <= accuracy["high"]
    assert accuracy["value"] > 0.5


def test_the_bundle_carries_its_causal_report_and_margins(result: TrainingResult) -> None:
    mechanisms = rca.Bundle.load(result.bundle).mechanisms
    assert {"graph", "mechanisms", "arrows", "intervals"} <= set(mechanisms.report)
    assert mechanisms.report["intervals"]["causes"] > 0
    assert all(margin >= 0 for margin in mechanisms.margins.values())
    assert "## Arrows" in (result.bundle / "causal.md").read_text()


def test_the_classes_shares_are_in_the_bundle(result: TrainingResult) -> None:
    priors = rca.Bundle.load(result.bundle).classifier.heads["cause"].priors
    assert sum(priors.values()) == pytest.approx(1.0)


def test_progress_tells_what_is_being_done(result: TrainingResult, phases: list[str]) -> None:
    del result
    assert phases[0].startswith("simulating")
    assert any(phase.startswith("head mode") for phase in phases)
    assert phases[-1].startswith("diagnosing held-out")


def test_the_run_is_tracked_with_what_it_needs_to_be_repeated(result: TrainingResult, store: Path) -> None:
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{store}")
    run = client.get_run(result.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["n_windows"] == str(N_WINDOWS)
    assert run.data.params["seed"] == str(SEED)
    assert {"lightgbm_learning_rate", "threshold_fault"} <= run.data.params.keys()
    assert run.data.tags["dataset.sha256"] == result.corpus_digest
    scored = result.test_scores["failure_mode_accuracy"]["value"]
    assert run.data.metrics["test_failure_mode_accuracy_value"] == pytest.approx(scored)
    assert {"test_cause_ac_at_1_value", "test_cause_ac_at_1_low"} <= run.data.metrics.keys()
    held = {each.path for each in client.list_artifacts(result.run_id, "bundle")}
    assert held == {f"bundle/{path.name}" for path in result.bundle.iterdir()}
    assert {"causal_report.json", "provenance.json"} <= {
        each.path for each in client.list_artifacts(result.run_id)
    }


def test_the_tracked_bundle_is_the_one_that_was_written(
    result: TrainingResult, store: Path, tmp_path: Path
) -> None:
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{store}")
    folder = client.download_artifacts(result.run_id, "bundle", str(tmp_path))
    assert rca.Bundle.load(folder).model.sha256 == result.sha256


def test_a_local_store_keeps_its_artifacts_beside_it(result: TrainingResult, store: Path) -> None:
    del result
    assert (store.parent / "mlartifacts").is_dir()
