"""Synchronisation modes: their price, and the best of them, against brute force."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rca.errors import InvalidInput
from rca.runtime.star.modes import (
    best_groups,
    best_order,
    candidates,
    choose,
    clustered,
    dynamic_groups,
    heuristic_order,
    static_groups,
    synchronous,
    x_order,
)
from rca.runtime.star.price import UpdateProgress, grouped_step_seconds
from tests.for_each import for_each

progresses = st.builds(
    lambda seconds, *others: UpdateProgress(np.array(seconds), *others),
    st.lists(st.floats(0.01, 2.0), min_size=1, max_size=6),
    st.integers(1, 256),
    st.floats(0, 5000),
    st.floats(0, 0.1),
)


def cost(progress: UpdateProgress, order: int) -> float:
    return (1 + progress.noise / (order * progress.batch)) * sorted(progress.seconds)[order - 1]


def partitions(workers: list[int]) -> Iterator[list[list[int]]]:
    """Every division of the workers into groups."""
    if not workers:
        yield []
        return
    first, *rest = workers
    for groups in partitions(rest):
        yield [[first], *groups]
        for position, group in enumerate(groups):
            yield [*groups[:position], [first, *group], *groups[position + 1 :]]


def seconds_of(progress: UpdateProgress, groups: list[list[int]]) -> float:
    """Progress of all updates of a long time, added one by one."""
    noise, n = progress.noise / progress.batch, progress.n_workers
    work = progress.report_seconds
    times = [max(progress.seconds[each] for each in group) + work * len(group) for group in groups]
    sizes = [len(group) for group in groups]
    # The server is busy with all reports.
    busy = max(work * sum(size / seconds for size, seconds in zip(sizes, times, strict=True)), 1.0)
    times = [busy * seconds for seconds in times]
    gain = sum(size / n / seconds for size, seconds in zip(sizes, times, strict=True))
    loss = 0.0
    for size, seconds in zip(sizes, times, strict=True):
        others = sum(more * seconds / other for more, other in zip(sizes, times, strict=True)) - size
        loss += (size / n) ** 2 * (1 + noise / size) / seconds + 2 * (size / n) * (others / n) / seconds
    rate = gain / loss if progress.learning_rate is None else progress.learning_rate
    made = 2 * rate * gain - rate**2 * loss
    return 1 / made if made > 0 else float("inf")


def runs(workers: list[int]) -> Iterator[list[list[int]]]:
    for size in range(len(workers)):
        for cuts in itertools.combinations(range(1, len(workers)), size):
            yield [workers[start:end] for start, end in itertools.pairwise((0, *cuts, len(workers)))]


@settings(max_examples=40)
@given(progresses)
def test_no_division_into_runs_is_faster(progress: UpdateProgress) -> None:
    found = best_groups(progress)
    assert sorted(worker for group in found.groups for worker in group) == list(range(progress.n_workers))
    least = min(seconds_of(progress, groups) for groups in runs(list(progress.fastest_first)))
    assert found.seconds == pytest.approx(least, rel=1e-9)


@settings(max_examples=40)
@given(progresses)
def test_a_division_that_mixes_times_is_hardly_faster(progress: UpdateProgress) -> None:
    least = min(seconds_of(progress, groups) for groups in partitions(list(range(progress.n_workers))))
    assert best_groups(progress).seconds <= 1.1 * least


def test_many_workers_are_divided_without_trying_all() -> None:
    times = np.concatenate((np.full(30, 0.1), np.full(10, 0.3)))
    found = best_groups(UpdateProgress(times, 16, 2000.0, report_seconds=0.0001))
    assert found.groups == (tuple(range(30)), tuple(range(30, 40)))


@settings(max_examples=60)
@given(progresses)
def test_no_mode_makes_more_progress_of_a_sample_than_synchronous_training(progress: UpdateProgress) -> None:
    full = synchronous(progress)
    for mode in candidates(progress):
        gained = mode.reports_per_second / full.reports_per_second
        assert full.seconds / mode.seconds <= gained * (1 + 1e-9)


@settings(max_examples=40)
@given(progresses, st.floats(0.01, 3.0))
def test_a_given_learning_rate_is_no_better_than_the_best(progress: UpdateProgress, rate: float) -> None:
    given_rate = replace(progress, learning_rate=rate)
    best_rate = replace(progress, learning_rate=synchronous(progress).learning_rate)
    assert synchronous(best_rate).seconds == pytest.approx(synchronous(progress).seconds)
    for best, mode in zip(
        [synchronous(progress), x_order(progress, 1), static_groups(progress, 1)],
        [synchronous(given_rate), x_order(given_rate, 1), static_groups(given_rate, 1)],
        strict=True,
    ):
        assert mode.seconds >= best.seconds * (1 - 1e-9)


def test_a_small_learning_rate_makes_samples_count_alike() -> None:
    """Then staleness and noise cost nothing: only the samples per second count."""
    progress = UpdateProgress(np.array([0.1, 0.1, 0.1, 0.4]), 16, 100.0, learning_rate=1e-4)
    gained = synchronous(progress).seconds / static_groups(progress, 3).seconds
    assert gained == pytest.approx((3 / 0.1 + 1 / 0.4) / (4 / 0.4), rel=1e-3)


def test_a_learning_rate_beyond_the_stable_ones_makes_no_progress() -> None:
    progress = UpdateProgress(np.array([0.1, 0.1]), 16, 0.0, learning_rate=1.5)
    assert np.isfinite(synchronous(progress).seconds)
    assert np.isinf(static_groups(progress, 1).seconds)


def test_workers_of_like_speed_wait_for_each_other_at_no_cost() -> None:
    progress = UpdateProgress(np.full(4, 0.1), 16, 100.0)
    assert choose(progress).kind == "synchronous"
    assert static_groups(progress, 1).seconds > 1.2 * synchronous(progress).seconds


def test_an_update_of_few_reports_waits_for_no_more_than_the_fastest() -> None:
    seconds = np.array([0.1, 0.1, 0.1, 0.4])
    intervals = UpdateProgress(seconds, 16, 100.0).intervals()
    assert intervals[0] == pytest.approx(1 / (1 / seconds).sum())
    assert intervals[2:] == pytest.approx([0.1, 0.4])
    assert (np.diff(intervals) > 0).all()
    assert x_order(UpdateProgress(seconds, 16, 100.0), 1).staleness == pytest.approx(3.0)


@pytest.mark.parametrize("noise", [0.0, 64.0, 640.0, None])
def test_groups_are_priced_over_many_steps_at_once(noise: float | None) -> None:
    seconds = np.array([[0.1, 0.2], [0.4, 0.3]])
    found = grouped_step_seconds(np.array([0.75, 0.25]), seconds, noise, 64.0)
    for step in range(2):
        fast, slow = seconds[:, step]
        progress = UpdateProgress(np.array([fast, fast, fast, slow]), 16, noise or 0.0)
        full = float(progress.iterations(4))
        expected = progress.of_groups([[0, 1, 2], [3]]) / full
        if noise is None:
            expected = 1 / (0.75 / fast + 0.25 / slow)
        assert found[step] == pytest.approx(expected)


@settings(max_examples=60)
@given(progresses)
def test_the_heuristic_is_the_smallest_order_before_the_cost_rises(progress: UpdateProgress) -> None:
    orders = range(1, progress.n_workers + 1)
    rises = [order for order in orders[:-1] if cost(progress, order) < cost(progress, order + 1)]
    assert heuristic_order(progress) == (min(rises) if rises else progress.n_workers)


@settings(max_examples=60)
@given(progresses)
def test_no_order_is_faster(progress: UpdateProgress) -> None:
    least = min(x_order(progress, order).seconds for order in range(1, progress.n_workers + 1))
    assert x_order(progress, best_order(progress)).seconds == pytest.approx(least, rel=1e-12)
    assert progress.of_orders().min() == pytest.approx(least, rel=1e-12)


@settings(max_examples=30)
@given(progresses)
def test_the_chosen_mode_is_the_fastest(progress: UpdateProgress) -> None:
    chosen = choose(progress)
    assert chosen.seconds == pytest.approx(min(mode.seconds for mode in candidates(progress)), rel=1e-8)
    assert chosen.seconds <= synchronous(progress).seconds


@settings(max_examples=60)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=12), st.integers(0, 80))
def test_clusters_are_narrow_and_cannot_merge(milliseconds: list[int], distance: int) -> None:
    # Whole milliseconds as binary fractions: differences are exact.
    seconds = np.array(milliseconds) / 1024
    groups = clustered(seconds, distance / 1024)
    assert sorted(worker for group in groups for worker in group) == list(range(seconds.size))
    spans = [(seconds[list(group)].min(), seconds[list(group)].max()) for group in groups]
    assert all(high - low <= distance / 1024 for low, high in spans)
    for (low, high), (next_low, next_high) in itertools.pairwise(spans):
        assert high < next_low
        assert next_high - low > distance / 1024


def test_synchronous_is_the_order_of_all_workers() -> None:
    progress = UpdateProgress(np.array([0.3, 0.1, 0.2]), 16, 500.0)
    assert synchronous(progress).seconds == pytest.approx(0.3 * (1 + 500 / 48))
    assert x_order(progress, 3).seconds == synchronous(progress).seconds
    assert synchronous(progress).groups == ((1, 2, 0),)


def test_a_straggler_forms_a_group_of_its_own() -> None:
    times = np.array([0.10, 0.40, 0.10, 0.11])
    found = choose(UpdateProgress(times, 32, 320.0))
    assert found.groups == ((0, 2, 3), (1,))
    assert found.seconds < 0.5 * synchronous(UpdateProgress(times, 32, 320.0)).seconds


def test_static_groups_follow_the_order_of_the_times() -> None:
    progress = UpdateProgress(np.array([0.5, 0.1, 0.2, 0.6, 0.15]), 16, 500.0)
    mode = static_groups(progress, 2)
    assert mode.groups == ((1, 4), (2, 0), (3,))
    assert mode.seconds == pytest.approx(seconds_of(progress, [[1, 4], [2, 0], [3]]))


def test_dynamic_groups_split_at_fifty_milliseconds() -> None:
    progress = UpdateProgress(np.array([0.10, 0.14, 0.32, 0.20]), 16, 500.0)
    assert dynamic_groups(progress).groups == ((0, 1), (3,), (2,))
    assert dynamic_groups(progress, 0.11).groups == ((0, 1, 3), (2,))


def test_a_straggler_leaves_the_group_unless_noise_makes_its_samples_precious() -> None:
    seconds = np.array([0.10, 0.10, 0.10, 0.14])
    assert heuristic_order(UpdateProgress(seconds, 32, 10.0)) < 4
    seconds[3] = 0.12
    assert heuristic_order(UpdateProgress(seconds, 32, 1e6)) == 4


def test_the_first_local_minimum_need_not_be_the_best() -> None:
    progress = UpdateProgress(np.array([0.10, 0.21, 0.21, 0.21]), 1, 0.5)
    assert heuristic_order(progress) == 1
    assert best_order(progress) == 4


@for_each(
    ("seconds", "batch", "noise", "message"),
    [
        ([], 1, 1.0, "no worker"),
        ([0.1, float("nan")], 1, 1.0, "worker 1 is nan"),
        ([0.0], 1, 1.0, "worker 0 is 0.0"),
        ([0.1], 0, 1.0, "0 samples"),
        ([0.1], 1, float("inf"), "noise scale is inf"),
        ([0.1], 1, -1.0, "noise scale is -1"),
    ],
)
def test_bad_input_is_refused(seconds: list[float], batch: float, noise: float, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        UpdateProgress(np.array(seconds), batch, noise)


def test_an_impossible_order_or_distance_is_refused() -> None:
    progress = UpdateProgress(np.array([0.1, 0.2]), 1, 1.0)
    for size in (0, 3):
        with pytest.raises(InvalidInput, match="2 workers"):
            x_order(progress, size)
        with pytest.raises(InvalidInput, match="2 workers"):
            static_groups(progress, size)
    with pytest.raises(InvalidInput, match="learning rate is 0"):
        replace(progress, learning_rate=0.0)
    with pytest.raises(InvalidInput, match="server takes -1"):
        replace(progress, report_seconds=-1.0)
    with pytest.raises(InvalidInput, match="distance"):
        clustered(progress.seconds, -1.0)
