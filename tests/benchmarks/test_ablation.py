"""Hiding a group hides all of it and nothing else; its worth is read off the same held-out scenarios."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.ablation import ablate, main, questions_of, without
from rca.features import RANK_FEATURES, WINDOW_FEATURES
from rca.features.groups import feature_groups, group_names
from rca.training import heads
from rca.training.corpus import Corpus, stack
from rca.training.head_losses import Losses, change
from rca.training.simulated import simulated_examples


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return stack(simulated_examples(260, 3, processes=1))


@pytest.fixture
def _few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "MAX_ROUNDS", 8)


@pytest.mark.slow
def test_a_hidden_group_is_missing_everywhere_and_the_rest_is_untouched(corpus: Corpus) -> None:
    blind = without(corpus, ("endings", "nic"))
    for names, before, after in (
        (WINDOW_FEATURES, corpus.window, blind.window),
        (RANK_FEATURES, corpus.rank, blind.rank),
    ):
        hidden = np.array([feature_groups()[name] in {"endings", "nic"} for name in names])
        assert hidden.any()
        assert np.isnan(after[:, hidden]).all()
        assert np.array_equal(after[:, ~hidden], before[:, ~hidden], equal_nan=True)


@pytest.mark.slow
@pytest.mark.usefixtures("_few_rounds")
def test_every_head_is_fitted_again_without_a_group(corpus: Corpus) -> None:
    """What a group is worth takes thousands of windows to tell; that hiding it changes a fit does not."""
    told: list[str] = []
    base, changes = ablate(corpus, questions_of(["endings"]), 3, told.append)
    assert set(changes) == {"endings"}
    assert set(changes["endings"]) == set(base) == set(heads.targets(corpus))
    assert changes["endings"]["mode"].value != 0
    assert any(text.startswith("everything: head mode") for text in told)


def test_the_change_is_paired_and_of_whole_scenarios() -> None:
    """A rise that is the same in every scenario has no spread, however different the scenarios are."""
    base = Losses(np.array([0.1, 5.0, 2.0]), np.ones(3))
    found = change(base, Losses(base.summed + 0.25, np.ones(3)))
    assert (found.value, found.low, found.high) == pytest.approx((0.25, 0.25, 0.25))
    assert found.n == 3


def test_every_group_is_asked_about_unless_some_are_named() -> None:
    assert set(questions_of([])) == {*group_names(), "all resources"}
    assert list(questions_of(["waiting"])) == ["waiting"]


def test_an_unknown_group_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--groups", "no-such-group"])
    assert left.value.code == 2
    assert "waiting" in capsys.readouterr().err
