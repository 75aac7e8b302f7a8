"""Clocks that are off are found from collectives that end for everybody at once."""

from __future__ import annotations

import numpy as np
import pytest

from rca.telemetry import PhaseArrays
from rca.telemetry.clocks import clock_offsets

START = 1_700_000_000.0


def phases(skew: list[float], optimizer: list[float] | None = None, n_steps: int = 20) -> PhaseArrays:
    """Ranks that start at different times, end their collectives together, and have these clocks."""
    n_ranks = len(skew)
    rng = np.random.default_rng(3)
    end = START + 1.0 + np.arange(n_steps)
    length = rng.uniform(0.3, 0.9, (n_ranks, n_steps))
    tail = np.zeros(n_ranks) if optimizer is None else np.array(optimizer)
    seconds = {"step_seconds": length + tail[:, None]}
    if optimizer is not None:
        seconds["optimizer_seconds"] = np.broadcast_to(tail[:, None], length.shape).copy()
    return PhaseArrays(
        steps=np.arange(n_steps),
        present=np.ones(length.shape, dtype=bool),
        start_time=end - length + np.array(skew)[:, None],
        seconds=seconds,
        load={},
    )


def test_skew_is_found() -> None:
    assert clock_offsets(phases([0.0, 0.0, 2.5, -0.004])) == pytest.approx([0, 0, 2.5, -0.004], abs=1e-6)


def test_starting_late_is_not_skew() -> None:
    assert clock_offsets(phases([0.0] * 4)) == pytest.approx([0] * 4, abs=1e-6)


def test_a_slow_optimizer_is_not_skew() -> None:
    assert clock_offsets(phases([0.0] * 4, optimizer=[0.1, 0.1, 0.1, 0.4])) == pytest.approx(
        [0] * 4, abs=1e-6
    )


def test_a_few_odd_steps_do_not_move_the_offset() -> None:
    arrays = phases([0.0, 0.0, 0.5])
    arrays.start_time[2, :5] += 30
    assert clock_offsets(arrays)[2] == pytest.approx(0.5, abs=1e-6)


def test_stages_that_end_apart_are_compared_within_themselves() -> None:
    arrays = phases([0.0, 0.3, 5.0, 5.3, 5.0])
    assert clock_offsets(arrays, groups=[0, 0, 1, 1, 1]) == pytest.approx([-0.15, 0.15, 0, 0.3, 0], abs=1e-6)


def test_a_rank_without_finished_steps_has_no_offset() -> None:
    arrays = phases([0.0, 0.1, 0.0])
    arrays.seconds["step_seconds"][1] = np.nan
    assert np.isnan(clock_offsets(arrays)).tolist() == [False, True, False]


def test_nothing_finished_means_nothing_known() -> None:
    arrays = phases([0.0, 0.1])
    arrays.seconds["step_seconds"][:] = np.nan
    assert np.isnan(clock_offsets(arrays)).all()


def test_a_lone_rank_is_its_own_clock() -> None:
    assert clock_offsets(phases([4.0])).tolist() == [0]
