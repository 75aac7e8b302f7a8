"""A rank that becomes late is seen soon in its own work, where the step time of a noisy job hides it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from rca.arrays import FloatArray
from rca.features.lateness_change import LatenessChange, UnitLateness
from rca.features.step_time_change import change_in
from rca.window.times.phases import PhaseArrays
from tests.for_each import for_each

N_RANKS, N_STEPS, ONSET, USUAL = 8, 400, 200, 0.11
NODES = {rank: f"node-{rank // 2}" for rank in range(N_RANKS)}


def job(seed: int = 0, n_steps: int = N_STEPS) -> FloatArray:
    """Own work of eight ranks of a noisy job: all vary together, each a little alone, and one hiccups."""
    draw = np.random.default_rng(seed)
    together = 0.012 * draw.standard_normal((1, n_steps))
    alone = 0.004 * np.abs(draw.standard_normal((N_RANKS, n_steps)))
    hiccup = 0.2 * (draw.random((N_RANKS, n_steps)) < 1 / 400)
    own: FloatArray = np.maximum(0.1 + together + alone + hiccup, 0.02)
    return own


def lateness(own: FloatArray, nodes: Mapping[int, str] = NODES) -> UnitLateness:
    step = np.broadcast_to(own.max(axis=0) + 0.01, own.shape)
    phases = PhaseArrays(
        steps=np.arange(own.shape[1]),
        present=np.ones(own.shape, dtype=bool),
        start_time=np.concatenate([np.zeros((N_RANKS, 1)), step.cumsum(axis=1)[:, :-1]], axis=1),
        seconds={"step_seconds": step, "communication_seconds": step - own},
        load={},
    )
    return UnitLateness.of(phases, np.zeros(N_RANKS, dtype=int), nodes)


def first_seen(units: UnitLateness, begin: int) -> tuple[int, LatenessChange] | None:
    for last in range(begin, units.steps.size):
        found = units.change(last, USUAL, N_STEPS)
        if found is not None:
            return last, found
    return None


@for_each("seed", range(6))
def test_a_late_rank_is_seen_within_twenty_steps(seed: int) -> None:
    own = job(seed)
    own[3, ONSET:] += 0.015
    seen = first_seen(lateness(own), ONSET)
    assert seen is not None
    last, found = seen
    assert last <= ONSET + 20
    assert found.ranks in ((3,), (2, 3))
    assert found.step == pytest.approx(ONSET, abs=4)
    assert found.seconds == pytest.approx(0.015 / len(found.ranks), abs=0.006)


def test_the_step_time_of_the_same_job_shows_nothing() -> None:
    own = job()
    own[3, ONSET:] += 0.015
    seconds = own.max(axis=0) + 0.01
    for end in range(ONSET, ONSET + 21):
        assert change_in(np.arange(end), seconds[:end]) is None


def test_a_late_node_is_seen_where_none_of_its_noisy_ranks_is() -> None:
    nodes = {rank: f"node-{rank // 4}" for rank in range(N_RANKS)}
    noise = 0.01 * np.random.default_rng(9).standard_normal((N_RANKS, ONSET + 21))
    own = job(n_steps=ONSET + 21) + noise
    own[4:, ONSET:] += 0.02
    seen = first_seen(lateness(own, nodes), ONSET)
    assert seen is not None
    assert seen[1].ranks == (4, 5, 6, 7)
    assert first_seen(lateness(own, {}), ONSET) is None


def test_a_rank_that_is_late_in_every_fourth_step_is_seen() -> None:
    own = job(n_steps=ONSET + 40)
    own[5, ONSET::4] += 0.08
    seen = first_seen(lateness(own), ONSET)
    assert seen is not None
    assert seen[1].ranks == (5,)


@for_each("seed", range(12))
def test_noise_and_hiccups_are_no_change(seed: int) -> None:
    units = lateness(job(seed))
    for last in range(40, N_STEPS, 7):
        assert units.change(last, USUAL, N_STEPS) is None


@pytest.mark.parametrize("length", [2, 5])
def test_a_few_late_steps_are_no_change(length: int) -> None:
    own = job()
    for begin in range(60, 380, 60):
        own[2, begin : begin + length] += 0.3
    units = lateness(own)
    for last in range(50, N_STEPS, 3):
        assert units.change(last, USUAL, N_STEPS) is None


def test_a_rank_that_was_always_late_has_not_changed() -> None:
    own = job()
    own[1] += 0.03
    units = lateness(own)
    for last in range(40, N_STEPS, 11):
        assert units.change(last, USUAL, N_STEPS) is None


def test_a_change_is_still_seen_long_after_its_onset() -> None:
    own = job()
    own[6, ONSET:] += 0.03
    found = lateness(own).change(ONSET + 100, USUAL, N_STEPS)
    assert found is not None
    assert found.ranks == (6,)
    assert found.step == pytest.approx(ONSET, abs=4)


def test_a_change_early_in_a_job_stays_seen() -> None:
    own = 0.1 + 0.001 * np.random.default_rng(0).standard_normal((N_RANKS, 80))
    own[6, 34:] += 0.03
    units = lateness(own)
    seen = [last for last in range(34, 80) if units.change(last, USUAL, N_STEPS) is not None]
    assert seen == list(range(seen[0], 80))
    assert seen[0] <= 34 + 8


def test_steps_without_timers_show_no_lateness() -> None:
    step = np.broadcast_to(job().max(axis=0), (N_RANKS, N_STEPS))
    phases = PhaseArrays(
        np.arange(N_STEPS), np.ones(step.shape, dtype=bool), step.cumsum(axis=1), {"step_seconds": step}, {}
    )
    units = UnitLateness.of(phases, np.zeros(N_RANKS, dtype=int), {})
    assert units.change(N_STEPS - 1, USUAL, N_STEPS) is None
