"""Settings are chosen where they are not judged, and only kept where they win."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rca.classify.classifier import HEADS
from rca.training import heads
from rca.training.heads import Target
from rca.training.settings import TUNABLE
from rca.training.tuning import nested
from rca.training.tuning.folds import grouped_folds, rows_of
from rca.training.tuning.nested import Effort, TunedHead, tune_head, what_lacks
from rca.training.tuning.run import Tuning, tune
from rca.training.tuning.search import PRESENT, Search, Values

pytest.importorskip("optuna")

EFFORT = Effort(trials=6, outer=2, inner=2)


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "MAX_ROUNDS", 15)
    # The same trees; but threads that wait for each other are slow where a test run has its cores taken.
    monkeypatch.setitem(heads.PARAMETERS, "num_threads", 1)


def _target(n_groups: int, *, told: bool, seed: int = 0) -> Target:
    """Two rows per group; the first feature tells the class, or nothing does."""
    rng = np.random.default_rng(seed)
    n_rows = 2 * n_groups
    label = rng.integers(0, 2, n_rows)
    rows = rng.normal(size=(n_rows, len(HEADS["scope"])))
    if told:
        rows[:, :40] = label[:, None] + rng.normal(0, 0.05, (n_rows, 40))
    return Target(
        rows=rows,
        labels=tuple(np.array(["some", "job"])[label].tolist()),
        classes=("some", "job"),
        part=np.full(n_rows, "train"),
        weight=np.ones(n_rows),
        group=np.repeat([f"group-{number}" for number in range(n_groups)], 2),
    )


def _tuned(target: Target, file: Path) -> TunedHead:
    return tune_head("scope", target, file=file, study="s", seed=1, effort=EFFORT, tell=lambda text: None)


def test_every_row_is_scored_once_and_no_group_is_on_both_sides() -> None:
    target = _target(60, told=False)
    scored = np.zeros(120, dtype=int)
    for fold, held in grouped_folds(target, 3, "outer"):
        scored += held
        assert ((fold.part == "test") == held).all()
        by_part = [set(fold.group[fold.part == part]) for part in ("train", "calibration", "test")]
        assert all(by_part)
        assert sum(map(len, by_part)) == 60
    assert (scored == 1).all()


def test_inner_folds_do_not_follow_the_outer_ones() -> None:
    outer = next(grouped_folds(_target(60, told=False), 2, "outer"))[0]
    inside = rows_of(outer, outer.part != "test")
    sizes = [int(held.sum()) for _, held in grouped_folds(inside, 2, "inner")]
    assert sum(sizes) == len(inside.labels)
    assert min(sizes) > 0


def _bowl(values: Values) -> float:
    """Best at a place that is not where the search begins."""
    return abs(np.log(values["learning_rate"] / 0.15)) + abs(values["feature_fraction"] - 0.3)


def test_a_search_begins_with_the_present_settings_and_ends_no_worse(tmp_path: Path) -> None:
    tried: list[Values] = []

    def loss(values: Values) -> float:
        tried.append(dict(values))
        return _bowl(values)

    best = Search(tmp_path / "t.db", "s", 1).run(loss, 12)
    assert tried[0] == PRESENT
    assert len(tried) == 12
    assert _bowl(best) == min(map(_bowl, tried)) < _bowl(PRESENT)
    for values in tried:
        assert values.keys() == TUNABLE.keys()
        for name, bounds in TUNABLE.items():
            assert bounds.low <= values[name] <= bounds.high
            assert not bounds.whole or isinstance(values[name], int)


def test_a_search_that_was_stopped_comes_to_the_same_end(tmp_path: Path) -> None:
    whole = Search(tmp_path / "whole.db", "s", 1).run(_bowl, 9)
    calls = 0

    def interrupted(values: Values) -> float:
        nonlocal calls
        calls += 1
        if calls == 7:
            raise KeyboardInterrupt
        return _bowl(values)

    search = Search(tmp_path / "parts.db", "s", 1)
    with pytest.raises(KeyboardInterrupt):
        search.run(interrupted, 9)
    assert search.run(interrupted, 9) == whole
    assert calls == 10, "six finished trials, the one that was cut off, and three more"


def test_tuning_wins_where_the_present_settings_cannot_learn(tmp_path: Path) -> None:
    """Fewer rows to learn from than a leaf of today has to have."""
    found = _tuned(_target(50, told=True), tmp_path / "t.db")
    assert found.present == pytest.approx(np.log(2), abs=0.1)
    assert found.gain.low > 0.1
    assert found.chosen is not None
    assert found.chosen["min_data_in_leaf"] < PRESENT["min_data_in_leaf"]


def test_nothing_is_chosen_where_there_is_nothing_to_win(tmp_path: Path) -> None:
    found = _tuned(_target(40, told=False), tmp_path / "t.db")
    assert found.groups == 40
    assert abs(found.gain.value) < 0.05
    assert found.chosen is None
    assert Tuning("", "", (found,)).settings == {}
    assert "the present settings stay" in Tuning("", "", (found,)).table().rows[0][-1]


def test_a_gain_beyond_chance_may_still_be_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nested, "LEAST_GAIN", 0.99)
    found = _tuned(_target(50, told=True), tmp_path / "t.db")
    assert found.gain.low > 0.1
    assert found.chosen is None
    assert "of the loss: the present settings stay" in Tuning("", "", (found,)).table().rows[0][-1]


def test_a_finished_head_is_read_from_its_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = _target(50, told=True)
    first = _tuned(target, tmp_path / "t.db")

    def no_work(*_: Any) -> None:
        raise AssertionError("fitted although it was kept")

    monkeypatch.setattr(nested, "fit_head", no_work)
    assert _tuned(target, tmp_path / "t.db") == first


def test_more_trials_are_judged_anew(tmp_path: Path) -> None:
    """What was kept of a shorter search is about settings that the longer one may have left behind."""
    outer = next(grouped_folds(_target(50, told=True), 2, "outer"))[0]
    search = Search(tmp_path / "t.db", "s", 1)
    present, same = nested._judged(search, "scope", outer, PRESENT, 1)
    assert present.mean == same.mean
    _, better = nested._judged(search, "scope", outer, PRESENT | {"min_data_in_leaf": 5}, 1)
    assert better.mean < present.mean - 0.1


def test_a_head_with_too_few_rows_is_left_alone(tmp_path: Path) -> None:
    target = _target(8, told=True)
    assert what_lacks(next(grouped_folds(target, 2, "outer"))[0], 2)
    found = _tuned(target, tmp_path / "t.db")
    assert found.chosen is None
    assert "not tuned" in Tuning("", "", (found,)).table().rows[0][-1]


@pytest.mark.slow
def test_a_run_tunes_what_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "MAX_ROUNDS", 6)
    told: list[str] = []
    found = tune(
        260,
        3,
        (),
        study=tmp_path / "t.db",
        heads=["scope"],
        effort=Effort(2, 2, 2),
        progress=lambda phase, done, total: told.append(phase),
    )
    assert [head.name for head in found.heads] == ["scope"]
    assert found.as_dict()["heads"][0]["gain"]["n"] == found.heads[0].groups > 50
    assert found.command.endswith("--trials 2 --outer 2 --inner 2 --head scope")
    assert "head scope: search 2 of 2" in told
