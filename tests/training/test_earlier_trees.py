"""Trees of an earlier bundle answer as before over wider tables and more classes, and new ones are added."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rca.classify.classifier import HEADS
from rca.classify.head import Head
from rca.diagnosis.bundle import baseline
from rca.errors import InvalidInput
from rca.lab.training import heads
from rca.lab.training.earlier_trees import EarlierTrees, with_classes, with_columns
from rca.lab.training.heads import Target, fit_head

lightgbm = pytest.importorskip("lightgbm")

QUICK = {"verbosity": -1, "num_leaves": 4, "min_data_in_leaf": 5, "num_threads": 1}


def some_rows(n: int, columns: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(n, columns))
    rows[:, 0] = np.where(rows[:, 0] > 1.0, np.nan, rows[:, 0])
    return rows


@pytest.fixture(scope="module")
def of_three():
    rows = some_rows(300, 3)
    labels = np.clip(np.nan_to_num(rows[:, 0] + rows[:, 1]).astype(int) + 1, 0, 2)
    return lightgbm.train(
        QUICK | {"objective": "multiclass", "num_class": 3}, lightgbm.Dataset(rows, labels), 6
    )


def test_inputs_move_to_the_columns_of_a_wider_table(of_three) -> None:
    wide = some_rows(50, 7, seed=1)
    columns = np.array([5, 0, 2])
    moved = lightgbm.Booster(model_str=with_columns(of_three.model_to_string(), columns, 7))
    np.testing.assert_array_equal(moved.predict(wide), of_three.predict(wide[:, columns]))


def test_a_class_that_the_trees_lack_has_the_score_zero(of_three) -> None:
    rows = some_rows(50, 3, seed=2)
    more = lightgbm.Booster(model_str=with_classes(of_three.model_to_string(), [1, 2, 4], 5))
    raw = more.predict(rows, raw_score=True)
    np.testing.assert_array_equal(raw[:, [1, 2, 4]], of_three.predict(rows, raw_score=True))
    assert not raw[:, [0, 3]].any()


@pytest.fixture(scope="module")
def shipped() -> EarlierTrees:
    folder = Path(__file__).resolve().parents[2] / "models" / "rca_models" / "baseline"
    return EarlierTrees.read(folder)


@pytest.mark.parametrize("name", ["mode", "straggler", "stop_cause"])
def test_the_shipped_heads_answer_as_before(shipped: EarlierTrees, name: str) -> None:
    rows = some_rows(20, len(HEADS[name]), seed=3)
    head = baseline().classifier.heads[name]
    booster = shipped.booster(name, len(HEADS[name]), head.classes)
    np.testing.assert_array_equal(
        booster.predict(rows, raw_score=True).reshape(20, -1), head.booster.raw(rows[:, head.columns])
    )


def test_a_class_that_is_gone_is_refused(shipped: EarlierTrees) -> None:
    with pytest.raises(InvalidInput, match="fail_stop"):
        shipped.booster("mode", len(HEADS["mode"]), ("healthy", "fail_slow"))


@pytest.fixture
def _few_rounds() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heads, "MAX_ROUNDS", 5)
        yield


@pytest.mark.usefixtures("_few_rounds")
def test_new_trees_are_added_to_the_earlier_ones(shipped: EarlierTrees) -> None:
    rows = some_rows(400, len(HEADS["stopper"]), seed=4)
    flag = np.where(rows[:, 1] > 0, "yes", "no")
    part = np.where(np.arange(400) < 300, "train", "calibration")
    target = Target(rows, tuple(flag), ("no", "yes"), part, np.ones(400), np.arange(400).astype(str))
    before = baseline().classifier.heads["stopper"]
    fitted = fit_head("stopper", target, 0, {"num_threads": 1}, shipped)
    trees = before.booster.raw(rows[:5, before.columns])
    after = Head.load("stopper", fitted.entry(), fitted.text, HEADS["stopper"])
    n_before = shipped.texts["stopper"].count("\nTree=")
    assert n_before < fitted.rounds <= n_before + 5
    assert fitted.text.count("\nTree=") == fitted.rounds
    assert not np.array_equal(after.booster.raw(rows[:5]), trees)
    held = part == "calibration"
    right = after.probabilities(rows[held])[:, 1] > 0.5
    assert (right == (flag[held] == "yes")).mean() > 0.6
