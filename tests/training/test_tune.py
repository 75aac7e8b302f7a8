"""Tuned settings are judged on windows that no search has used, and kept only if they win."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from rca.classify.classifier import HEADS
from rca.lab.training import heads
from rca.lab.training import tune as module
from rca.lab.training.feature_cache import FeatureCache
from rca.lab.training.heads import Target
from rca.lab.training.settings import TUNABLE
from rca.lab.training.tune import (
    N_FOLDS,
    PRESENT,
    GroupLosses,
    TunedHead,
    Values,
    group_folds,
    loss_change,
    table,
    tune,
    tuned,
)
from rca.workers import HERE, Workers

pytest.importorskip("optuna")


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "MAX_ROUNDS", 15)


def _target(n_groups: int, *, informative: bool) -> Target:
    """Head `scope` with two rows per group; the first features depend on the class, or none does."""
    rng = np.random.default_rng(0)
    group = np.repeat([f"group-{number}" for number in range(n_groups)], 2)
    label = rng.integers(0, 2, n_groups).repeat(2)
    rows = rng.normal(size=(group.size, len(HEADS["scope"])))
    if informative:
        rows[:, :40] = label[:, None] + rng.normal(0, 0.05, (group.size, 40))
    labels = tuple(np.array(["some", "job"])[label].tolist())
    return Target(rows, labels, ("some", "job"), np.full(group.size, "train"), np.ones(group.size), group)


def _tuned(target: Target, folder: Path, workers: Workers = HERE, *, trials: int = 6) -> TunedHead:
    (found,) = tuned({"scope": target}, folder, "c" * 64, 1, trials, workers=workers)
    return found


class _Scored:
    """Instead of fits: the loss of settings is the distance from a place where no search begins."""

    tried: ClassVar[list[Values]] = []

    def __init__(self, wanted: Any, folds: Any, seed: int) -> None:
        self.folds, self.seed = folds, seed

    def losses(self, task: tuple[str, int, Values]) -> GroupLosses:
        self.tried.append(task[2])
        return GroupLosses(np.full(50, _bowl(task[2])), np.ones(50))


def _bowl(values: Values) -> float:
    return abs(np.log(values["learning_rate"] / 0.15)) + abs(values["feature_fraction"] - 0.3)


def test_a_search_begins_with_the_present_settings_and_ends_no_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_Fits", _Scored)
    monkeypatch.setattr(_Scored, "tried", tried := [])
    found = _tuned(_target(50, informative=False), tmp_path, trials=12)
    # Every trial on every fold, and at last the present and the best settings on the groups set aside.
    assert len(tried) == N_FOLDS * 12 + 2
    assert tried[0] == tried[-2] == PRESENT
    assert found.chosen == tried[-1]
    assert _bowl(tried[-1]) == min(map(_bowl, tried)) < _bowl(PRESENT)
    for values in tried:
        assert values.keys() == TUNABLE.keys()
        for name, bounds in TUNABLE.items():
            assert bounds.low <= values[name] <= bounds.high
            assert not bounds.whole or isinstance(values[name], int)


def test_an_interrupted_run_has_the_same_result_and_repeats_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: _Scored, task: tuple[str, int, Values]) -> GroupLosses:
        if len(tried) == 15:
            raise KeyboardInterrupt
        return usual(self, task)

    usual = _Scored.losses
    monkeypatch.setattr(module, "_Fits", _Scored)
    target = _target(50, informative=False)
    monkeypatch.setattr(_Scored, "tried", whole := [])
    expected = _tuned(target, tmp_path / "whole", trials=12)
    monkeypatch.setattr(_Scored, "tried", tried := [])
    monkeypatch.setattr(_Scored, "losses", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _tuned(target, tmp_path / "parts", trials=12)
    monkeypatch.setattr(_Scored, "losses", usual)
    assert _tuned(target, tmp_path / "parts", trials=12) == expected
    # The trial that was interrupted is fitted again.
    assert len(whole) <= len(tried) <= len(whole) + N_FOLDS


@pytest.mark.system
@pytest.mark.long
def test_workers_have_no_influence_on_the_settings(
    tmp_path: Path, two_workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Workers have the usual number of rounds, too.
    monkeypatch.undo()
    target = _target(50, informative=True)
    alone = _tuned(target, tmp_path / "alone", Workers(1))
    assert _tuned(target, tmp_path / "shared", two_workers) == alone


def test_tuning_wins_where_the_present_settings_cannot_learn(tmp_path: Path) -> None:
    """There are fewer rows than a leaf of the present settings needs."""
    found = _tuned(_target(50, informative=True), tmp_path)
    assert found.present == pytest.approx(np.log(2), abs=0.1)
    assert found.gain.low > 0.1
    assert found.chosen is not None
    assert found.chosen["min_data_in_leaf"] < PRESENT["min_data_in_leaf"]


def test_no_settings_are_chosen_without_a_gain(tmp_path: Path) -> None:
    found = _tuned(_target(40, informative=False), tmp_path)
    assert found.gain.n == 14
    assert abs(found.gain.value) < 0.05
    assert found.chosen is None
    assert "present settings kept" in table([found]).rows[0][-1]


def test_a_gain_that_is_too_small_is_not_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_GAIN", 0.99)
    found = _tuned(_target(50, informative=True), tmp_path)
    assert found.gain.low > 0.1
    assert found.chosen is None
    assert "less than 99% of the loss" in table([found]).rows[0][-1]


def test_folds_test_every_group_once_and_learn_from_the_others() -> None:
    target = _target(50, informative=True)
    labels = np.array(target.labels)
    tested: list[str] = []
    for part in group_folds(target, 2, 1):
        groups = {name: set(target.group[part == name]) for name in ("train", "calibration", "test")}
        assert not groups["test"] & (groups["train"] | groups["calibration"])
        assert not groups["train"] & groups["calibration"]
        assert set().union(*groups.values()) == set(target.group)
        for name in groups:
            assert set(labels[part == name]) == {"some", "job"}
        tested += groups["test"]
    assert sorted(tested) == sorted(set(target.group))


def test_inner_folds_stay_within_the_outer_one() -> None:
    target = _target(50, informative=True)
    outer, sibling = group_folds(target, 2, 1)
    for part in group_folds(target, 2, 2, outer != "test"):
        assert (part[outer == "test"] == "").all()
        assert (part[outer != "test"] != "").all()
        assert set(target.group[part == "test"]) != set(target.group[sibling == "test"])


def test_a_change_of_the_loss_is_paired_by_group() -> None:
    """A rise that is the same in every group has no spread, however different the groups are."""
    base = GroupLosses(np.array([0.1, 5.0, 2.0]), np.ones(3))
    found = loss_change(base, GroupLosses(base.summed + 0.25, np.ones(3)))
    assert (found.value, found.low, found.high) == pytest.approx((0.25, 0.25, 0.25))
    assert found.n == 3


def test_a_head_with_too_few_rows_is_not_tuned(tmp_path: Path) -> None:
    found = _tuned(_target(5, informative=True), tmp_path)
    assert found.chosen is None
    assert "not tuned: fewer" in table([found]).rows[0][-1]


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
        cache=shared_features,
        progress=lambda phase, done, total: phases.append(phase),
    )
    assert [head.name for head in found] == ["scope"]
    assert found[0].as_dict()["gain"]["n"] == found[0].gain.n > 15
    assert "searching settings" in phases
