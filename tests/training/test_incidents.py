"""Real labelled windows become training data without leaking into the test."""

from __future__ import annotations

import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest

from rca.errors import InvalidInput, SourceError
from rca.lab.training import examples
from rca.lab.training.corpus import Example, stack
from rca.lab.training.heads import targets
from rca.lab.training.incidents import incident_examples, incidents, learned_incidents, varied
from rca.lab.training.telemetry_dropout import blinded
from rca.lab.training.weighting import balanced
from rca.sources.labels import WindowLabel, read_collection, read_label, write_manifest
from rca.sources.read import read_window
from rca.window import Window
from rca.workers import HERE, Workers

WINDOWS = Path(__file__).resolve().parents[2] / "data" / "windows"


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """Three real windows: one to learn from, one to calibrate on, one to be asked about."""
    folder = tmp_path / "mine"
    parts = {"slow-dataset": "train", "healthy": "calibration", "killed-rank": "test"}
    for name in parts:
        shutil.copytree(WINDOWS / name, folder / name)
    entries = [{"id": name, "path": name, "split": part} for name, part in parts.items()]
    (folder / "manifest.json").write_bytes(orjson.dumps({"format": 1, "windows": entries}))
    return folder


def incident_rows(folder: Path, seed: int = 3, workers: Workers = HERE) -> list[Example]:
    return list(incident_examples(learned_incidents(folder), seed, workers=workers, variants=4))


def test_the_manifest_decides_what_is_learned_from(collection: Path) -> None:
    found = incident_rows(collection)
    assert [each.part for each in found] == ["train"] * 4 + ["calibration"] * 4
    assert all(each.real for each in found)


def test_the_first_variant_is_the_window_itself(collection: Path) -> None:
    first = incident_rows(collection)[0]
    assert (first.mode, first.cause) == ("fail_slow", "data_loader_stall")


@pytest.mark.system
def test_the_same_seed_gives_the_same_examples_whatever_the_workers(
    collection: Path, two_workers: Workers
) -> None:
    one, two = stack(incident_rows(collection)), stack(incident_rows(collection, workers=two_workers))
    assert one.digest == two.digest
    assert stack(incident_rows(collection, seed=4)).digest != one.digest


def test_without_a_split_related_windows_stay_together(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    entries = []
    for number in range(12):
        shutil.copytree(WINDOWS / "healthy", folder / str(number))
        entries.append({"id": str(number), "path": str(number), "group": f"incident-{number % 3}"})
    (folder / "manifest.json").write_bytes(orjson.dumps({"format": 1, "windows": entries}))
    parts: dict[str, set[str]] = {}
    for each in incidents(read_collection(folder)):
        parts.setdefault(each.group, set()).add(each.part)
    assert len(parts) == 3
    assert all(len(found) == 1 for found in parts.values())


def test_what_nobody_would_have_felt_teaches_nothing(collection: Path) -> None:
    label = orjson.loads((collection / "healthy" / "label.json").read_bytes())
    label["injected"] = [{"kind": "cpu_hogs"}]
    (collection / "healthy" / "label.json").write_bytes(orjson.dumps(label))
    assert {each.part for each in incident_rows(collection)} == {"train"}


def test_real_windows_get_their_share_of_the_weight(collection: Path) -> None:
    real = incident_rows(collection)
    simulated = [replace(each, real=False) for each in real for _ in range(5)]
    corpus = stack([*simulated, *real])
    corpus = replace(corpus, weight=balanced(corpus, 0.4))
    learned = np.array(corpus.part) == "train"
    assert corpus.weight[learned & corpus.real].sum() / corpus.weight[learned].sum() == pytest.approx(0.4)
    # One capture's variants must not choose rounds, calibration and thresholds on their own.
    assert corpus.weight[~learned & corpus.real].sum() < 1.0


def test_variants_are_valid_windows_that_differ() -> None:
    window, label = read_window(WINDOWS / "cpu-contention-node"), read_label(WINDOWS / "cpu-contention-node")
    rng = np.random.default_rng(0)
    shapes = set()
    for _ in range(25):
        changed, truth = varied(window, label, rng)
        Window.from_tables(changed.job, changed.steps, changed.metrics, changed.events)
        shapes.add((changed.steps.shape, changed.metrics.num_rows, changed.job.world_size))
        assert truth.failure_mode in ("healthy", "fail_slow")
        assert all(rank < changed.job.world_size for cause in truth.causes for rank in cause.ranks)
    assert len(shapes) > 15
    assert len({size for _, _, size in shapes}) > 1


@pytest.mark.parametrize("causes", [(), ({"cause": "cpu_contention", "nodes": ["a"]},)])
def test_a_fault_without_ranks_is_not_cut_away_from_its_window(causes: tuple[dict[str, object], ...]) -> None:
    window, label = read_window(WINDOWS / "cpu-contention-node"), read_label(WINDOWS / "cpu-contention-node")
    label = WindowLabel.model_validate({**label.model_dump(), "causes": causes})
    rng = np.random.default_rng(0)
    assert {varied(window, label, rng)[0].job.world_size for _ in range(25)} == {window.job.world_size}


def test_blind_spots_only_take_away() -> None:
    window = read_window(WINDOWS / "healthy")
    rng = np.random.default_rng(1)
    for _ in range(40):
        less = blinded(window, rng)
        assert less.metrics.num_rows <= window.metrics.num_rows
        assert less.steps.num_rows == window.steps.num_rows
        added = set(less.steps.column_names) - set(window.steps.column_names)
        assert added <= {"communication_seconds"}
        assert less.steps.column("step_seconds").equals(window.steps.column("step_seconds"))


def test_a_mistyped_split_is_refused_and_not_learned_from(tmp_path: Path) -> None:
    write_manifest(tmp_path, [{"id": "held", "path": "held", "split": "Test"}], {})
    with pytest.raises(InvalidInput, match="'Test' is none of train, calibration, validation, test"):
        incidents(read_collection(tmp_path))


def test_one_incident_is_in_one_part_whatever_its_sizes_and_its_folder_are(tmp_path: Path) -> None:
    parts = set()
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        windows = [
            {"id": f"w{size}", "path": f"w{size}", "group": "g", "world_size": size} for size in (8, 16, 64)
        ]
        write_manifest(tmp_path / name, windows, {})
        parts |= {each.part for each in incidents(read_collection(tmp_path / name))}
    assert len(parts) == 1


def test_the_only_ranks_with_rows_are_kept() -> None:
    """Some producers write rank 0's rows only: a smaller job without its node would have none at all."""
    window, label = _rows_of_rank_zero()
    for seed in range(40):
        changed, _ = varied(window, label, np.random.default_rng(seed))
        assert changed.steps.num_rows > 0


def test_samples_of_a_single_moment_are_thinned_without_a_warning() -> None:
    window = read_window(WINDOWS / "healthy")
    moment = window.metrics.slice(0, 1).column("time")[0].as_py()
    time = window.metrics.column("time").to_numpy()
    once = replace(window, metrics=window.metrics.filter(time == moment))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(20):
            blinded(once, np.random.default_rng(seed))


def _rows_of_rank_zero() -> tuple[Window, WindowLabel]:
    window = read_window(WINDOWS / "healthy")
    rows = window.steps.filter(window.steps.column("rank").to_numpy() == 0)
    return replace(window, steps=rows), read_label(WINDOWS / "healthy")


def relabelled(collection: Path, **changed: object) -> Path:
    """The collection with members of the label that is learned from changed."""
    file = collection / "slow-dataset" / "label.json"
    file.write_bytes(orjson.dumps({**orjson.loads(file.read_bytes()), **changed}))
    return collection


STALL = {"cause": "data_loader_stall", "ranks": [1]}
GREMLINS = {"cause": "gremlins", "ranks": [2]}


@pytest.fixture(params=[[GREMLINS], [STALL, GREMLINS]], ids=["first", "second"])
def odd(collection: Path, request: pytest.FixtureRequest) -> Path:
    """A collection of which a label to be learned from blames what is in no catalogue."""
    return relabelled(collection, causes=request.param)


def test_labels_are_looked_at_before_anything_is_simulated(
    odd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def simulated(*_: object, **__: object) -> None:
        raise AssertionError("simulated before the labels were looked at")

    monkeypatch.setattr(examples, "simulated_examples", simulated)
    with pytest.raises(InvalidInput, match=r"'slow-dataset': .*'gremlins' is no cause of the catalogue"):
        examples.gathered(
            8, 1, [odd], variants=2, workers=HERE, cache=None, progress=lambda phase, done, total: None
        )


def test_what_is_in_no_catalogue_can_be_learned_as_such(collection: Path) -> None:
    relabelled(collection, causes=[{"cause": "unknown", "ranks": [1]}])
    assert {each.cause for each in incident_rows(collection)} == {"unknown", ""}


def test_what_nobody_felt_may_blame_anything(odd: Path) -> None:
    relabelled(odd, failure_mode="healthy", injected=[{"kind": "gremlins"}])
    assert len(learned_incidents(odd)) == 2
    assert {each.part for each in incident_rows(odd)} == {"calibration"}


def test_ranks_that_the_job_has_not_are_an_error_of_the_label(collection: Path) -> None:
    relabelled(collection, causes=[{**STALL, "ranks": [0, 99]}])
    with pytest.raises(InvalidInput, match=r"'slow-dataset': .* blames rank 99 of a job of \d+ ranks"):
        incident_rows(collection)


@pytest.mark.parametrize(
    ("changed", "without"),
    [
        ({"causes": []}, {"straggler", "scope", "type", "cause"}),
        (
            {"causes": [{**STALL, "ranks": [], "nodes": ["a"]}]},
            {"straggler", "scope", "type", "cause"},
        ),
    ],
    ids=["no causes", "no ranks"],
)
def test_what_a_label_does_not_say_teaches_the_other_heads(
    collection: Path, changed: dict[str, object], without: set[str]
) -> None:
    found = targets(stack(incident_rows(relabelled(collection, **changed))))
    for name, target in found.items():
        assert set(target.labels) <= set(target.classes), name
    learned = {name for name, target in found.items() if "train" in target.part}
    assert {"mode", "straggler", "scope", "type", "cause"} - learned == without


def test_labels_that_judge_have_to_be_there(collection: Path) -> None:
    (collection / "killed-rank" / "label.json").unlink()
    with pytest.raises(SourceError, match=r"'killed-rank'.*no such file"):
        learned_incidents(collection)


@pytest.mark.parametrize("every_part", [False, True])
def test_a_collection_without_windows_is_refused(tmp_path: Path, every_part: bool) -> None:
    write_manifest(tmp_path, [], {})
    with pytest.raises(InvalidInput, match="lists no windows"):
        learned_incidents(tmp_path, every_part=every_part)


def test_where_folds_decide_every_part_is_learned_from(collection: Path) -> None:
    found = learned_incidents(collection, every_part=True)
    assert [each.part for each in found] == ["train", "calibration", "train"]


def test_labels_that_only_judge_may_blame_anything(odd: Path) -> None:
    manifest = orjson.loads((odd / "manifest.json").read_bytes())
    manifest["windows"][0]["split"] = "test"
    (odd / "manifest.json").write_bytes(orjson.dumps(manifest))
    assert len(learned_incidents(odd)) == 1
