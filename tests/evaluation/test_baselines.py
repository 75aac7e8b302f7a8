"""Baselines on cases whose answer follows from the formula by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rca.errors import InvalidInput
from rca.lab.evaluation.baseline_inputs import Observed
from rca.lab.evaluation.baselines import below_mad, mad_per_cohort, relative_median, relative_scores
from rca.lab.evaluation.baselines_forest import COLUMNS, Forest, answer_of, forest_example, raw_means
from rca.lab.evaluation.baselines_signals import causes_of, robust_scores, signal_ranking
from rca.window.causes import SLOW_CAUSES

ONE_COHORT = np.zeros(4, dtype=np.int64)


def test_a_relative_score_is_the_peers_median_over_the_own_time() -> None:
    scores = relative_scores(np.array([1.0, 1.0, 1.2, 2.0]), ONE_COHORT)
    assert scores == pytest.approx([1.2, 1.2, 1.0 / 1.2, 0.5])


def test_relative_scores_compare_within_a_cohort_only() -> None:
    scores = relative_scores(np.array([1.0, 1.0, 3.0, 3.0]), np.array([0, 0, 1, 1]))
    assert scores == pytest.approx(np.ones(4))
    assert np.isnan(relative_scores(np.array([1.0]), np.array([0]))).all()


@pytest.mark.parametrize(("speed", "below"), [(7.03, True), (7.04, False)])
def test_the_mad_rule_cuts_at_the_median_less_two_robust_deviations(speed: float, below: bool) -> None:
    # Median 10, deviations 0 1 1 2 and a larger one: MAD 1, so the cut is 10 - 2 x 1.4826 = 7.0348.
    found = below_mad(np.array([9.0, 10.0, 11.0, 12.0, speed]), np.zeros(5, dtype=np.int64))
    assert found.tolist() == [False] * 4 + [below]


def test_two_ranks_never_stand_out_from_each_other_by_mad() -> None:
    assert not below_mad(np.array([1.0, 100.0]), np.zeros(2, dtype=np.int64)).any()


def test_a_rank_unmeasured_is_not_below_anything() -> None:
    assert not below_mad(np.array([np.nan, 5.0, 5.0, 5.0]), ONE_COHORT)[0]


@pytest.mark.parametrize("method", [relative_median, mad_per_cohort])
def test_rules_name_the_late_rank_and_no_cause(make_window, method) -> None:
    window = make_window(late={3: 0.06}, n_steps=60, steps=slice(20, 50))
    answer = method(Observed.from_window(window))
    assert (answer.mode, answer.causes) == ("fail_slow", ())
    assert 3 in answer.ranks


def test_a_delay_below_the_threshold_is_no_straggler_to_the_relative_rule(make_window) -> None:
    window = make_window(late={3: 0.012}, n_steps=60)  # 71 ms of own work become 83: a score of 0.86
    assert relative_median(Observed.from_window(window)).mode == "healthy"


def test_waiting_does_not_hide_the_culprit_from_the_rules(make_window) -> None:
    """With 60 ms on one rank, whole steps are alike on all: only own work tells."""
    window = make_window(late={5: 0.06}, n_steps=60)
    assert relative_median(Observed.from_window(window)).ranks == {5}
    bare = make_window(late={5: 0.06}, n_steps=60, columns=("rank", "step", "start_time", "step_seconds"))
    assert relative_median(Observed.from_window(bare)).ranks == frozenset()


def test_a_robust_score_is_the_rise_in_normal_interquartile_ranges() -> None:
    normal = [0.0, 1.0, 2.0, 3.0, 4.0]  # median 2, quartiles 1 and 3
    values = np.array([[*normal, 10.0, 6.0], [*[7.0] * 5, 7.5, 7.0]])
    anomalous = np.array([False] * 5 + [True] * 2)
    # A constant signal has no interquartile range: its rise counts in its own unit.
    assert robust_scores(values, anomalous) == pytest.approx([(10 - 2) / 2, 0.5])


def test_signals_lead_to_the_causes_that_list_them_foremost() -> None:
    assert causes_of("sm_clock_mhz") == ("gpu_throttling",)
    assert causes_of("runqueue_wait") == ("cpu_contention",)
    assert causes_of("data_loading_seconds")[0] == "data_loader_stall"
    assert causes_of("wait") == ()
    assert set(causes_of("transfer")) <= set(SLOW_CAUSES)


def test_the_signal_that_rose_most_gives_rank_and_cause(make_window) -> None:
    window = make_window(late={2: 0.08}, phase="data_loading_seconds", n_steps=80, steps=slice(30, 60))
    answer = signal_ranking(Observed.from_window(window))
    assert (answer.mode, answer.ranks, answer.straggler_type) == ("fail_slow", {2}, "input")
    assert answer.causes[0].cause == "data_loader_stall"


def test_without_a_change_no_signal_is_ranked(make_window) -> None:
    answer = signal_ranking(Observed.from_window(make_window(n_steps=60)))
    assert (answer.mode, answer.causes) == ("healthy", ())


def test_raw_means_are_means_over_the_whole_window_and_nan_where_nothing_was_measured(make_window) -> None:
    window = make_window(late={1: 0.02}, steps=slice(0, 20), n_steps=40, noise=0.0)
    rows = raw_means(Observed.from_window(window))
    forward = rows[:, COLUMNS.index("forward_seconds")]
    assert forward[1] - forward[0] == pytest.approx(0.01)
    assert np.isnan(rows[:, COLUMNS.index("sm_clock_mhz")]).all()


def test_a_forest_learns_what_its_training_windows_show(make_window) -> None:
    pytest.importorskip("sklearn")
    from judged import HEALTHY, slow_label

    examples = []
    for seed in range(12):
        slow = make_window(late={2: 0.05}, n_ranks=4, n_steps=20, seed=seed)
        examples += [
            forest_example(make_window(n_ranks=4, n_steps=20, seed=seed), HEALTHY),
            forest_example(slow, slow_label("gpu_contention", (2,))),
        ]
    forest = Forest.fit(examples)
    assert forest.n_windows == 24
    seen = forest(Observed.from_window(make_window(late={1: 0.05}, n_ranks=4, n_steps=20, seed=99)))
    assert (seen.mode, seen.ranks, seen.causes[0].cause) == ("fail_slow", {1}, "gpu_contention")
    assert forest(Observed.from_window(make_window(n_ranks=4, n_steps=20, seed=98))).mode == "healthy"


def test_a_forest_of_healthy_windows_only_is_refused(make_window) -> None:
    pytest.importorskip("sklearn")
    from judged import HEALTHY

    with pytest.raises(InvalidInput, match="with and without faults"):
        Forest.fit([forest_example(make_window(n_steps=20), HEALTHY)])


def test_class_probabilities_become_one_answer() -> None:
    classes = ["gpu_throttling", "hang", "healthy", "runtime_gc"]
    chances = np.array([[0.1, 0, 0.8, 0.1], [0.6, 0, 0.1, 0.3], [0.5, 0, 0.3, 0.2], [0, 0, 0.05, 0.95]])
    answer = answer_of(classes, chances)
    assert (answer.mode, answer.ranks, answer.straggler_type) == ("fail_slow", {1, 2, 3}, "host")
    assert [(named.cause, named.ranks) for named in answer.causes[:2]] == [
        ("runtime_gc", {3}),
        ("gpu_throttling", {1, 2}),
    ]
    assert answer.confidence == pytest.approx(0.95)
    stopped = answer_of(classes, np.array([[0, 0.9, 0.1, 0], [0.1, 0, 0.9, 0]]))
    assert (stopped.mode, stopped.ranks, stopped.straggler_type) == ("fail_stop", {0}, None)


def test_a_rank_that_nothing_explains_has_no_type() -> None:
    answer = answer_of(["healthy", "unknown"], np.array([[0.1, 0.9], [0.8, 0.2]]))
    assert (answer.mode, answer.ranks, answer.straggler_type) == ("fail_slow", frozenset({0}), None)
    assert answer.causes[0].cause == "unknown"
