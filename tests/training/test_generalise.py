"""`generalise` end to end on few windows: no bundle is asked about captures that it has learned from."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rca.errors import InvalidInput
from rca.lab.evaluation.run import Case, Evaluation, evaluate_collection
from rca.lab.training import generalise as module
from rca.lab.training import heads
from rca.lab.training.corpus import Corpus
from rca.lab.training.feature_cache import FeatureCache
from rca.lab.training.generalise import generalise
from rca.sources.labels import CollectionEntry, write_manifest

N_WINDOWS, SEED = 260, 3
REAL = Path(__file__).resolve().parents[2] / "data" / "windows"
MINE = {"healthy": "mlp", "slow-dataset": "transformer"}
YOURS = {"killed-rank": "mlp", "cpu-contention-node": ""}


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    base = tmp_path_factory.mktemp("collections")
    for name, windows in (("mine", MINE), ("yours", YOURS)):
        for window in windows:
            shutil.copytree(REAL / window, base / name / window)
        entries = [
            {"id": window, "path": window, "group": window, "split": "test"}
            | ({"model": model} if model else {})
            for window, model in windows.items()
        ]
        write_manifest(base / name, entries, {})
    return [base / "mine", base / "yours"]


@pytest.fixture(scope="module")
def few() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heads, "MAX_ROUNDS", 8)
        patch.setattr(module, "VARIANTS", 2)
        yield


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory, shared_features: FeatureCache) -> dict[str, Any]:
    return {"results": tmp_path_factory.mktemp("kept") / "folds", "cache": shared_features}


@pytest.fixture(scope="module")
def found(few: None, collections: list[Path], options: dict[str, Any]) -> Evaluation:
    return generalise(N_WINDOWS, SEED, collections, **options)


@pytest.mark.slow
@pytest.mark.long
def test_every_capture_is_answered_by_a_bundle_without_its_collection(found: Evaluation) -> None:
    assert {row.window: row.source for row in found.rows} == {
        **dict.fromkeys(MINE, "mine"),
        **dict.fromkeys(YOURS, "yours"),
    }


@pytest.mark.slow
@pytest.mark.long
def test_finished_folds_are_not_fitted_again(
    found: Evaluation, collections: list[Path], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_work(*_: Any) -> None:
        raise AssertionError("fitted again")

    monkeypatch.setattr(module, "learn", no_work)
    again = generalise(N_WINDOWS, SEED, collections, **options)
    assert repr(again.rows) == repr(found.rows), "NaN and infinity included"
    with pytest.raises(AssertionError, match="fitted again"):
        generalise(N_WINDOWS, SEED, collections, settings={"scope": {"num_leaves": 5}}, **options)


@pytest.mark.slow
@pytest.mark.long
def test_what_is_held_out_is_not_learned_from(
    few: None,
    collections: list[Path],
    shared_features: FeatureCache,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The manifest's test part is learned from in all other folds; simulated windows always are."""
    asked: dict[tuple[str, ...], set[str]] = {}

    def answered(corpus: Corpus, entries: list[CollectionEntry], *_: Any) -> list[Case]:
        learned = (np.array(corpus.part) != "test") & np.array(corpus.real)
        assert (np.array(corpus.part) != "test")[~np.array(corpus.real)].all()
        asked[tuple(each.id for each in entries)] = set(np.array(corpus.group)[learned].tolist())
        return whole.cases[: len(entries)]

    whole = evaluate_collection(collections[0])
    monkeypatch.setattr(module, "_kept_in", lambda folder: answered)
    generalise(N_WINDOWS, SEED, collections, by="model", results=tmp_path, cache=shared_features)
    every = {f"mine/incident/{name}" for name in MINE} | {f"yours/incident/{name}" for name in YOURS}
    assert asked == {
        ("slow-dataset",): every - {"mine/incident/slow-dataset"},
        ("healthy", "killed-rank"): every - {"mine/incident/healthy", "yours/incident/killed-rank"},
    }


def test_captures_that_do_not_differ_are_refused_before_the_work(
    collections: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match="do not differ in 'collection'"):
        generalise(N_WINDOWS, SEED, collections[:1], results=tmp_path)
    with pytest.raises(InvalidInput, match="do not differ in 'rack'"):
        generalise(N_WINDOWS, SEED, collections, by="rack", results=tmp_path)
