"""Floors are placed so that the promised share of new windows keep their true class."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_corpus import made_up_corpus

from rca.arrays import FloatArray
from rca.classify.conformal import QUESTIONS, PredictionSets
from rca.lab.training.conformal import MIN_GROUPS, effective_groups, fit_sets, floors, held_out_quantile
from rca.window.causes import SLOW_CAUSES, STOP_CAUSES, STRAGGLER_TYPES

CLASSES = ("a", "b", "c")


def alone(n: int) -> np.ndarray:
    return np.arange(n).astype(str)


@pytest.mark.parametrize(("n", "expected"), [(9, 8.0), (19, 17.0), (99, 89.0)])
def test_the_quantile_is_the_textbook_one_for_equal_rows(n: int, expected: float) -> None:
    """The ceil(0.9 (n + 1)) smallest score: the ninth of nine, the eighteenth of nineteen."""
    scores = np.random.default_rng(0).permutation(n).astype(float)
    assert held_out_quantile(scores, np.ones(n), alone(n), 0.9) == expected


@pytest.mark.parametrize("n", [0, 1, 8])
def test_too_few_rows_promise_nothing(n: int) -> None:
    assert held_out_quantile(np.zeros(n), np.ones(n), alone(n), 0.9) == np.inf


def test_variants_of_one_window_are_one_witness() -> None:
    """Eight windows in a hundred variants each still promise nothing at 0.9."""
    scores, groups = np.arange(800.0), np.repeat(alone(8), 100)
    assert effective_groups(np.ones(800), groups) == pytest.approx(8)
    assert held_out_quantile(scores, np.ones(800), groups, 0.9) == np.inf


def test_weight_counts_not_rows() -> None:
    """A tenth of the rows with nine tenths of the weight decide."""
    scores = np.concatenate([np.zeros(900), np.ones(100)])
    weights = np.concatenate([np.full(900, 1.0), np.full(100, 81.0)])
    assert held_out_quantile(scores, weights, alone(1000), 0.5) == 1.0
    assert held_out_quantile(scores, np.ones(1000), alone(1000), 0.5) == 0.0


def draw(rng: np.random.Generator, n: int) -> tuple[FloatArray, np.ndarray]:
    """Overconfident beliefs in three unequal classes, and the truth."""
    truth = rng.choice(3, n, p=[0.6, 0.3, 0.1])
    logits = rng.normal(size=(n, 3)) * 2 + 1.5 * np.eye(3)[truth]
    logits[:, 0] += 1.0
    chances = np.exp(3 * logits)
    return chances / chances.sum(axis=1, keepdims=True), truth


def test_every_class_is_covered_at_its_level_although_the_beliefs_are_off() -> None:
    rng = np.random.default_rng(1)
    chances, truth = draw(rng, 3000)
    names = np.array(CLASSES)[truth]
    found = floors(chances, names, CLASSES, np.ones(3000), alone(3000), 0.9)
    # Level 0: the floors alone, no class kept for being likely.
    sets = PredictionSets(0.0, {"mode": found})
    fresh, answers = draw(rng, 6000)
    held = np.array(
        [
            CLASSES[true] in sets.plausible("mode", dict(zip(CLASSES, row, strict=True)), None)
            for row, true in zip(fresh, answers, strict=True)
        ]
    )
    for index in range(3):
        covered = held[answers == index].mean()
        # Three standard errors of the calibration and of the count; the likeliest class is always kept.
        assert covered >= 0.9 - 0.04
        likeliest = fresh[answers == index].argmax(axis=1) == index
        assert covered <= max(0.9, likeliest.mean()) + 0.04


def test_a_rare_class_takes_the_floor_of_all() -> None:
    chances, truth = draw(np.random.default_rng(2), 400)
    few = int(MIN_GROUPS) - 1
    kept = np.concatenate([np.flatnonzero(truth != 2), np.flatnonzero(truth == 2)[:few]])
    names = np.array(CLASSES)[truth[kept]]
    found = floors(chances[kept], names, CLASSES, np.ones(kept.size), alone(kept.size), 0.9)
    together = -held_out_quantile(-chances[kept, truth[kept]], np.ones(kept.size), alone(kept.size), 0.9)
    assert found["c"] == together
    assert found["a"] != together


class _Belief:
    """Stands in for a head whose beliefs are given by a feature."""

    def __init__(self, classes: tuple[str, ...]) -> None:
        self.classes = classes

    def probabilities(self, rows: FloatArray) -> FloatArray:
        chances = np.exp(rows[:, : len(self.classes)])
        return chances / chances.sum(axis=1, keepdims=True)


HEADS = {
    "mode": _Belief(("healthy", "fail_slow", "fail_stop")),
    "type": _Belief(STRAGGLER_TYPES),
    "cause": _Belief(SLOW_CAUSES),
    "stop_cause": _Belief(STOP_CAUSES),
}


def test_the_document_has_floors_for_every_question_and_class() -> None:
    found = fit_sets(made_up_corpus(1500), HEADS)
    sets = PredictionSets.load(found)
    assert sets.level == 0.9
    assert set(sets.floors) == set(QUESTIONS)
    for question in QUESTIONS:
        assert set(sets.floors[question]) == set(HEADS[question].classes)
        assert min(sets.floors[question].values()) > 0


def test_without_held_out_windows_nothing_is_ruled_out() -> None:
    found = fit_sets(made_up_corpus(60, part=("train",) * 60), HEADS)
    assert {floor for classes in found["floors"].values() for floor in classes.values()} == {0.0}


def test_only_validation_windows_are_looked_at() -> None:
    corpus = made_up_corpus(600)
    other = made_up_corpus(600, seed=9)
    held = np.array(corpus.part) == "validation"
    window = np.where(held[:, None], corpus.window, other.window)
    rank = np.where(held[corpus.owner][:, None], corpus.rank, other.rank)
    assert fit_sets(made_up_corpus(600, window=window, rank=rank), HEADS) == fit_sets(corpus, HEADS)
