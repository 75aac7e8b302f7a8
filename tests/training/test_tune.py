"""Tuned settings are judged on windows that no search has used, and kept only if they win."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_corpus import made_up_corpus

from rca.classify.classifier import HEADS
from rca.lab.training import heads
from rca.lab.training.cross_validation import tune as module
from rca.lab.training.cross_validation.driver import Results
from rca.lab.training.cross_validation.held_out_loss import Losses, loss_change
from rca.lab.training.cross_validation.pool import Origin, Pool
from rca.lab.training.cross_validation.search import PRESENT, Values, search
from rca.lab.training.cross_validation.tune import (
    TunedHead,
    Tuner,
    Tuning,
    tune,
    tuned,
)
from rca.lab.training.feature_cache import FeatureCache
from rca.lab.training.heads import Target
from rca.lab.training.settings import TUNABLE
from rca.workers import HERE, Workers

pytest.importorskip("optuna")


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "MAX_ROUNDS", 15)


def _tuner(n_groups: int, *, informative: bool, trials: int = 6) -> Tuner:
    """Head `scope` with two rows per group; the first features depend on the class, or none does."""
    rng = np.random.default_rng(0)
    group = np.repeat([f"group-{number}" for number in range(n_groups)], 2)
    label = rng.integers(0, 2, n_groups).repeat(2)
    rows = rng.normal(size=(group.size, len(HEADS["scope"])))
    if informative:
        rows[:, :40] = label[:, None] + rng.normal(0, 0.05, (group.size, 40))
    labels = tuple(np.array(["some", "job"])[label].tolist())
    corpus = made_up_corpus(
        group.size,
        group=tuple(group.tolist()),
    )
    origins = [Origin(f"group-{number}", "fail_slow", frozenset(), 8) for number in range(n_groups)]
    target = Target(rows, labels, ("some", "job"), np.array(corpus.part), np.ones(group.size), group)
    pool = Pool(corpus, tuple(origins), np.arange(n_groups).repeat(2))
    return Tuner("scope", target, pool, seed=1, trials=trials, n_folds=2)


def _tuned(tuner: Tuner, folder: Path, workers: Workers = HERE) -> TunedHead:
    (found,) = tuned([tuner], Results(folder), workers=workers)
    return found


def _bowl(values: Values) -> float:
    """Best at a place that is not where the search begins."""
    return abs(np.log(values["learning_rate"] / 0.15)) + abs(values["feature_fraction"] - 0.3)


def test_a_search_begins_with_the_present_settings_and_ends_no_worse() -> None:
    tried: list[Values] = []

    def loss(values: Values) -> float:
        tried.append(dict(values))
        return _bowl(values)

    best = search(loss, 12, 1)
    assert tried[0] == PRESENT
    assert len(tried) == 12
    assert _bowl(best) == min(map(_bowl, tried)) < _bowl(PRESENT)
    for values in tried:
        assert values.keys() == TUNABLE.keys()
        for name, bounds in TUNABLE.items():
            assert bounds.low <= values[name] <= bounds.high
            assert not bounds.whole or isinstance(values[name], int)


@pytest.mark.long
def test_an_interrupted_run_has_the_same_result_and_repeats_no_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = 0

    def interrupted(*given: Any) -> Values:
        nonlocal searches
        searches += 1
        if searches == 2:
            raise KeyboardInterrupt
        return search(*given)

    tuner = _tuner(50, informative=True)
    whole = _tuned(tuner, tmp_path / "whole")
    monkeypatch.setattr(module, "search", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _tuned(tuner, tmp_path / "parts")
    assert _tuned(tuner, tmp_path / "parts") == whole
    assert searches - 1 == len(list((tmp_path / "whole").glob("*.json")))


@pytest.mark.long
def test_workers_have_no_influence_on_the_settings(
    tmp_path: Path, two_workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Workers have the usual number of rounds, too.
    monkeypatch.undo()
    tuner = _tuner(50, informative=True)
    alone = _tuned(tuner, tmp_path / "alone", Workers(1))
    assert _tuned(tuner, tmp_path / "shared", two_workers) == alone


def test_tuning_wins_where_the_present_settings_cannot_learn(tmp_path: Path) -> None:
    """There are fewer rows than a leaf of the present settings needs."""
    found = _tuned(_tuner(50, informative=True), tmp_path)
    assert found.present == pytest.approx(np.log(2), abs=0.1)
    assert found.gain.low > 0.1
    assert found.chosen is not None
    assert found.chosen["min_data_in_leaf"] < PRESENT["min_data_in_leaf"]


def test_no_settings_are_chosen_without_a_gain(tmp_path: Path) -> None:
    found = _tuned(_tuner(40, informative=False), tmp_path)
    assert found.groups == 40
    assert abs(found.gain.value) < 0.05
    assert found.chosen is None
    assert Tuning("", "", (found,)).settings == {}
    assert "present settings kept" in Tuning("", "", (found,)).table().rows[0][-1]


def test_a_gain_that_is_too_small_is_not_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_GAIN", 0.99)
    found = _tuned(_tuner(50, informative=True), tmp_path)
    assert found.gain.low > 0.1
    assert found.chosen is None
    assert "less than 99% of the loss" in Tuning("", "", (found,)).table().rows[0][-1]


def test_each_loss_is_of_the_tested_groups_without_them(tmp_path: Path) -> None:
    tuner = _tuner(50, informative=True)
    outer = tuner._folds("outer", {f"group-{number}": "" for number in range(50)})
    assert [tuner.losses([fold], PRESENT).weight.size for fold in outer] == [25, 25]
    better = tuner.losses(outer, PRESENT | {"min_data_in_leaf": 5})
    assert better.mean < tuner.losses(outer, PRESENT).mean - 0.1


def test_a_change_of_the_loss_is_paired_by_group() -> None:
    """A rise that is the same in every group has no spread, however different the groups are."""
    base = Losses(np.array([0.1, 5.0, 2.0]), np.ones(3))
    found = loss_change(base, Losses(base.summed + 0.25, np.ones(3)))
    assert (found.value, found.low, found.high) == pytest.approx((0.25, 0.25, 0.25))
    assert found.n == 3


def test_a_head_with_too_few_rows_is_not_tuned(tmp_path: Path) -> None:
    tuner = _tuner(8, informative=True)
    found = _tuned(replace(tuner, n_folds=4), tmp_path)
    assert found.chosen is None
    assert "not tuned: fewer than two classes" in Tuning("", "", (found,)).table().rows[0][-1]


@pytest.mark.long
@pytest.mark.slow
def test_a_run_tunes_the_given_heads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_features: FeatureCache
) -> None:
    monkeypatch.setattr(heads, "MAX_ROUNDS", 6)
    phases: list[str] = []
    found = tune(
        260,
        3,
        (),
        results=tmp_path,
        heads=["scope"],
        trials=2,
        n_folds=2,
        cache=shared_features,
        progress=lambda phase, done, total: phases.append(phase),
    )
    assert [head.name for head in found.heads] == ["scope"]
    assert found.as_dict()["heads"][0]["gain"]["n"] == found.heads[0].groups > 50
    assert found.command.endswith("--trials 2 --folds 2 --head scope")
    assert "searching within each fold" in phases
