"""Windows like those learned from are hardly ever flagged; other jobs are."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_corpus import made_up_corpus

from rca.classify.out_of_distribution import Familiarity
from rca.features import WINDOW_FEATURES
from rca.lab.training.corpus import Corpus
from rca.lab.training.out_of_distribution import FLAGGED, fit_familiarity


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return made_up_corpus(4000)


@pytest.fixture(scope="module")
def familiarity(corpus: Corpus) -> Familiarity:
    return Familiarity.load(fit_familiarity(corpus))


def test_new_windows_of_the_same_kind_are_flagged_at_most_at_the_rate_allowed(
    familiarity: Familiarity,
) -> None:
    fresh = made_up_corpus(3000, seed=5).window
    flagged = np.mean([familiarity.judge(window).out_of_distribution for window in fresh])
    assert flagged <= 2 * FLAGGED


def test_a_job_of_another_size_is_flagged_and_its_size_named(
    corpus: Corpus, familiarity: Familiarity
) -> None:
    window = corpus.window[0].copy()
    window[WINDOW_FEATURES.index("log2_ranks")] = 40.0
    found = familiarity.judge(window)
    assert found.out_of_distribution
    assert found.outside[0].feature == "log2_ranks"
    assert found.oddest[0] == "log2_ranks"


def test_a_feature_that_was_never_measured_has_no_range(corpus: Corpus) -> None:
    window = corpus.window.copy()
    window[:, WINDOW_FEATURES.index("steps_since_progress")] = np.nan
    emptied = made_up_corpus(4000, window=window)
    assert "steps_since_progress" not in fit_familiarity(emptied)["ranges"]


def test_few_held_out_windows_flag_nothing_they_have_seen() -> None:
    small = made_up_corpus(40)
    familiarity = Familiarity.load(fit_familiarity(small))
    held = small.window[np.array(small.part) == "validation"]
    assert held.size
    assert not any(familiarity.judge(window).out_of_distribution for window in held)
