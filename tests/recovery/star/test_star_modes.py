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
from rca.recovery.star.modes import (
    Progress,
    best_groups,
    best_order,
    choose,
    clustered,
    dynamic_groups,
    every_mode,
    heuristic_order,
    static_groups,
    synchronous,
    x_order,
)

progresses = st.builds(
    lambda seconds, *others: Progress(np.array(seconds), *others),
    st.lists(st.floats(0.01, 2.0), min_size=1, max_size=6),
    st.integers(1, 256),
    st.floats(0, 5000),
    st.floats(0, 0.3),
)


def cost(progress: Progress, order: int) -> float:
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


def seconds_of(progress: Progress, groups: list[list[int]]) -> float:
    rate = 0.0
    for group in groups:
        seconds = max(progress.seconds[each] for each in group) + progress.update_seconds * (len(groups) - 1)
        rate += 1 / ((1 + progress.noise / (len(group) * progress.batch)) * seconds)
    return 1 / rate


@settings(max_examples=40)
@given(progresses)
def test_no_division_into_groups_is_faster(progress: Progress) -> None:
    found = best_groups(progress)
    assert sorted(worker for group in found.groups for worker in group) == list(range(progress.n_workers))
    least = min(seconds_of(progress, groups) for groups in partitions(list(range(progress.n_workers))))
    assert found.seconds == pytest.approx(least, rel=1e-12)


@settings(max_examples=60)
@given(progresses)
def test_the_heuristic_is_the_smallest_order_before_the_cost_rises(progress: Progress) -> None:
    orders = range(1, progress.n_workers + 1)
    rises = [order for order in orders[:-1] if cost(progress, order) < cost(progress, order + 1)]
    assert heuristic_order(progress) == (min(rises) if rises else progress.n_workers)


@settings(max_examples=60)
@given(progresses)
def test_no_order_is_faster(progress: Progress) -> None:
    least = min(cost(progress, order) for order in range(1, progress.n_workers + 1))
    assert x_order(progress, best_order(progress)).seconds == pytest.approx(least, rel=1e-12)


@settings(max_examples=30)
@given(progresses)
def test_the_chosen_mode_is_the_fastest(progress: Progress) -> None:
    chosen = choose(progress)
    assert chosen.seconds == min(mode.seconds for mode in every_mode(progress))
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
    progress = Progress(np.array([0.3, 0.1, 0.2]), 16, 500.0)
    assert synchronous(progress).seconds == pytest.approx(0.3 * (1 + 500 / 48))
    assert x_order(progress, 3).seconds == synchronous(progress).seconds
    assert synchronous(progress).groups == ((1, 2, 0),)


@settings(max_examples=30)
@given(progresses)
def test_updates_that_cost_no_time_make_asynchronous_training_the_best(progress: Progress) -> None:
    free = replace(progress, update_seconds=0.0)
    alone = static_groups(free, 1).seconds
    assert best_groups(free).seconds == pytest.approx(alone, rel=1e-9)


def test_updates_that_cost_time_make_groups_the_best() -> None:
    times = np.array([0.10, 0.40, 0.10, 0.11])
    found = choose(Progress(times, 32, 3200.0, update_seconds=0.009))
    assert found.groups == ((0, 2, 3), (1,))
    assert found.seconds < synchronous(Progress(times, 32, 3200.0)).seconds


def test_static_groups_follow_the_order_of_the_times() -> None:
    progress = Progress(np.array([0.5, 0.1, 0.2, 0.6, 0.15]), 16, 500.0)
    mode = static_groups(progress, 2)
    assert mode.groups == ((1, 4), (2, 0), (3,))
    assert mode.seconds == pytest.approx(seconds_of(progress, [[1, 4], [2, 0], [3]]))


def test_dynamic_groups_split_at_fifty_milliseconds() -> None:
    progress = Progress(np.array([0.10, 0.14, 0.32, 0.20]), 16, 500.0)
    assert dynamic_groups(progress).groups == ((0, 1), (3,), (2,))
    assert dynamic_groups(progress, 0.11).groups == ((0, 1, 3), (2,))


def test_a_straggler_leaves_the_group_unless_noise_makes_its_samples_precious() -> None:
    seconds = np.array([0.10, 0.10, 0.10, 0.14])
    assert heuristic_order(Progress(seconds, 32, 10.0)) < 4
    seconds[3] = 0.12
    assert heuristic_order(Progress(seconds, 32, 1e6)) == 4


def test_the_first_local_minimum_need_not_be_the_best() -> None:
    progress = Progress(np.array([0.10, 0.21, 0.21, 0.21]), 1, 100.0)
    assert heuristic_order(progress) == 1
    assert best_order(progress) == 4


@pytest.mark.parametrize(
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
        Progress(np.array(seconds), batch, noise)


def test_an_impossible_order_or_distance_is_refused() -> None:
    progress = Progress(np.array([0.1, 0.2]), 1, 1.0)
    for size in (0, 3):
        with pytest.raises(InvalidInput, match="2 workers"):
            x_order(progress, size)
        with pytest.raises(InvalidInput, match="2 workers"):
            static_groups(progress, size)
    with pytest.raises(InvalidInput, match="update takes -1"):
        replace(progress, update_seconds=-1.0)
    with pytest.raises(InvalidInput, match="distance"):
        clustered(progress.seconds, -1.0)
