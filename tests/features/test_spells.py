"""When each rank was late itself: its own spell, whatever stretch the job has."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rca.features import RANK_FEATURES, WINDOW_FEATURES, extract
from rca.features.spells import ALLOWED_SHARE, CAP, Spells

UNIT = 1.0


def told(features, name: str):
    """A feature of every rank, or of the window."""
    if name in WINDOW_FEATURES:
        return features.window[WINDOW_FEATURES.index(name)]
    return features.rank[:, RANK_FEATURES.index(name)]


def of(*rows: list[float]) -> Spells:
    return Spells.of(np.array(rows, dtype=float), UNIT, 0.0)


@given(arrays.arrays(float, st.tuples(st.integers(1, 4), st.integers(1, 12)), elements=st.floats(-0.6, 0.6)))
def test_no_other_interval_adds_up_to_more(excess: np.ndarray) -> None:
    spells = Spells.of(excess, UNIT, 0.0)
    for row, first, past, cost in zip(excess, spells.first, spells.past, spells.cost, strict=True):
        counted = np.clip(row, -CAP, CAP) - ALLOWED_SHARE
        sums = [counted[a:b].sum() for a in range(row.size) for b in range(a + 1, row.size + 1)]
        assert cost == pytest.approx(max(0.0, *sums), abs=1e-9)
        assert cost == pytest.approx(counted[first:past].sum(), abs=1e-9)


def test_one_step_counts_up_to_the_cap_however_long_it_is() -> None:
    spells = of([0, 0, 50, 0, 0, 0])
    assert (spells.first[0], spells.past[0]) == (2, 3)
    assert spells.cost[0] == pytest.approx(CAP - ALLOWED_SHARE)


def test_who_is_never_late_has_none() -> None:
    spells = of([0, -0.1, 0.01, 0])
    assert spells.first[0] == spells.past[0]
    assert spells.cost[0] == 0
    assert spells.mean(np.ones((1, 4)))[0] == 0


def test_steps_that_were_not_measured_end_no_spell() -> None:
    spells = of([0, 0.2, np.nan, np.nan, 0.2, 0])
    assert (spells.first[0], spells.past[0]) == (1, 5)
    assert spells.mean(np.array([[9, 0.2, np.nan, np.nan, 0.4, 9]]))[0] == pytest.approx(0.3)


def test_mates_are_looked_at_during_the_others_spells() -> None:
    excess = np.array([[0, 0.2, 0.2, 0], [0.1, 0.1, 0.3, np.nan], [0, 0, 0.1, 0.2]])
    spells = Spells.of(excess, UNIT, 0.0)
    of_whom = spells.of_mates(excess, np.array([0, 1, 2]))
    for whose in range(3):
        inside = slice(spells.first[whose], spells.past[whose])
        np.testing.assert_allclose(of_whom[whose], np.nanmean(excess[:, inside], axis=1))


@pytest.mark.parametrize("every", [1, 3])
def test_an_intermittent_straggler_has_a_spell_and_so_has_its_job(make_window, every: int) -> None:
    features = extract(make_window(8, 90, late={5: 0.06}, steps=slice(30, 60, every)))
    spell = round(90 * told(features, "spell_start")[5]), round(90 * told(features, "spell_end")[5])
    assert abs(spell[0] - 30) <= 1
    assert abs(spell[1] - 60) <= every
    segment = features.comparison.segment
    assert abs(segment.first - 30) <= 1
    assert abs(segment.last - 59) <= every
    assert told(features, "spell_late")[5] == pytest.approx(1 / every, abs=0.05)
    assert np.delete(told(features, "spell_cost"), 5).max() < 0.02 * told(features, "spell_cost")[5]
    assert told(features, "top_spell_cost") == told(features, "spell_cost")[5]
    assert told(features, "top_spell_late_steps") == pytest.approx(np.log2(1 + 30 / every))


def test_a_spell_is_told_whatever_everybody_does_meanwhile(make_window) -> None:
    transfer = np.full(90, 0.04)
    transfer[10:20] += 0.3
    features = extract(make_window(8, 90, late={5: 0.02}, steps=slice(40, 80), transfer=transfer))
    assert (features.comparison.segment.first, features.comparison.segment.last) == (10, 19)
    assert told(features, "own_excess")[5] < 0.005
    assert told(features, "spell_excess")[5] == pytest.approx(0.02 / features.work.step_reference, rel=0.1)
    assert told(features, "spell_late")[5] == 1.0


def test_stragglers_that_take_turns_make_no_stretch(make_window) -> None:
    turns = {rank: np.where(np.arange(80) % 8 == rank, 0.06, 0.0) for rank in range(8)}
    features = extract(make_window(8, 80, late=turns))
    assert features.comparison.segment.whole
    assert told(features, "capped_lateness") > 5 * told(features, "top_spell_cost")


def test_one_long_step_makes_no_stretch_and_hardly_a_spell(make_window) -> None:
    features = extract(make_window(8, 80, late={3: 5.0}, steps=slice(40, 41)))
    assert features.comparison.segment.whole
    assert told(features, "spell_late_steps")[3] <= 1.0
    assert told(features, "top_spell_cost") < 0.3 / 80 + 1e-9


def test_a_whole_node_is_late_in_its_ranks_spells(make_window) -> None:
    features = extract(make_window(8, 60, ranks_per_node=2, late={2: 0.03, 3: 0.03, 6: 0.03}))
    mates = told(features, "spell_node_mates")
    assert mates[2] > 0.8 * told(features, "spell_excess")[2]
    assert mates[6] < 0.1 * told(features, "spell_excess")[6]
    assert told(features, "apart_spell_cost") > 0.5 * told(features, "top_spell_cost")


def test_of_whom_nothing_is_timed_nothing_is_known(make_window) -> None:
    window = make_window(4, 40)
    steps = window.steps.select(["rank", "step", "start_time", "step_seconds"])
    features = extract(type(window).from_tables(window.job, steps))
    for name in ("spell_cost", "spell_late", "forward_spell"):
        assert np.isnan(told(features, name)).all()
    for name in (
        "top_spell_cost",
        "median_spell_cost",
        "apart_spell_cost",
        "top_spell_excess",
        "forward_turns",
    ):
        assert np.isnan(told(features, name))


def test_bursts_are_everybodys_and_turns_are_whoever_has_most(make_window) -> None:
    features = extract(make_window(8, 80, late={3: 0.06}, steps=slice(None, None, 4), noise=1e-6))
    longest = max(told(features, f"{name}_turns") for name in ("forward", "backward"))
    assert longest > 0.05
    assert told(features, "forward_bursts") < 0.01
