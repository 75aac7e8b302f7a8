"""LightGBM through its C library gives what the `lightgbm` package gives."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from rca.classify.booster import Booster
from rca.errors import BundleError
from tests.for_each import for_each

lightgbm = pytest.importorskip("lightgbm")

ROWS = np.random.default_rng(0).normal(size=(200, 5))
SILENT = {"verbosity": -1, "num_leaves": 7, "min_data_in_leaf": 5, "num_threads": 1}


def trained(objective: str, n_classes: int):
    target = np.digitize(ROWS[:, 0] + 0.5 * ROWS[:, 1], np.linspace(-1, 1, n_classes + 1)[1:-1])
    rows = np.where(np.random.default_rng(1).random(ROWS.shape) < 0.1, np.nan, ROWS)
    extra = {"num_class": n_classes} if objective == "multiclass" else {}
    return lightgbm.train(SILENT | {"objective": objective} | extra, lightgbm.Dataset(rows, target), 12)


@pytest.fixture(scope="module", params=[("binary", 2), ("multiclass", 3)], ids=lambda param: param[0])
def pair(request):
    """The reference booster and ours, from its text."""
    reference = trained(*request.param)
    return reference, Booster(reference.model_to_string())


HOLES = np.where(np.random.default_rng(2).random(ROWS.shape) < 0.3, np.nan, ROWS)
QUESTIONS = {
    "measured rows": ROWS,
    "rows with holes": HOLES,
    "nothing measured": np.full((3, 5), np.nan),
    "one row": ROWS[:1],
    "beyond all that was seen": np.array([[1e300, -1e300, np.inf, -np.inf, 0.0]]),
    "columns of a wider table": np.asfortranarray(ROWS)[:, ::-1],
}


@for_each("rows", QUESTIONS.values(), ids=QUESTIONS)
def test_raw_scores_equal_lightgbms(pair, rows) -> None:
    reference, ours = pair
    expected = np.asarray(reference.predict(rows, raw_score=True)).reshape(len(rows), -1)
    assert np.array_equal(ours.raw(rows), expected)


def test_no_rows_give_no_scores(pair) -> None:
    assert pair[1].raw(np.empty((0, 5))).shape == (0, pair[1].n_classes)


def test_another_number_of_columns_is_refused(pair) -> None:
    with pytest.raises(ValueError, match="expected 5 columns"):
        pair[1].raw(np.ones((2, 4)))


def test_many_boosters_are_freed_without_disturbing_each_other(pair) -> None:
    reference, ours = pair
    expected = ours.raw(ROWS)
    for _ in range(20):
        Booster(reference.model_to_string())
    assert np.array_equal(ours.raw(ROWS), expected)


GOOD = trained("binary", 2).model_to_string()
BROKEN = {
    "empty": "",
    "not a model": "this is no model",
    "no feature count": GOOD.replace("max_feature_idx=4", "", 1),
}
BROKEN_TREES = {
    "cut in a tree": GOOD[: len(GOOD) // 2],
    "a tree without its leaves": GOOD.replace("leaf_value=", "leaf_valves=", 1),
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_corrupted_text_is_a_bundle_error(text: str) -> None:
    with pytest.raises(BundleError) as refused:
        Booster(text)
    assert refused.value.code == "bundle-error"
    assert refused.value.message


@pytest.mark.system
@pytest.mark.parametrize("text", BROKEN_TREES.values(), ids=BROKEN_TREES)
def test_a_corrupted_tree_is_a_bundle_error_too(text: str) -> None:
    """In a process of its own: what LightGBM throws in a parsing thread would end this one."""
    script = (
        "import sys\n"
        "from rca.classify.booster import Booster\n"
        "from rca.errors import BundleError\n"
        "try: Booster(sys.stdin.read())\n"
        "except BundleError: print('refused')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], input=text, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout.splitlines()[-1:]) == (0, ["refused"])
