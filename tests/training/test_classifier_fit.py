"""More healthy windows: one half is learned from, the other is judged by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_up_corpus import made_up_corpus

from rca.classify.classifier import HEADS
from rca.classify.head import Head
from rca.features import WINDOW_FEATURES
from rca.lab.simulation.faults import FIRST_CAUSES
from rca.lab.training import classifier_fit, heads
from rca.lab.training.heads import Target, fit_head, targets, with_healthy
from rca.window.causes import SLOW_CAUSES, UNKNOWN


def test_one_half_teaches_and_the_other_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def fitted(
        _corpus: Any, _seed: int, _progress: Any, _settings: Any, healthy: Any, *_more: Any
    ) -> dict[str, Any]:
        seen["taught"] = healthy
        return {}

    def chosen(_corpus: Any, _heads: Any, judging: Any) -> dict[str, float]:
        seen["judging"] = judging
        return {}

    monkeypatch.setattr(classifier_fit, "fit_heads", fitted)
    monkeypatch.setattr(classifier_fit, "choose_thresholds", chosen)
    monkeypatch.setattr(classifier_fit, "fit_doubt", lambda *_: {})
    more_healthy = np.arange(7.0)[:, None]
    classifier_fit.learn(made_up_corpus(4), 0, lambda *_: None, more_healthy=more_healthy)
    assert not set(seen["taught"].ravel()) & set(seen["judging"].ravel())
    assert set(seen["taught"].ravel()) | set(seen["judging"].ravel()) == set(range(7))


def loud_target() -> Target:
    """Head ``mode``'s data in which whatever is loud, in the first column, is a fault."""
    corpus = made_up_corpus(1500)
    corpus.window[:, 0] = np.array(corpus.mode) != "healthy"
    return targets(corpus)["mode"]


def loud_and_harmless(n: int) -> np.ndarray:
    """Healthy windows that are as loud as a fault, and show why in the second column."""
    rows = np.random.default_rng(1).normal(size=(n, len(WINDOW_FEATURES)))
    rows[:, 0], rows[:, 1] = 1.0, 9.0
    return rows


def healthy_chance(target: Target, rows: np.ndarray) -> float:
    fitted = fit_head("mode", target, 0)
    head = Head.load("mode", fitted.entry(), fitted.text, HEADS["mode"])
    return float(head.probabilities(rows)[:, head.classes.index("healthy")].mean())


def test_what_healthy_jobs_do_now_and_then_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "MAX_ROUNDS", 60)
    target, asked = loud_target(), loud_and_harmless(20)
    assert healthy_chance(target, asked) < 0.3
    assert healthy_chance(with_healthy(target, loud_and_harmless(200)[20:]), asked) > 0.7


def test_more_windows_are_learned_from_only() -> None:
    """Calibration and class shares are those of the corpus as it occurs."""
    target = loud_target()
    more = with_healthy(target, loud_and_harmless(30))
    assert (more.part == "train").sum() == (target.part == "train").sum() + 30
    assert more.labels[-30:] == ("healthy",) * 30
    assert more.rows.shape[0] == len(more.labels) == more.weight.size == more.group.size
    assert len(set(more.group)) == len(set(target.group)) + 30


def test_slow_ranks_of_a_stopped_job_did_not_stop_it() -> None:
    """Rank 0 was slow, rank 1 died; where no cause of a stop is named, all blamed ranks count."""
    causes = ("gpu_throttling", "process_crash", "", "gpu_memory_errors")
    corpus = made_up_corpus(
        2, mode=("fail_stop",) * 2, cause=("process_crash", "gpu_memory_errors"), rank_cause=causes,
        faulty=np.array([True, True, False, True]),
    )  # fmt: skip
    wanted = targets(corpus)
    assert wanted["stopper"].labels == ("no", "yes", "no", "yes")
    assert wanted["stop_cause"].labels == ("process_crash",)


def test_causes_that_the_heads_do_not_know_are_left_out() -> None:
    corpus = made_up_corpus(
        1, mode=("fail_slow",), cause=("hang",), rank_cause=("", "hang"), faulty=np.array([False, True])
    )
    wanted = targets(corpus)
    assert wanted["cause"].labels == wanted["type"].labels == ()


def test_causes_that_only_a_later_corpus_has_are_classes_where_they_occur() -> None:
    names = ("cpu_contention", "recompilation")
    made = made_up_corpus(40)
    old, new = (
        targets(replace(made, rank_cause=tuple(name if each else "" for each in made.rank_cause)))["cause"]
        for name in names
    )
    first = (*(name for name in SLOW_CAUSES if name in FIRST_CAUSES), UNKNOWN)
    assert old.classes == first
    assert new.classes == (*first[:-1], "recompilation", UNKNOWN)
