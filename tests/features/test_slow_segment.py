"""Which steps count as the slow ones: a change for everybody does not hide whom all waited for all along."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import rca
from rca.features import extract
from rca.features.slow_segment import Segment
from rca.telemetry import Window

BLIP = slice(12, 17)


def blip(n_steps: int = 60, longer: float = 0.08, steps: slice = BLIP) -> np.ndarray:
    """Transfer of everybody, seconds per step: a few steps are longer for all."""
    transfer = np.full(n_steps, 0.04)
    transfer[steps] += longer
    return transfer


def stretch(window: Window) -> Segment:
    return extract(window).comparison.segment


def test_a_few_long_steps_of_all_are_a_stretch(make_window) -> None:
    found = stretch(make_window(8, 60, transfer=blip()))
    assert (found.first, found.last) == (BLIP.start, BLIP.stop - 1)


@pytest.mark.parametrize("late", [{5: 0.03}, {4: 0.03, 5: 0.028}])
def test_who_is_late_all_along_outweighs_them(make_window, late: dict[int, float]) -> None:
    window = make_window(8, 60, late=late, transfer=blip())
    assert stretch(window).whole
    diagnosis = rca.diagnose(window)
    assert diagnosis.failure_mode == "fail_slow"
    assert [each.ranks for each in diagnosis.stragglers] == [sorted(late)]
    assert diagnosis.slowdown.seconds_per_step == pytest.approx(0.03, rel=0.25)


def test_a_late_stage_outweighs_them(make_window) -> None:
    job = {"data": 4, "pipeline": 2}
    late = dict.fromkeys(range(4, 8), 0.03)
    assert stretch(make_window(8, 60, late=late, transfer=blip(longer=0.03), parallelism=job)).whole
    assert not stretch(make_window(8, 60, transfer=blip(longer=0.03), parallelism=job)).whole


def test_where_more_is_lost_in_the_stretch_it_stays(make_window) -> None:
    found = stretch(make_window(8, 60, late={5: 0.03}, transfer=blip(longer=0.5)))
    assert (found.first, found.last) == (BLIP.start, BLIP.stop - 1)


def test_what_is_hardly_felt_outweighs_nothing(make_window) -> None:
    # In nine times as many steps, but 2.5 % of each.
    transfer = blip(300, 0.006, slice(12, 42))
    window = make_window(8, 300, late={5: 0.003}, transfer=transfer, noise=1e-6)
    assert not stretch(window).whole


@pytest.mark.parametrize("every", [2, 3])
def test_who_is_late_now_and_then_outweighs_nothing(make_window, every: int) -> None:
    window = make_window(8, 60, late={5: 0.06}, steps=slice(0, None, every), transfer=blip(longer=0.05))
    assert not stretch(window).whole


def test_a_fault_that_begins_is_its_own_stretch(make_window) -> None:
    found = stretch(make_window(8, 60, late={5: 0.03}, steps=slice(25, None)))
    assert (found.first, found.last) == (25, 59)


def then(seconds: float, before: float = 0.0) -> np.ndarray:
    """Lateness in three hundred steps: thirty of them are later than the others."""
    late = np.full(300, before)
    late[200:230] += seconds
    return late


def test_a_stretch_of_somebody_elses_is_not_outweighed(make_window) -> None:
    found = stretch(make_window(8, 300, late={5: 0.006, 2: then(0.016)}))
    assert (found.first, found.last) == (200, 229)


def test_stages_that_differ_by_nature_hide_no_late_rank(make_window) -> None:
    stage = dict.fromkeys(range(4, 8), 0.01) | {5: then(0.02, before=0.01)}
    found = stretch(make_window(8, 300, late=stage, parallelism={"data": 4, "pipeline": 2}))
    assert (found.first, found.last) == (200, 229)


def test_steps_that_nobody_timed_are_lost_like_the_others(make_window) -> None:
    window = make_window(8, 60, late={5: 0.01}, transfer=blip())
    seconds = window.steps["step_seconds"].to_numpy().reshape(8, -1).copy()
    seconds[:, 13:16] = np.nan
    place = window.steps.column_names.index("step_seconds")
    untimed = window.steps.set_column(place, "step_seconds", pa.array(seconds.ravel(), from_pandas=True))
    assert not stretch(window).whole
    assert not stretch(Window.from_tables(window.job, untimed)).whole
