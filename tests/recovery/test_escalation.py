"""Escalation by ski-rental never costs more than twice what foresight would pay."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rca.errors import InvalidInput
from rca.recovery.escalation import CHEAP, Ladder, Rung, escalate_after

LOSSES = st.lists(st.floats(0.0, 50.0), max_size=60)
COST = st.floats(0.1, 2000.0)
LEFT = st.floats(0.0, 1.0)


@settings(max_examples=100, deadline=None)
@given(losses=LOSSES, heavy=COST, light=LEFT, remains=LEFT)
def test_a_free_light_action_and_a_heavy_one_cost_at_most_twice_the_best(
    losses: list[float], heavy: float, light: float, remains: float
) -> None:
    ladder = Ladder.of([Rung("light", 0.0, light), Rung("heavy", heavy, remains)])
    assert ladder.bound == 2.0
    assert ladder.cost(losses) <= 2.0 * ladder.best(losses) + 1e-6


@settings(max_examples=100, deadline=None)
@given(losses=LOSSES, rungs=st.lists(st.tuples(COST, LEFT), max_size=6))
def test_any_ladder_keeps_its_bound(losses: list[float], rungs: list[tuple[float, float]]) -> None:
    ladder = Ladder.of([Rung(f"action-{place}", *rung) for place, rung in enumerate(rungs)])
    assert ladder.bound <= 2.0 / (1.0 - CHEAP) + 1e-9
    assert ladder.cost(losses) <= ladder.bound * ladder.best(losses) + 1e-6


def test_the_bound_is_reached_by_a_loss_that_ends_at_the_wrong_time() -> None:
    """So a planner that always waits, or always acts at once, would fail the property."""
    ladder = Ladder.of([Rung("restart", 100.0, 0.0)])
    just_ended = [1.0] * 100
    assert ladder.cost(just_ended) == pytest.approx(2.0 * ladder.best(just_ended), rel=0.02)


def test_nothing_is_done_about_a_short_loss() -> None:
    ladder = Ladder.of([Rung("restart", 100.0, 0.0)])
    assert ladder.cost([1.0] * 10) == 10.0
    assert ladder.cost([1.0] * 5_000) <= 200.0


def test_useless_and_nearly_as_dear_actions_are_left_out() -> None:
    ladder = Ladder.of([Rung("useless", 5.0, 1.0), Rung("dear", 90.0, 0.5), Rung("restart", 100.0, 0.0)])
    assert [rung.action for rung in ladder.rungs] == ["none", "restart"]


@pytest.mark.parametrize("rung", [Rung("a", -1.0, 0.0), Rung("a", 1.0, 1.5), Rung("a", float("nan"), 0.0)])
def test_wrong_rungs_are_refused(rung: Rung) -> None:
    with pytest.raises(InvalidInput):
        Ladder.of([rung])


def test_steps_until_the_time_lost_equals_the_cost() -> None:
    assert escalate_after(100.0, 40.0, 0.5) == 120
    assert escalate_after(100.0, 400.0, 0.5) == 0
    assert escalate_after(100.0, 0.0, 0.0) is None
