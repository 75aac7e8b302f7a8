"""When each rank was late itself: its own episode, whatever stretch the job has."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rca.features import RANK_FEATURES, WINDOW_FEATURES, extract
from rca.features.late_episodes import EPISODE_MIN_SHARE, MAX_STEP_LATENESS, LateEpisodes

UNIT = 1.0


def told(features, name: str):
    """A feature of every rank, or of the window."""
    if name in WINDOW_FEATURES:
        return features.window[WINDOW_FEATURES.index(name)]
    return features.rank[:, RANK_FEATURES.index(name)]


def of(*rows: list[float]) -> LateEpisodes:
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
    episodes = of([0, 0, 50, 0, 0, 0])
    assert (episodes.first[0], episodes.past[0]) == (2, 3)
    assert episodes.cost[0] == pytest.approx(MAX_STEP_LATENESS - EPISODE_MIN_SHARE)


def test_who_is_never_late_has_none() -> None:
    episodes = of([0, -0.1, 0.01, 0])
    assert episodes.first[0] == episodes.past[0]
    assert episodes.cost[0] == 0
    assert episodes.mean(np.ones((1, 4)))[0] == 0


def test_steps_that_were_not_measured_end_no_spell() -> None:
    episodes = of([0, 0.2, np.nan, np.nan, 0.2, 0])
    assert (episodes.first[0], episodes.past[0]) == (1, 5)
    assert episodes.mean(np.array([[9, 0.2, np.nan, np.nan, 0.4, 9]]))[0] == pytest.approx(0.3)


def test_mates_are_looked_at_during_the_others_spells() -> None:
    excess = np.array([[0, 0.2, 0.2, 0], [0.1, 0.1, 0.3, np.nan], [0, 0, 0.1, 0.2]])
    episodes = LateEpisodes.of(excess, UNIT, 0.0)
    of_whom = episodes.of_peers(excess, np.array([0, 1, 2]))
    for whose in range(3):
        inside = slice(episodes.first[whose], episodes.past[whose])
        np.testing.assert_allclose(of_whom[whose], np.nanmean(excess[:, inside], axis=1))


@pytest.mark.parametrize("every", [1, 3])
def test_an_intermittent_straggler_has_a_spell_and_so_has_its_job(make_window, every: int) -> None:
    features = extract(make_window(8, 90, late={5: 0.06}, steps=slice(30, 60, every)))
    episode = round(90 * told(features, "episode_start")[5]), round(90 * told(features, "episode_end")[5])
    assert abs(episode[0] - 30) <= 1
    assert abs(episode[1] - 60) <= every
    segment = features.comparison.segment
    assert abs(segment.first - 30) <= 1
    assert abs(segment.last - 59) <= every
    assert told(features, "episode_late_share")[5] == pytest.approx(1 / every, abs=0.05)
    assert np.delete(told(features, "episode_cost"), 5).max() < 0.02 * told(features, "episode_cost")[5]
    assert told(features, "worst_episode_cost") == told(features, "episode_cost")[5]
    assert told(features, "worst_episode_late_steps_log2") == pytest.approx(np.log2(1 + 30 / every))


def test_a_spell_is_told_whatever_everybody_does_meanwhile(make_window) -> None:
    transfer = np.full(90, 0.04)
    transfer[10:20] += 0.3
    features = extract(make_window(8, 90, late={5: 0.02}, steps=slice(40, 80), transfer=transfer))
    assert (features.comparison.segment.first, features.comparison.segment.last) == (10, 19)
    assert told(features, "own_time_excess")[5] < 0.005
    assert told(features, "episode_excess")[5] == pytest.approx(0.02 / features.work.step_reference, rel=0.1)
    assert told(features, "episode_late_share")[5] == 1.0


def test_stragglers_that_take_turns_make_no_stretch(make_window) -> None:
    turns = {rank: np.where(np.arange(80) % 8 == rank, 0.06, 0.0) for rank in range(8)}
    features = extract(make_window(8, 80, late=turns))
    assert features.comparison.segment.whole
    assert told(features, "capped_lateness") > 5 * told(features, "worst_episode_cost")


def test_one_long_step_makes_no_stretch_and_hardly_a_spell(make_window) -> None:
    features = extract(make_window(8, 80, late={3: 5.0}, steps=slice(40, 41)))
    assert features.comparison.segment.whole
    assert told(features, "episode_late_steps_log2")[3] <= 1.0
    assert told(features, "worst_episode_cost") < 0.3 / 80 + 1e-9


def test_a_whole_node_is_late_in_its_ranks_spells(make_window) -> None:
    features = extract(make_window(8, 60, ranks_per_node=2, late={2: 0.03, 3: 0.03, 6: 0.03}))
    mates = told(features, "episode_node_peer_excess")
    assert mates[2] > 0.8 * told(features, "episode_excess")[2]
    assert mates[6] < 0.1 * told(features, "episode_excess")[6]
    assert told(features, "other_node_episode_cost") > 0.5 * told(features, "worst_episode_cost")


def test_of_whom_nothing_is_timed_nothing_is_known(make_window) -> None:
    window = make_window(4, 40)
    steps = window.steps.select(["rank", "step", "start_time", "step_seconds"])
    features = extract(type(window).from_tables(window.job, steps))
    for name in ("episode_cost", "episode_late_share", "forward_episode_excess"):
        assert np.isnan(told(features, name)).all()
    for name in (
        "worst_episode_cost",
        "median_episode_cost",
        "other_node_episode_cost",
        "worst_episode_excess",
        "forward_stepwise_max_excess",
    ):
        assert np.isnan(told(features, name))


def test_bursts_are_everybodys_and_turns_are_whoever_has_most(make_window) -> None:
    features = extract(make_window(8, 80, late={3: 0.06}, steps=slice(None, None, 4), noise=1e-6))
    longest = max(told(features, f"{name}_stepwise_max_excess") for name in ("forward", "backward"))
    assert longest > 0.05
    assert told(features, "forward_spike_mean") < 0.01


def test_a_spell_in_which_far_more_is_lost_replaces_a_change_of_everybodys(make_window) -> None:
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


def test_turns_with_pauses_make_no_stretch_either(make_window) -> None:
    """Every rank is late in every third step of a while of its own, one after the other."""
    steps = np.arange(120)
    turns = {
        rank: np.where((steps // 15 == rank) & (steps % 3 == 0), 0.08 + 0.002 * rank, 0.0)
        for rank in range(8)
    }
    features = extract(make_window(8, 120, late=turns))
    assert told(features, "worst_episode_cost") > 0.01
    assert features.comparison.segment.whole


def test_few_late_steps_make_no_stretch(make_window) -> None:
    for count, whole in ((3, True), (4, False)):
        features = extract(make_window(8, 80, late={5: 0.3}, steps=slice(30, 30 + 3 * count, 3)))
        assert features.comparison.segment.whole is whole


def test_what_a_rank_was_like_in_its_spell(make_window) -> None:
    unit_late = 0.05
    features = extract(make_window(8, 60, late={5: unit_late}, steps=slice(20, 40), noise=1e-6))
    late = unit_late / features.work.step_reference
    for name in ("episode_excess", "episode_removal_gain", "episode_wait_deficit", "forward_episode_excess"):
        assert told(features, name)[5] == pytest.approx(late, rel=0.02), name
    assert told(features, "episode_arrives_last_share")[5] == 1.0
    assert told(features, "episode_excess_outside")[5] == pytest.approx(0.0, abs=0.01)
    assert told(features, "backward_episode_excess")[5] == pytest.approx(0.0, abs=0.01)
    assert told(features, "episode_cost")[5] == pytest.approx(
        (min(late, MAX_STEP_LATENESS) - EPISODE_MIN_SHARE) / 3, rel=0.05
    )
    assert told(features, "second_episode_cost") < 0.01
    assert told(features, "median_episode_cost") < 0.01
    assert told(features, "capped_lateness") == pytest.approx(min(late, MAX_STEP_LATENESS) / 3, rel=0.05)


def test_noise_is_no_spell() -> None:
    rng = np.random.default_rng(3)
    excess = rng.normal(0, 0.05, (6, 200))
    loud, quiet = LateEpisodes.of(excess, UNIT, 0.0), LateEpisodes.of(excess, UNIT, 0.05)
    assert quiet.cost.max() < 0.25 * loud.cost.max()


def test_what_transfer_bursts_cost_everybody(make_window) -> None:
    transfer = np.full(80, 0.04)
    transfer[::4] += 0.05
    features = extract(make_window(8, 80, transfer=transfer, noise=1e-6))
    expected = 0.05 / 4 / features.work.step_reference
    assert told(features, "transfer_spike_mean") == pytest.approx(expected, rel=0.1)


def test_whoever_is_counted_first_is_not_the_costliest_where_nobody_has_a_spell(make_window) -> None:
    """Half of the ranks late: what is noise is as large, and nobody's lateness is beyond it."""
    for late in ({1: 0.02, 2: 0.02}, {0: 0.02, 3: 0.02}):
        features = extract(make_window(4, 30, late=late))
        assert told(features, "worst_episode_cost") == 0
        assert (
            told(features, "worst_episode_excess_outside") == told(features, "episode_excess_outside").max()
        )


@pytest.mark.parametrize(("steps", "told_apart"), [(slice(6, None, 8), False), (slice(30, 70, 8), True)])
def test_who_is_late_now_and_then_all_along_has_no_time_beside_it(make_window, steps, told_apart) -> None:
    """What lies before the first late step is no time without the fault if it is as long as between two."""
    features = extract(make_window(8, 96, late={5: 0.12}, steps=steps))
    assert told(features, "episode_late_steps_log2")[5] >= np.log2(1 + 4)
    assert features.comparison.segment.whole is not told_apart


def test_who_is_a_little_late_all_along_hides_no_spell_of_another(make_window) -> None:
    now_and_then = np.where(
        (np.arange(120) >= 40) & (np.arange(120) < 70) & (np.arange(120) % 2 == 0), 0.12, 0.0
    )
    late = {2: np.full(120, 0.012), 5: now_and_then}
    features = extract(make_window(8, 120, late=late, noise=1e-6))
    costs = told(features, "episode_cost")
    assert costs[5] < costs[2] < 3 * costs[5]
    segment = features.comparison.segment
    assert (segment.first, abs(segment.last - 68) <= 1) == (40, True)


def test_nor_does_who_is_late_now_and_then_all_along(make_window) -> None:
    """His episode has no time beside it, but another's has."""
    steps = np.arange(240)
    transfer = np.where((steps >= 10) & (steps < 20), 0.07, 0.04)
    now_and_then = np.where(steps % 8 == 6, 0.06, 0.0)
    episode = np.where((steps >= 120) & (steps < 150) & (steps % 3 == 0), 0.12, 0.0)
    features = extract(make_window(8, 240, late={2: now_and_then, 5: episode}, transfer=transfer))
    costs = told(features, "episode_cost")
    assert costs[5] < costs[2] < 3 * costs[5]
    assert (features.comparison.segment.first, features.comparison.segment.last) == (120, 147)


@pytest.mark.parametrize("share", [0.6, 0.9])
def test_who_is_late_in_most_steps_beside_is_late_all_along(make_window, share: float) -> None:
    steps = np.arange(120)
    mostly = np.where((steps % 10 < 10 * share) | (steps == 119), 0.012, 0.0)
    episode = np.where((steps >= 40) & (steps < 70) & (steps % 2 == 0), 0.12, 0.0)
    features = extract(make_window(8, 120, late={2: mostly, 5: episode}, noise=1e-6))
    assert features.comparison.segment.whole is (share < 0.75)


def test_a_few_wider_gaps_are_not_the_usual_one(make_window) -> None:
    """Steps 8 to 47 of 60, late in two of three, but for one lull that is longer than what lies before."""
    late = np.zeros(60)
    late[8:48] = np.where(np.arange(40) % 3 < 2, 0.12, 0.0)
    late[20:34] = 0.0
    features = extract(make_window(8, 60, late={5: late}, noise=1e-6))
    assert (features.comparison.segment.first, features.comparison.segment.whole) == (8, False)


def test_nor_does_he_give_way_to_one_that_costs_little_beside_him(make_window) -> None:
    few = np.zeros(120)
    few[40:55:3] = 0.12
    features = extract(make_window(8, 120, late={2: np.full(120, 0.03), 5: few}, noise=1e-6))
    costs = told(features, "episode_cost")
    assert 0 < 3 * costs[5] < costs[2]
    assert features.comparison.segment.whole


@pytest.mark.parametrize("every", [5, 10])
def test_timers_in_some_steps_make_no_spell_sparse(make_window, every: int) -> None:
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
        assert told(seldom, name)[5] == pytest.approx(told(always, name)[5], rel=0.15), name
    assert told(seldom, "worst_episode_cost") == pytest.approx(told(always, "worst_episode_cost"), rel=0.15)


def test_beside_a_spell_of_everything_nothing_is_known(make_window) -> None:
    features = extract(make_window(8, 60, late={5: 0.06}, noise=1e-6))
    assert told(features, "episode_share")[5] == 1.0
    assert np.isnan(told(features, "episode_excess_outside")[5])
    assert told(features, "episode_excess_outside")[0] == pytest.approx(0.0, abs=0.01)
    assert told(features, "worst_episode_excess") == told(features, "episode_excess")[5] > 0.1


@pytest.mark.parametrize("late", [{5: 0.06}, {}, {2: 0.01, 6: 0.03}, {0: 0.02, 3: 0.02}])
@pytest.mark.parametrize("steps", [slice(None), slice(10, 30)])
def test_the_costliest_spell_is_told_whole(make_window, late: dict[int, float], steps: slice) -> None:
    features = extract(make_window(8, 60, late=late, steps=steps))
    costs = told(features, "episode_cost")
    whose = np.flatnonzero(costs == costs.max())
    names = [name for name in RANK_FEATURES if f"worst_{name}" in WINDOW_FEATURES and "episode" in name]
    assert "episode_excess" in names
    of_the_job = np.array([told(features, f"worst_{name}") for name in names])
    assert any(
        np.array_equal(of_the_job, [told(features, name)[rank] for name in names], equal_nan=True)
        for rank in whose
    )
