"""Choice of the slow segment: a short change of all ranks does not hide a permanent straggler."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import rca
from rca.features import extract
from rca.high_segment import Segment
from rca.window import Window

BLIP = slice(12, 17)


def blip(n_steps: int = 60, longer: float = 0.08, steps: slice = BLIP) -> np.ndarray:
    """Transfer of all ranks, seconds per step; a few steps are longer."""
    transfer = np.full(n_steps, 0.04)
    transfer[steps] += longer
    return transfer


def segment(window: Window) -> Segment:
    return extract(window).comparison.segment


def test_a_few_long_steps_of_all_ranks_are_a_segment(make_window) -> None:
    found = segment(make_window(8, 60, transfer=blip()))
    assert (found.first, found.last) == (BLIP.start, BLIP.stop - 1)


@pytest.mark.parametrize("late", [{5: 0.03}, {4: 0.03, 5: 0.028}])
def test_a_permanent_straggler_outweighs_a_short_change(make_window, late: dict[int, float]) -> None:
    window = make_window(8, 60, late=late, transfer=blip())
    assert segment(window).whole
    diagnosis = rca.diagnose(window)
    assert diagnosis.failure_mode == "fail_slow"
    assert [each.ranks for each in diagnosis.stragglers] == [sorted(late)]
    assert diagnosis.slowdown.seconds_per_step == pytest.approx(0.03, rel=0.25)


def test_a_late_stage_outweighs_a_short_change(make_window) -> None:
    job = {"data": 4, "pipeline": 2}
    late = dict.fromkeys(range(4, 8), 0.03)
    assert segment(make_window(8, 60, late=late, transfer=blip(longer=0.03), parallelism=job)).whole
    assert not segment(make_window(8, 60, transfer=blip(longer=0.03), parallelism=job)).whole


def test_a_costly_change_is_not_outweighed(make_window) -> None:
    found = segment(make_window(8, 60, late={5: 0.03}, transfer=blip(longer=0.5)))
    assert (found.first, found.last) == (BLIP.start, BLIP.stop - 1)


def test_slight_lateness_outweighs_nothing(make_window) -> None:
    # In nine times as many steps, but 2.5 % of each.
    transfer = blip(300, 0.006, slice(12, 42))
    window = make_window(8, 300, late={5: 0.003}, transfer=transfer, noise=1e-6)
    assert not segment(window).whole


@pytest.mark.parametrize("every", [2, 3])
def test_periodic_lateness_outweighs_nothing(make_window, every: int) -> None:
    window = make_window(8, 60, late={5: 0.06}, steps=slice(0, None, every), transfer=blip(longer=0.05))
    assert not segment(window).whole


def test_a_fault_that_begins_in_the_window_is_the_segment(make_window) -> None:
    found = segment(make_window(8, 60, late={5: 0.03}, steps=slice(25, None)))
    assert (found.first, found.last) == (25, 59)


def with_late_steps(seconds: float, before: float = 0.0) -> np.ndarray:
    """Lateness in three hundred steps: thirty of them are later than the others."""
    late = np.full(300, before)
    late[200:230] += seconds
    return late


def test_a_segment_caused_by_another_rank_is_not_outweighed(make_window) -> None:
    found = segment(make_window(8, 300, late={5: 0.006, 2: with_late_steps(0.016)}))
    assert (found.first, found.last) == (200, 229)


def test_stages_of_unequal_work_hide_no_late_rank(make_window) -> None:
    stage = dict.fromkeys(range(4, 8), 0.01) | {5: with_late_steps(0.02, before=0.01)}
    found = segment(make_window(8, 300, late=stage, parallelism={"data": 4, "pipeline": 2}))
    assert (found.first, found.last) == (200, 229)


def test_untimed_steps_of_a_segment_count_like_the_others(make_window) -> None:
    window = make_window(8, 60, late={5: 0.01}, transfer=blip())
    seconds = window.steps["step_seconds"].to_numpy().reshape(8, -1).copy()
    seconds[:, 13:16] = np.nan
    place = window.steps.column_names.index("step_seconds")
    untimed = window.steps.set_column(place, "step_seconds", pa.array(seconds.ravel(), from_pandas=True))
    assert not segment(window).whole
    assert not segment(Window.from_tables(window.job, untimed)).whole
