"""Cutting windows after an onset, and when a fault is told from them."""

from __future__ import annotations

from math import inf, isnan
from pathlib import Path

import pytest
from judged import HEALTHY, SILENT, row, slow_answer, slow_label

from rca import Window, read_window
from rca.lab.evaluation.detection_delay import delay_summary, detection_delay
from rca.sources.labels import WindowLabel, read_label
from rca.window.times.step_clock import StepClock


def told_from(step: int):
    """A method that calls any window slow that reaches the step."""

    def mode_of(window: Window) -> str:
        return "fail_slow" if max(window.steps.column("step").to_pylist()) >= step else "healthy"

    return mode_of


def test_a_cut_window_ends_with_all_its_tables_at_one_moment(real_windows: Path) -> None:
    window = read_window(real_windows / "cpu-contention-node")
    cut = StepClock.of(window).cut(30)
    assert max(cut.steps.column("step").to_pylist()) == 29
    assert cut.job.end < window.job.end
    assert 0 < cut.metrics.num_rows < window.metrics.num_rows
    assert max(cut.metrics.column("time").to_pylist()) < cut.job.end
    # It is a window of the format, not only a set of tables.
    Window.from_tables(cut.job, cut.steps, cut.metrics, cut.events)


def test_a_delay_is_the_first_power_of_two_that_reaches_the_telling_step(make_window) -> None:
    window, label = make_window(n_steps=100), slow_label(first_step=40)
    assert detection_delay(window, label, told_from(40)) == 1
    assert detection_delay(window, label, told_from(44)) == 8
    assert detection_delay(window, label, told_from(99)) == pytest.approx(60, abs=2)
    assert detection_delay(window, label, told_from(1000)) == inf


def test_what_was_told_before_anything_happened_is_no_detection(make_window) -> None:
    window, label = make_window(n_steps=100), slow_label(first_step=40)
    assert detection_delay(window, label, told_from(10)) == 0


def test_a_fault_may_begin_before_the_first_step_that_is_reported(make_window) -> None:
    """A window of no step at all is no window."""
    window = StepClock.of(make_window(n_steps=60)).between(10, 60)
    assert detection_delay(window, slow_label(first_step=0), told_from(11)) == 16
    assert detection_delay(window, slow_label(first_step=0), told_from(10)) == 16


def test_a_fault_without_a_step_has_no_delay(make_window) -> None:
    assert isnan(detection_delay(make_window(), slow_label(), told_from(0)))


def test_a_healthy_window_counts_steps_to_its_first_false_alarm(make_window) -> None:
    window = make_window(n_steps=50)
    assert detection_delay(window, HEALTHY, told_from(1000)) == inf
    assert detection_delay(window, HEALTHY, told_from(5)) == 8


def test_time_goes_on_where_a_stopped_job_has_no_steps(real_windows: Path) -> None:
    window, label = (read(real_windows / "killed-rank") for read in (read_window, read_label))
    lengths = []

    def mode_of(cut: Window) -> str:
        lengths.append((cut.job.end - cut.job.start, cut.steps.num_rows))
        return "healthy"

    assert detection_delay(window, label, mode_of) == inf
    seconds = [length for length, _ in lengths]
    assert seconds == sorted(seconds)
    assert len({rows for _, rows in lengths[-3:]}) == 1
    assert seconds[-1] == window.job.end - window.job.start


def test_a_summary_keeps_what_was_never_told_and_leaves_out_what_was_told_too_early() -> None:
    label: WindowLabel = slow_label()
    delays = [0.0, 2.0, 2.0, 8.0, inf]
    found = delay_summary([row(slow_answer(), label, delay_steps=delay) for delay in delays])
    assert (found.windows, found.before_onset, found.never, found.median.value) == (5, 1, 1, 2.0)
    assert delay_summary([row(SILENT)]).windows == 0
