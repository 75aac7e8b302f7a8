"""Shares of the training scenarios are nested, and what is asked about is in none of them."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_corpus import made_up_corpus

from benchmarks.learning import curve, detection, some_of, table
from rca.features import WINDOW_FEATURES
from rca.training import heads
from rca.training.corpus import Corpus


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Whatever is loud, in the first column, is a fault."""
    found = made_up_corpus(1200)
    found.window[:, 0] = np.array(found.mode) != "healthy"
    return found


def test_a_smaller_share_is_part_of_a_larger_one_and_validation_is_whole(corpus: Corpus) -> None:
    whole = heads.targets(corpus)["cause"]
    half, quarter = (some_of(whole, share, 1) for share in (0.5, 0.25))
    learned = [target.part == "train" for target in (whole, half, quarter)]
    assert learned[0].sum() > learned[1].sum() > learned[2].sum() > 0
    assert not (learned[2] & ~learned[1]).any()
    assert not (learned[1] & ~learned[0]).any()
    for part in ("validation", "calibration"):
        assert np.array_equal(quarter.part == part, whole.part == part)
    assert np.array_equal(some_of(whole, 1.0, 1).part, whole.part)


def test_a_threshold_lets_the_budget_through(corpus: Corpus) -> None:
    """One healthy window in ten is as loud as a fault: within a budget of a fifth, not of a twentieth."""
    head = heads.fit_head("mode", heads.targets(corpus)["mode"], 0)
    healthy = corpus.window[np.array(corpus.mode) == "healthy"][:200].copy()
    healthy[::10] = corpus.window[np.array(corpus.mode) == "fail_slow"][:20]
    assert detection(head, corpus, healthy, 0.2).value > 0.9
    assert detection(head, corpus, healthy, 0.05).value < 0.9


def test_every_head_is_asked_on_every_share(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "MAX_ROUNDS", 8)
    told: list[str] = []
    innocents = np.zeros((40, len(WINDOW_FEATURES)))
    fits = curve(corpus, innocents, ["mode", "stop_cause"], [0.5, 1.0], 0, told.append)
    assert [(fit.head, fit.share, fit.more_healthy) for fit in fits] == [
        ("mode", 0.5, 0),
        ("mode", 1.0, 0),
        ("mode", 1.0, 20),
        ("stop_cause", 0.5, 0),
        ("stop_cause", 1.0, 0),
    ]
    assert len(told) == len(fits) == table(fits).row_count
    assert all((fit.detected is None) == (fit.head != "mode") for fit in fits)
