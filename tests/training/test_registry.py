"""Versions, aliases and the gate between them, in a real MLflow store; and `rca models` on top."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("mlflow")

from registered import SHIPPED, add_version, bundle_copy, facts

from rca.cli import run as run_command_line
from rca.diagnosis import Bundle
from rca.errors import BundleError, InvalidInput, SourceError
from rca.lab.training import run_record
from rca.lab.training.model_card import Card
from rca.lab.training.promotion import FORCED, OUTCOME, Promotion, promote
from rca.lab.training.registry import ORDER, Registry
from rca_api.models import registry_process

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.usefixtures("comparisons_here"),
    # MLflow asks SQLAlchemy for it.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
]
#: Enough for a spoilt bundle to be told from a sound one.
N_WINDOWS = 24
#: Thresholds that next to nothing reaches.
DEAF = dict.fromkeys(("fault", "fault_costly", "fault_whole", "fault_unseen"), 0.9999)
WINDOWS = Path(__file__).resolve().parents[2] / "data" / "windows"


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three that answer alike, and one that hardly ever raises an alarm."""
    folder = tmp_path_factory.mktemp("bundles")
    sound = {name: bundle_copy(folder / name, name) for name in ("first", "second")}
    return {**sound, "deaf": bundle_copy(folder / "deaf", "deaf", **DEAF)}


@pytest.fixture(scope="module")
def registry(uri: str, bundles: dict[str, Path]) -> Iterator[Registry]:
    """Version 1 first, 2 deaf, 3 second."""
    for name in ("first", "deaf", "second"):
        add_version(uri, bundles[name])
    return Registry(uri)


def attempt(registry: Registry, name: str, **options: Any) -> Promotion:
    return promote(registry, name, n_windows=N_WINDOWS, **options)


def aliases(registry: Registry) -> dict[str, int]:
    return {alias: each.number for each in registry.versions() for alias in each.aliases}


@pytest.fixture
def models(uri: str, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: object) -> Ran:
        with pytest.raises(SystemExit) as left:
            run_command_line(["models", *map(str, arguments), "--tracking-uri", uri])
        told = capsys.readouterr()
        return Ran(left.value.code if isinstance(left.value.code, int) else 0, told.out, told.err)

    return run


# The tests below tell one story, in order: a store is too slow to make anew for each of them.


def test_the_newest_version_is_the_challenger_and_nothing_is_promoted_by_itself(registry: Registry) -> None:
    assert [each.number for each in registry.versions()] == [3, 2, 1]
    assert aliases(registry) == {"challenger": 3}
    assert registry.get("challenger").sha256 != registry.get("1").sha256
    assert registry.find("champion") is None
    with pytest.raises(InvalidInput, match="no registered version 'champion'"):
        registry.get("champion")
    with pytest.raises(InvalidInput, match="no champion to roll back"):
        registry.rollback()


def test_without_a_champion_the_shipped_bundle_is_what_has_to_be_matched(registry: Registry) -> None:
    refused = attempt(registry, "2")
    assert (refused.promoted, refused.against) == (False, None)
    assert any("failure_mode_accuracy" in reason for reason in refused.verdict.reasons)
    assert aliases(registry) == {"challenger": 3}
    kept = json.loads(registry.document(registry.get("2"), "gate/against-shipped.json"))
    assert kept["reasons"] == list(refused.verdict.reasons)
    assert len(kept["test_sha256"]) == 64
    run = registry.client().get_run(registry.get("2").run_id)
    assert run.info.run_name == "100 simulated, seed 1"
    assert run.data.tags[OUTCOME] == "worse"
    description = run.data.tags["mlflow.note.content"]
    assert description.startswith("Worse than the shipped bundle: simulated: failure_mode_accuracy -")

    accepted = attempt(registry, "1")
    assert (accepted.promoted, accepted.verdict.outcome) == (True, "as good")
    assert accepted.windows == {"simulated": N_WINDOWS}
    assert aliases(registry) == {"challenger": 3, "champion": 1}
    assert registry.get("champion").tags[OUTCOME] == "as good"


def test_promotion_remembers_the_champion_before(registry: Registry, models: Any) -> None:
    told = models("promote", "--windows", N_WINDOWS, "--format", "json")
    assert (told.code, json.loads(told.out)["promoted"]) == (0, True)
    assert aliases(registry) == {"champion": 3, "previous": 1}
    with pytest.raises(InvalidInput, match="already the champion"):
        attempt(registry, "3")


def test_the_command_says_what_the_gate_says(registry: Registry, models: Any) -> None:
    refused = models("promote", "2", "--windows", N_WINDOWS)
    assert refused.code == 3
    assert "version 2 against version 3: worse" in refused.out
    assert "not promoted; --force REASON" in refused.out
    assert registry.get("2").tags[OUTCOME] == "worse"
    assert aliases(registry) == {"champion": 3, "previous": 1}


def test_force_promotes_for_a_reason_that_is_kept(registry: Registry) -> None:
    result = attempt(registry, "2", force="rehearsing a rollback")
    assert (result.promoted, result.verdict.outcome) == (True, "worse")
    assert registry.get("champion").tags[FORCED] == "rehearsing a rollback"
    assert aliases(registry) == {"champion": 2, "previous": 3}


def test_rollback_goes_back_step_by_step_to_the_shipped_bundle(registry: Registry, models: Any) -> None:
    told = json.loads(models("rollback", "--reason", "deaf", "--format", "json").out)
    assert told == {"from": 2, "to": 3}
    assert registry.get("2").tags["rollback.reason"] == "deaf"
    assert aliases(registry) == {"champion": 3, "previous": 1}
    assert "version 1 is the champion again" in models("rollback").out
    assert aliases(registry) == {"champion": 1}
    assert "the shipped bundle is used" in models("rollback").out
    assert aliases(registry) == {}


def test_real_windows_that_were_tested_on_must_be_given(registry: Registry, bundles: dict[str, Path]) -> None:
    seen = {"windows": {"sha256": "d" * 64, "parts": {}, "learned": [], "tested": ["e" * 64]}}
    number = add_version(registry.uri, bundles["second"], seen)
    refused = attempt(registry, str(number))
    assert not refused.promoted
    assert refused.windows == {}
    assert refused.verdict.reasons == ("collection 'windows' is missing: a version was tested on it",)


def test_a_champion_moved_meanwhile_is_not_overwritten(registry: Registry) -> None:
    registry.promote(registry.get("1"), None)
    with pytest.raises(InvalidInput, match="has changed since the comparison"):
        registry.promote(registry.get("3"), None)
    assert aliases(registry)["champion"] == 1


def test_two_who_roll_back_at_once_go_back_one_version(registry: Registry) -> None:
    registry.promote(registry.get("3"), registry.get("1"))
    was, now = registry.rollback("blames healthy nodes", expected=3)
    assert (was.number, now and now.number) == (3, 1)
    with pytest.raises(InvalidInput, match="version 3 is not the champion; version 1 is"):
        registry.rollback("blames healthy nodes", expected=3)
    assert aliases(registry)["champion"] == 1


def test_who_asks_for_a_version_again_is_seen_by_all_followers(registry: Registry, models: Any) -> None:
    before = registry_process.aliases(registry.uri)["champion"]
    assert before["asked"]
    assert "version 1 again" in models("retry").out
    after = registry_process.aliases(registry.uri)["champion"]
    assert after["asked"] > before["asked"]
    assert {**after, "asked": ""} == {**before, "asked": ""}


def test_a_registered_bundle_is_fetched_verified_and_diagnoses(
    registry: Registry, models: Any, bundles: dict[str, Path], tmp_path: Path
) -> None:
    target = tmp_path / "new" / "champion"
    assert models("fetch", "champion", "--output", target).code == 0
    fetched = Bundle.load(target).model
    assert (fetched.sha256, fetched.registry_version) == (registry.get("1").sha256, 1)
    assert sorted(path.name for path in target.parent.iterdir()) == ["champion"]
    again = models("fetch", "champion", "--output", target)
    assert (again.code, "exists already" in again.err) == (2, True)


def test_mlflow_loads_a_version_without_pickle_and_it_answers_windows(registry: Registry) -> None:
    import mlflow
    import pandas as pd

    mlflow.set_tracking_uri(registry.uri)
    model = mlflow.pyfunc.load_model("models:/straggler-rca/1")
    asked = pd.DataFrame({"window": [str(WINDOWS / "slow-dataset"), str(WINDOWS / "healthy")]})
    found = model.predict(asked)
    assert found["failure_mode"].tolist() == ["fail_slow", "healthy"]
    assert found["cause"].tolist() == ["data_loader_stall", ""]
    assert found["seconds_per_step"][0] > 0
    model = json.loads(found["diagnosis"][0])["model"]
    assert (model["sha256"], model["registry_version"]) == (registry.get("1").sha256, 1)
    store = Path(registry.uri.removeprefix("sqlite:///")).parent
    assert not [path for path in store.rglob("*") if path.suffix in (".pkl", ".pickle", ".py", ".joblib")]


def test_a_store_that_holds_something_else_is_found_out(registry: Registry, tmp_path: Path) -> None:
    from dataclasses import replace

    with pytest.raises(BundleError, match="not the one that was registered"):
        registry.fetch(replace(registry.get("1"), sha256="0" * 64), tmp_path)


def test_a_version_with_a_garbage_description_is_rejected_and_not_an_unexpected_failure(
    registry: Registry, models: Any, tmp_path: Path
) -> None:
    source = registry.client().get_model_version_download_uri("straggler-rca", "1")
    description = Path(source.removeprefix("file://")) / "MLmodel"
    before = description.read_bytes()
    description.write_bytes(b"\xff garbage")
    try:
        with pytest.raises(BundleError, match="version 1: its MLmodel cannot be read"):
            registry_process.fetch(registry.uri, "1", str(tmp_path / "fetched"))
        refused = models("fetch", "1", "--output", tmp_path / "fetched")
        assert (refused.code, refused.err.count("\n")) == (1, 1)
    finally:
        description.write_bytes(before)
    assert list(tmp_path.iterdir()) == []


def test_list_and_show_in_text_and_json(
    registry: Registry, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")  # pytest-xdist hands its own width to the workers
    listed = models("list")
    assert listed.code == 0
    assert "champion" in listed.out
    assert "0.900" in listed.out
    found = json.loads(models("list", "--format", "json").out)
    assert [each["version"] for each in found] == [4, 3, 2, 1]
    shown = models("show", "1")
    assert f"sha256 {registry.get('1').sha256}" in shown.out
    assert json.loads(models("show", "1", "--format", "json").out)["tags"]["corpus.sha256"] == "c" * 64
    missing = models("show", "17")
    assert (missing.code, "rca models list" in missing.err) == (2, True)


def test_scores_are_asked_for_in_one_question(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    client = type(registry.client())
    asked = []
    for name in ("get_run", "search_runs", "search_model_versions", "get_model_version"):
        monkeypatch.setattr(client, name, counted(getattr(client, name), asked))
    scored = registry.with_scores(registry.versions())
    assert [each.scores["test_failure_mode_accuracy_value"] for each in scored] == [0.9] * 4
    assert asked == ["search_model_versions", "search_runs"]


def test_a_run_that_was_deleted_for_good_is_nobodys_trouble(bundles: dict[str, Path], tmp_path: Path) -> None:
    """What `mlflow gc` leaves: versions whose runs are gone."""
    from mlflow.tracking._tracking_service.utils import _get_store

    registry = Registry(f"sqlite:///{tmp_path / 'mlflow.db'}")
    for name in ("first", "second"):
        add_version(registry.uri, bundles[name])
    registry.promote(registry.get("1"), None)
    registry.promote(registry.get("2"), registry.get("1"))
    gone = registry.get("1").run_id
    registry.client().delete_run(gone)
    assert registry.with_scores([registry.get("1")])[0].scores
    _get_store(registry.uri)._hard_delete_run(gone)
    told = registry_process.versions(registry.uri)
    assert [(each["version"], bool(each["scores"])) for each in told] == [(2, True), (1, False)]
    assert registry_process.rollback(registry.uri, "blames healthy nodes", 2) == {"from": 2, "to": 1}


def counted(method: Any, asked: list[str]) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        asked.append(method.__name__)
        return method(*arguments, **options)

    return call


def test_a_mistyped_store_is_an_error_and_not_a_new_store(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no MLflow store"):
        Registry.existing(f"sqlite:///{tmp_path / 'none.db'}")
    assert list(tmp_path.iterdir()) == []


def test_the_shipped_bundle_is_untouched_by_all_this() -> None:
    assert Bundle.load(SHIPPED).model.version == "2"


@pytest.mark.long
def test_an_order_is_recorded_once_whenever_its_recorder_is_killed(
    uri: str, bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while the run is logged, before the version is made, before it becomes the challenger."""
    registry = Registry(uri)
    before = registry.versions()
    # There is nothing to be seen in pictures of no test windows.
    monkeypatch.setattr(run_record, "write_artifacts", lambda *_: None)

    def attempt() -> tuple[str, int | None]:
        return run_record.record(
            uri, bundles["second"], card(bundles["second"]), {}, registered=True, tags=order
        )

    order = {ORDER: "0" * 32}
    with monkeypatch.context() as patch:
        patch.setattr(run_record, "register", killed)
        with pytest.raises(Killed):
            attempt()
    client = registry.client()
    with monkeypatch.context() as patch:
        patch.setattr(type(client), "set_registered_model_alias", killed)
        with pytest.raises(Killed):
            attempt()
    found = registry.ordered("0" * 32)
    assert found is not None
    assert found.aliases == ()
    assert attempt() == (found.run_id, found.number)
    assert registry.get("challenger").number == found.number
    assert len(registry.versions()) == len(before) + 1
    experiment = client.get_experiment_by_name("straggler-rca").experiment_id
    runs = client.search_runs([experiment], f"tags.`{ORDER}` = '{'0' * 32}'")
    assert [run.info.run_id for run in runs] == [found.run_id]


class Killed(BaseException):
    """What a signal would do."""


def killed(*_: object, **__: object) -> None:
    raise Killed


def card(bundle: Path) -> Card:
    """Of a bundle that was tested on nothing."""
    return Card(
        name="baseline",
        version="1",
        sha256=Bundle.load(bundle).model.sha256,
        provenance={"command": "rca train", "versions": {}, "n_innocent_windows": 33},
        facts=facts(),
        thresholds={},
        rows={},
        causal_report={},
    )
