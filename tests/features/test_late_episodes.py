"""Late episodes of single ranks, and when an episode becomes the slow segment."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rca.features import RANK_FEATURES, WINDOW_FEATURES, extract, late_episodes
from rca.features.late_episodes import EPISODE_MIN_SHARE, MAX_STEP_LATENESS, LateEpisodes
from tests.for_each import for_each

UNIT = 1.0


def feature(features, name: str):
    """A feature of every rank, or of the window."""
    if name in WINDOW_FEATURES:
        return features.window[WINDOW_FEATURES.index(name)]
    return features.rank[:, RANK_FEATURES.index(name)]


def episodes_of(*rows: list[float]) -> LateEpisodes:
    return LateEpisodes.of(np.array(rows, dtype=float), UNIT, 0.0)


@given(arrays.arrays(float, st.tuples(st.integers(1, 4), st.integers(1, 12)), elements=st.floats(-0.6, 0.6)))
def test_no_other_interval_adds_up_to_more(excess: np.ndarray) -> None:
    episodes = LateEpisodes.of(excess, UNIT, 0.0)
    for row, first, past, cost in zip(excess, episodes.first, episodes.past, episodes.cost, strict=True):
        counted = np.clip(row, -MAX_STEP_LATENESS, MAX_STEP_LATENESS) - EPISODE_MIN_SHARE
        sums = [counted[a:b].sum() for a in range(row.size) for b in range(a + 1, row.size + 1)]
        assert cost == pytest.approx(max(0.0, *sums), abs=1e-9)
        assert cost == pytest.approx(counted[first:past].sum(), abs=1e-9)


def test_one_step_counts_up_to_the_cap_however_long_it_is() -> None:
    episodes = episodes_of([0, 0, 50, 0, 0, 0])
    assert (episodes.first[0], episodes.past[0]) == (2, 3)
    assert episodes.cost[0] == pytest.approx(MAX_STEP_LATENESS - EPISODE_MIN_SHARE)


def test_a_rank_that_is_never_late_has_no_episode() -> None:
    episodes = episodes_of([0, -0.1, 0.01, 0])
    assert episodes.first[0] == episodes.past[0]
    assert episodes.cost[0] == 0
    assert episodes.mean(np.ones((1, 4)))[0] == 0


def test_unmeasured_steps_do_not_end_an_episode() -> None:
    episodes = episodes_of([0, 0.2, np.nan, np.nan, 0.2, 0])
    assert (episodes.first[0], episodes.past[0]) == (1, 5)
    assert episodes.mean(np.array([[9, 0.2, np.nan, np.nan, 0.4, 9]]))[0] == pytest.approx(0.3)


@pytest.mark.parametrize("pairs_at_once", [1, 4, 1_000_000])
def test_smallest_mean_of_the_peers_during_each_members_episode(
    monkeypatch: pytest.MonkeyPatch, pairs_at_once: int
) -> None:
    monkeypatch.setattr(late_episodes, "MAX_COMPARED", pairs_at_once)
    excess = np.array([[0, 0.2, 0.2, 0], [0.1, 0.1, 0.3, np.nan], [0, 0, 0.1, 0.2], [0, -0.1, 0, 0]])
    episodes = LateEpisodes.of(excess, UNIT, 0.0)
    least = episodes.smallest_of_peers(excess, [np.arange(4)])
    for member in range(3):
        inside = slice(episodes.first[member], episodes.past[member])
        means = np.nanmean(np.delete(excess, member, axis=0)[:, inside], axis=1)
        assert least[member] == pytest.approx(means.min())
    # The last rank was never late.
    assert np.isnan(least[3])


@pytest.mark.parametrize("every", [1, 3])
def test_an_intermittent_stragglers_episode_is_the_slow_segment(make_window, every: int) -> None:
    features = extract(make_window(8, 90, late={5: 0.06}, steps=slice(30, 60, every)))
    episode = (
        round(90 * feature(features, "episode_start")[5]),
        round(90 * feature(features, "episode_end")[5]),
    )
    assert abs(episode[0] - 30) <= 1
    assert abs(episode[1] - 60) <= every
    segment = features.comparison.segment
    assert abs(segment.first - 30) <= 1
    assert abs(segment.last - 59) <= every
    assert feature(features, "episode_late_share")[5] == pytest.approx(1 / every, abs=0.05)
    assert np.delete(feature(features, "episode_cost"), 5).max() < 0.02 * feature(features, "episode_cost")[5]
    assert feature(features, "worst_episode_cost") == feature(features, "episode_cost")[5]
    assert feature(features, "worst_episode_late_steps_log2") == pytest.approx(np.log2(1 + 30 / every))


def test_an_episode_outside_the_slow_segment_is_found(make_window) -> None:
    transfer = np.full(90, 0.04)
    transfer[10:20] += 0.3
    features = extract(make_window(8, 90, late={5: 0.02}, steps=slice(40, 80), transfer=transfer))
    assert (features.comparison.segment.first, features.comparison.segment.last) == (10, 19)
    assert feature(features, "own_time_excess")[5] < 0.005
    assert feature(features, "episode_excess")[5] == pytest.approx(
        0.02 / features.work.step_reference, rel=0.1
    )
    assert feature(features, "episode_late_share")[5] == 1.0


def test_alternating_stragglers_make_no_segment(make_window) -> None:
    turns = {rank: np.where(np.arange(80) % 8 == rank, 0.06, 0.0) for rank in range(8)}
    features = extract(make_window(8, 80, late=turns))
    assert features.comparison.segment.whole
    assert feature(features, "capped_lateness") > 5 * feature(features, "worst_episode_cost")


def test_one_long_step_makes_no_segment_and_a_cheap_episode(make_window) -> None:
    features = extract(make_window(8, 80, late={3: 5.0}, steps=slice(40, 41)))
    assert features.comparison.segment.whole
    assert feature(features, "episode_late_steps_log2")[3] <= 1.0
    assert feature(features, "worst_episode_cost") < 0.3 / 80 + 1e-9


def test_node_peers_of_a_late_node_are_late_in_the_episode(make_window) -> None:
    features = extract(make_window(8, 60, ranks_per_node=2, late={2: 0.03, 3: 0.03, 6: 0.03}))
    node_peer_excess = feature(features, "episode_node_peer_excess")
    assert node_peer_excess[2] > 0.8 * feature(features, "episode_excess")[2]
    assert node_peer_excess[6] < 0.1 * feature(features, "episode_excess")[6]
    assert feature(features, "other_node_episode_cost") > 0.5 * feature(features, "worst_episode_cost")


def test_episode_features_are_unknown_without_timings(make_window) -> None:
    window = make_window(4, 40)
    steps = window.steps.select(["rank", "step", "start_time", "step_seconds"])
    features = extract(type(window).from_tables(window.job, steps))
    for name in ("episode_cost", "episode_late_share", "forward_episode_excess"):
        assert np.isnan(feature(features, name)).all()
    for name in (
        "worst_episode_cost",
        "median_episode_cost",
        "other_node_episode_cost",
        "worst_episode_excess",
        "forward_stepwise_max_excess",
    ):
        assert np.isnan(feature(features, name))


def test_spikes_are_of_the_median_rank_and_stepwise_maxima_of_the_slowest(make_window) -> None:
    features = extract(make_window(8, 80, late={3: 0.06}, steps=slice(None, None, 4), noise=1e-6))
    longest = max(feature(features, f"{name}_stepwise_max_excess") for name in ("forward", "backward"))
    assert longest > 0.05
    assert feature(features, "forward_spike_mean") < 0.01


def test_a_far_costlier_episode_replaces_a_change_of_all_ranks(make_window) -> None:
    transfer = np.full(120, 0.04)
    transfer[10:20] += 0.03
    now_and_then = {5: 0.12}
    steps = slice(50, 100, 3)
    alone = extract(make_window(8, 120, transfer=transfer)).comparison.segment
    assert (alone.first, alone.last) == (10, 19)
    found = extract(make_window(8, 120, late=now_and_then, steps=steps, transfer=transfer)).comparison.segment
    assert abs(found.first - 50) <= 1
    assert abs(found.last - 98) <= 3
    # As much as is lost in the change is not far more.
    transfer[10:20] += 0.12
    kept = extract(make_window(8, 120, late=now_and_then, steps=steps, transfer=transfer)).comparison.segment
    assert (kept.first, kept.last) == (10, 19)


def test_stragglers_that_alternate_with_pauses_make_no_segment(make_window) -> None:
    """Every rank is late in every third step of a while of its own, one after the other."""
    steps = np.arange(120)
    turns = {
        rank: np.where((steps // 15 == rank) & (steps % 3 == 0), 0.08 + 0.002 * rank, 0.0)
        for rank in range(8)
    }
    features = extract(make_window(8, 120, late=turns))
    assert feature(features, "worst_episode_cost") > 0.01
    assert features.comparison.segment.whole


def test_few_late_steps_make_no_segment(make_window) -> None:
    for count, whole in ((3, True), (4, False)):
        features = extract(make_window(8, 80, late={5: 0.3}, steps=slice(30, 30 + 3 * count, 3)))
        assert features.comparison.segment.whole is whole


def test_features_of_a_rank_in_its_episode(make_window) -> None:
    unit_late = 0.05
    features = extract(make_window(8, 60, late={5: unit_late}, steps=slice(20, 40), noise=1e-6))
    late = unit_late / features.work.step_reference
    for name in ("episode_excess", "episode_removal_gain", "episode_wait_deficit", "forward_episode_excess"):
        assert feature(features, name)[5] == pytest.approx(late, rel=0.02), name
    assert feature(features, "episode_arrives_last_share")[5] == 1.0
    assert feature(features, "episode_excess_outside")[5] == pytest.approx(0.0, abs=0.01)
    assert feature(features, "backward_episode_excess")[5] == pytest.approx(0.0, abs=0.01)
    assert feature(features, "episode_cost")[5] == pytest.approx(
        (min(late, MAX_STEP_LATENESS) - EPISODE_MIN_SHARE) / 3, rel=0.05
    )
    assert feature(features, "second_episode_cost") < 0.01
    assert feature(features, "median_episode_cost") < 0.01
    assert feature(features, "capped_lateness") == pytest.approx(min(late, MAX_STEP_LATENESS) / 3, rel=0.05)


def test_noise_makes_a_cheap_episode() -> None:
    rng = np.random.default_rng(3)
    excess = rng.normal(0, 0.05, (6, 200))
    loud, quiet = LateEpisodes.of(excess, UNIT, 0.0), LateEpisodes.of(excess, UNIT, 0.05)
    assert quiet.cost.max() < 0.25 * loud.cost.max()


def test_transfer_spikes_cost_their_mean_over_all_steps(make_window) -> None:
    transfer = np.full(80, 0.04)
    transfer[::4] += 0.05
    features = extract(make_window(8, 80, transfer=transfer, noise=1e-6))
    expected = 0.05 / 4 / features.work.step_reference
    assert feature(features, "transfer_spike_mean") == pytest.approx(expected, rel=0.1)


def test_without_episodes_the_worst_rank_is_the_latest_one(make_window) -> None:
    """With half of the ranks late, noise is as large as lateness, and no rank has an episode."""
    for late in ({1: 0.02, 2: 0.02}, {0: 0.02, 3: 0.02}):
        features = extract(make_window(4, 30, late=late))
        assert feature(features, "worst_episode_cost") == 0
        assert (
            feature(features, "worst_episode_excess_outside")
            == feature(features, "episode_excess_outside").max()
        )


@pytest.mark.parametrize(("steps", "separate"), [(slice(6, None, 8), False), (slice(30, 70, 8), True)])
def test_periodic_lateness_all_along_makes_no_segment(make_window, steps, separate) -> None:
    """The steps before the first late step are no healthy time if they are fewer than one period."""
    features = extract(make_window(8, 96, late={5: 0.12}, steps=steps))
    assert feature(features, "episode_late_steps_log2")[5] >= np.log2(1 + 4)
    assert features.comparison.segment.whole is not separate


def test_slight_permanent_lateness_hides_no_episode_of_another_rank(make_window) -> None:
    now_and_then = np.where(
        (np.arange(120) >= 40) & (np.arange(120) < 70) & (np.arange(120) % 2 == 0), 0.12, 0.0
    )
    late = {2: np.full(120, 0.012), 5: now_and_then}
    features = extract(make_window(8, 120, late=late, noise=1e-6))
    costs = feature(features, "episode_cost")
    assert costs[5] < costs[2] < 3 * costs[5]
    segment = features.comparison.segment
    assert (segment.first, abs(segment.last - 68) <= 1) == (40, True)


def test_periodic_lateness_hides_no_episode_of_another_rank(make_window) -> None:
    """The periodic rank's episode leaves no healthy steps, the other rank's does."""
    steps = np.arange(240)
    transfer = np.where((steps >= 10) & (steps < 20), 0.07, 0.04)
    now_and_then = np.where(steps % 8 == 6, 0.06, 0.0)
    episode = np.where((steps >= 120) & (steps < 150) & (steps % 3 == 0), 0.12, 0.0)
    features = extract(make_window(8, 240, late={2: now_and_then, 5: episode}, transfer=transfer))
    costs = feature(features, "episode_cost")
    assert costs[5] < costs[2] < 3 * costs[5]
    assert (features.comparison.segment.first, features.comparison.segment.last) == (120, 147)


@pytest.mark.parametrize("share", [0.6, 0.9])
def test_lateness_in_most_steps_outside_an_episode_is_permanent(make_window, share: float) -> None:
    steps = np.arange(120)
    mostly = np.where((steps % 10 < 10 * share) | (steps == 119), 0.012, 0.0)
    episode = np.where((steps >= 40) & (steps < 70) & (steps % 2 == 0), 0.12, 0.0)
    features = extract(make_window(8, 120, late={2: mostly, 5: episode}, noise=1e-6))
    assert features.comparison.segment.whole is (share < 0.75)


def test_one_wide_gap_does_not_change_the_usual_gap(make_window) -> None:
    """Steps 8 to 47 of 60, late in two of three, with one pause that is longer than the steps before."""
    late = np.zeros(60)
    late[8:48] = np.where(np.arange(40) % 3 < 2, 0.12, 0.0)
    late[20:34] = 0.0
    features = extract(make_window(8, 60, late={5: late}, noise=1e-6))
    assert (features.comparison.segment.first, features.comparison.segment.whole) == (8, False)


def test_a_cheap_episode_does_not_replace_permanent_lateness(make_window) -> None:
    few = np.zeros(120)
    few[40:55:3] = 0.12
    features = extract(make_window(8, 120, late={2: np.full(120, 0.03), 5: few}, noise=1e-6))
    costs = feature(features, "episode_cost")
    assert 0 < 3 * costs[5] < costs[2]
    assert features.comparison.segment.whole


@pytest.mark.parametrize("every", [5, 10])
def test_timings_in_some_steps_give_the_same_episode(make_window, every: int) -> None:
    window = make_window(8, 200, late={5: 0.06}, steps=slice(60, 140))
    steps = window.steps.to_pandas()
    timers = [name for name in steps.columns if name.endswith("_seconds") and name != "step_seconds"]
    steps.loc[steps["step"] % every != 0, timers] = np.nan
    seldom = extract(type(window).from_tables(window.job, pa.Table.from_pandas(steps)))
    always = extract(window)
    for name in (
        "episode_cost",
        "episode_excess",
        "episode_removal_gain",
        "episode_late_share",
        "episode_arrives_last_share",
    ):
        assert feature(seldom, name)[5] == pytest.approx(feature(always, name)[5], rel=0.15), name
    assert feature(seldom, "worst_episode_cost") == pytest.approx(
        feature(always, "worst_episode_cost"), rel=0.15
    )


def test_excess_outside_is_unknown_if_the_episode_is_the_whole_window(make_window) -> None:
    features = extract(make_window(8, 60, late={5: 0.06}, noise=1e-6))
    assert feature(features, "episode_share")[5] == 1.0
    assert np.isnan(feature(features, "episode_excess_outside")[5])
    assert feature(features, "episode_excess_outside")[0] == pytest.approx(0.0, abs=0.01)
    assert feature(features, "worst_episode_excess") == feature(features, "episode_excess")[5] > 0.1


@for_each("late", [{5: 0.06}, {}, {2: 0.01, 6: 0.03}, {0: 0.02, 3: 0.02}])
@for_each("steps", [slice(None), slice(10, 30)])
def test_the_windows_row_repeats_the_costliest_episode(
    make_window, late: dict[int, float], steps: slice
) -> None:
    features = extract(make_window(8, 60, late=late, steps=steps))
    costs = feature(features, "episode_cost")
    whose = np.flatnonzero(costs == costs.max())
    names = [name for name in RANK_FEATURES if f"worst_{name}" in WINDOW_FEATURES and "episode" in name]
    assert "episode_excess" in names
    of_the_job = np.array([feature(features, f"worst_{name}") for name in names])
    assert any(
        np.array_equal(of_the_job, [feature(features, name)[rank] for name in names], equal_nan=True)
        for rank in whose
    )
