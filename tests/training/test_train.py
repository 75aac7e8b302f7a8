"""`train` end to end on the smallest corpus that has every kind of window in every part."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

import rca
from rca.diagnosis.bundle import REGISTERED_FILE
from rca.errors import InvalidInput, SourceError
from rca.lab.training import heads
from rca.lab.training import mechanism_checks as checks
from rca.lab.training.feature_cache import FeatureCache
from rca.lab.training.promotion import promote
from rca.lab.training.registry import Registry
from rca.lab.training.run import TrainedBundle, train
from rca.workers import HERE, Workers

pytest.importorskip("mlflow")
pytest.importorskip("dowhy")

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    # MLflow asks SQLAlchemy for it.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
]
N_WINDOWS, SEED = 200, 3
REAL = Path(__file__).resolve().parents[2] / "data" / "windows"
COMMAND = f"rca train --windows {N_WINDOWS} --seed {SEED} --collection mine"
LEARNED, TESTED = ("slow-dataset", "cpu-contention-node"), ("killed-rank", "healthy")


@pytest.fixture(scope="module", autouse=True)
def _few_rounds() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heads, "MAX_ROUNDS", 24)
        patch.setattr(heads, "PATIENCE", 4)
        patch.setattr(checks, "SIMULATIONS", 3)
        patch.setattr(checks, "PERMUTATIONS", 4)
        yield


def _collection(folder: Path, tested: tuple[str, ...]) -> Path:
    """Real windows of which some are tested on and the others are learned from."""
    entries = []
    for name in (*LEARNED, *TESTED):
        shutil.copytree(REAL / name, folder / name)
        entries.append({"id": name, "path": name, "split": "test" if name in tested else "train"})
    (folder / "manifest.json").write_bytes(orjson.dumps({"format": 1, "windows": entries}))
    return folder


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _collection(tmp_path_factory.mktemp("collections") / "mine", TESTED)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tracking") / "mlflow.db"


@pytest.fixture(scope="module")
def phases() -> list[str]:
    return []


@pytest.fixture(scope="module")
def result(
    tmp_path_factory: pytest.TempPathFactory,
    store: Path,
    phases: list[str],
    mine: Path,
    shared_features: FeatureCache,
) -> TrainedBundle:
    def progress(phase: str, done: int, total: int) -> None:
        assert 0 <= done <= total
        if phase not in phases:
            phases.append(phase)

    output = tmp_path_factory.mktemp("first") / "bundle"
    return train(
        output,
        n_windows=N_WINDOWS,
        seed=SEED,
        collections=[mine],
        workers=HERE,
        cache=shared_features,
        tracking_uri=f"sqlite:///{store}",
        progress=progress,
    )


@pytest.mark.long
def test_the_same_seed_gives_the_same_bundle_byte_for_byte(
    result: TrainedBundle, mine: Path, shared_features: FeatureCache, tmp_path: Path, two_workers: Workers
) -> None:
    """The second time with the features that the first run kept; two workers instead of one."""
    again = train(
        tmp_path / "bundle",
        n_windows=N_WINDOWS,
        seed=SEED,
        collections=[mine],
        workers=two_workers,
        cache=shared_features,
    )
    assert again.sha256 == result.sha256
    assert again.corpus_digest == result.corpus_digest
    assert again.card == result.card
    assert (again.run_id, again.version) == (None, None)
    assert (rca.Bundle.load(result.bundle).model.registry_version, result.version) == (1, 1)
    for path in (each for each in result.bundle.iterdir() if each.name != REGISTERED_FILE):
        assert (again.bundle / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_bundle_loads_and_diagnoses(result: TrainedBundle, make_window) -> None:
    bundle = rca.Bundle.load(result.bundle)
    assert bundle.model.sha256 == result.sha256
    assert bundle.manifest["provenance"]["corpus_sha256"] == result.corpus_digest
    assert bundle.manifest["provenance"]["command"] == COMMAND
    diagnosis = rca.diagnose(make_window(late={5: 0.1}, steps=slice(12, 30)), bundle=bundle)
    assert diagnosis.model.sha256 == result.sha256
    assert sum(diagnosis.failure_mode_probability.values()) == pytest.approx(1.0)


def test_the_bundle_knows_its_limits_and_their_coverage_is_scored(result: TrainedBundle, make_window) -> None:
    doubt = rca.Bundle.load(result.bundle).classifier.doubt
    assert doubt.sets is not None
    assert doubt.familiarity is not None
    diagnosis = rca.diagnose(make_window(late={5: 0.1}, steps=slice(12, 30)), bundle=result.bundle)
    assert diagnosis.set_level == doubt.sets.level
    assert diagnosis.failure_mode in diagnosis.failure_mode_set
    assert diagnosis.quality.out_of_distribution is not None
    scores = result.test_scores
    unfelt = scores["unfelt_alarm_rate"]["n"] if "unfelt_alarm_rate" in scores else 0
    assert scores["mode_set_coverage"]["n"] == scores["failure_mode_accuracy"]["n"] + unfelt
    # 0.9 is promised; a few dozen test windows cannot tell more than this.
    assert scores["mode_set_coverage"]["high"] >= 0.9
    assert 1 <= scores["mode_set_size"]["value"] <= 3
    assert scores["cause_set_size"]["value"] >= 1


def test_no_time_or_place_of_the_run_is_in_the_bundle(result: TrainedBundle) -> None:
    """They would make two equal runs differ."""
    text = "".join(path.read_text() for path in result.bundle.iterdir() if path.suffix == ".json")
    assert str(result.bundle.parent) not in text


def test_the_scores_are_of_held_out_windows_with_intervals(result: TrainedBundle) -> None:
    accuracy = result.test_scores["failure_mode_accuracy"]
    assert 0 < accuracy["n"] < N_WINDOWS / 4
    assert accuracy["low"] <= accuracy["value"] <= accuracy["high"]
    # So small a model leaves many faults open; it is better than one that calls every job healthy.
    healthy = result.test_scores["false_alarm_rate"]["n"]
    assert accuracy["value"] > healthy / accuracy["n"] > 0


def test_the_bundle_carries_its_causal_report_and_margins(result: TrainedBundle) -> None:
    mechanisms = rca.Bundle.load(result.bundle).mechanisms
    assert {"graph", "mechanisms", "arrows", "intervals"} <= set(mechanisms.report)
    # How many causes so small a model names is chance; that they were counted is not.
    assert "causes" in mechanisms.report["intervals"]
    assert all(0 <= end <= 1 for margin in mechanisms.margins.values() for end in margin)
    assert "## Arrows" in (result.bundle / "causal.md").read_text()


def test_the_classes_shares_are_in_the_bundle(result: TrainedBundle) -> None:
    priors = rca.Bundle.load(result.bundle).classifier.heads["cause"].priors
    assert sum(priors.values()) == pytest.approx(1.0)


def test_progress_tells_what_is_being_done(result: TrainedBundle, phases: list[str]) -> None:
    del result
    assert phases[0].startswith("simulating")
    assert any(phase.startswith("head mode") for phase in phases)
    assert {"fitting heads", "refuting causal mechanisms with DoWhy"} <= set(phases)
    assert phases[-2].startswith("diagnosing held-out real")
    assert phases[-1].startswith("recording")


def test_the_run_is_tracked_with_what_it_needs_to_be_repeated(result: TrainedBundle, store: Path) -> None:
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
    files = ("manifest.json", *rca.Bundle.load(result.bundle).manifest["files"])
    assert held == {f"bundle/{name}" for name in files}
    assert {each.path for each in client.list_artifacts(result.run_id)} >= {
        "causal_report.json", "data.json", "evaluation", "model_card.md", "provenance.json",
    }  # fmt: skip
    digests = {each.dataset.name: each.dataset.digest for each in run.inputs.dataset_inputs}
    assert digests["simulated"] == result.corpus_digest[:32]
    assert len(digests["mine"]) == 32


def test_real_windows_are_scored_apart(result: TrainedBundle) -> None:
    assert set(result.real_scores) == {"mine"}
    assert result.real_scores["mine"]["failure_mode_accuracy"]["n"] == len(TESTED)
    assert "### Collection mine" in result.card


def test_the_run_is_registered_as_the_challenger_with_its_card(result: TrainedBundle, store: Path) -> None:
    registry = Registry(f"sqlite:///{store}")
    found = registry.get("challenger")
    assert (found.number, found.run_id) == (result.version, result.run_id)
    assert found.sha256 == result.sha256
    assert found.tags["corpus.sha256"] == result.corpus_digest
    assert registry.document(found, "model_card.md") == result.card
    assert f"`{COMMAND}`" in result.card


@pytest.mark.usefixtures("comparisons_here")
@pytest.mark.long
def test_the_gate_asks_for_the_real_windows_and_leaves_out_what_was_learned(
    result: TrainedBundle, store: Path, mine: Path, tmp_path: Path
) -> None:
    """The same windows, all of them declared as test by somebody who forgot what was learned from."""
    registry = Registry(f"sqlite:///{store}")
    assert not promote(registry, n_windows=20).windows
    careless = _collection(tmp_path / "mine", (*LEARNED, *TESTED))
    tried = promote(registry, collections=[careless], n_windows=20)
    assert tried.windows == {"simulated": 20, "mine": len(TESTED)}
    kept = json.loads(registry.document(registry.get(str(tried.version)), "gate/against-shipped.json"))
    assert kept["left_out_as_learned"] == len(LEARNED)
    assert {check["source"] for check in kept["checks"]} == {"simulated", "mine", "all"}


def test_two_collections_of_one_name_are_refused_before_any_work(mine: Path, tmp_path: Path) -> None:
    other = tmp_path / "mine"
    with pytest.raises(InvalidInput, match="the name 'mine' is taken"):
        train(tmp_path / "bundle", collections=[mine, other])
    assert not (tmp_path / "bundle").exists()


def test_the_tracked_bundle_is_the_one_that_was_written(
    result: TrainedBundle, store: Path, tmp_path: Path
) -> None:
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{store}")
    folder = client.download_artifacts(result.run_id, "bundle", str(tmp_path))
    assert rca.Bundle.load(folder).model.sha256 == result.sha256


def test_a_local_store_keeps_its_artifacts_beside_it(result: TrainedBundle, store: Path) -> None:
    del result
    assert (store.parent / "mlartifacts").is_dir()


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    thesis = tmp_path / "precious" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    with pytest.raises(SourceError, match="is not a bundle, so it is not replaced"):
        train(thesis.parent, n_windows=10)
    assert thesis.read_text() == "years of work"


def test_what_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    worked: list[str] = []
    for output in (tmp_path / "file", tmp_path / "file" / "bundle"):
        with pytest.raises(SourceError):
            train(output, n_windows=10, progress=lambda phase, done, total: worked.append(phase))
    assert worked == []


def test_a_store_or_collection_that_is_not_there_is_refused_before_the_work(tmp_path: Path) -> None:
    worked: list[str] = []
    with pytest.raises(SourceError):
        train(
            tmp_path / "bundle",
            n_windows=10,
            collections=[tmp_path / "missing"],
            progress=lambda phase, done, total: worked.append(phase),
        )
    with pytest.raises(SourceError):
        train(
            tmp_path / "bundle",
            n_windows=10,
            tracking_uri="carrier-pigeon://loft",
            progress=lambda phase, done, total: worked.append(phase),
        )
    assert worked == []


def test_a_cause_outside_the_catalogue_is_refused_before_the_work(tmp_path: Path) -> None:
    folder = _collection(tmp_path / "odd", TESTED)
    file = folder / "slow-dataset" / "label.json"
    label = orjson.loads(file.read_bytes())
    label["causes"][0]["cause"] = "gremlins"
    file.write_bytes(orjson.dumps(label))
    with pytest.raises(InvalidInput, match=r"'slow-dataset': .*'gremlins' is no cause of") as error:
        train(tmp_path / "bundle", n_windows=N_WINDOWS, seed=SEED, collections=[folder])
    assert "data_loader_stall" in (error.value.hint or "")


def test_packed_windows_are_refused_before_the_work_with_what_unpacks_them(tmp_path: Path) -> None:
    packed = REAL.parent / "testbed" / "captures"
    with pytest.raises(SourceError, match="no such directory") as error:
        train(tmp_path / "bundle", n_windows=N_WINDOWS, seed=SEED, collections=[packed])
    assert "rca testbed unpack" in (error.value.hint or "")
