"""Windows with fewer signals hold what they say, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rca import Window, diagnose, read_window
from rca.lab.evaluation.signal_sets import SIGNAL_SETS, TELEMETRY, restrict, telemetry_of
from rca.lab.simulation import sample_scenario, simulate
from tests.for_each import for_each


@pytest.fixture(scope="module")
def window() -> Window:
    """A simulated window with GPU metrics, kernel metrics and events."""
    scenarios = (sample_scenario(np.random.default_rng(seed)) for seed in count())
    wanted = {"dcgm", "cpu", "process"}
    return simulate(
        next(one for one in scenarios if one.telemetry.events and wanted <= set(one.telemetry.exporters))
    ).window


def names(window: Window) -> set[str]:
    return set(window.metrics.column("name").to_pylist())


def test_gpu_metrics_can_be_left_out(window: Window) -> None:
    left = names(restrict(window, "no-gpu-metrics"))
    assert left == {name for name in names(window) if not name.startswith("DCGM_")}
    assert left


def test_kernel_metrics_can_be_left_out(window: Window) -> None:
    left = names(restrict(window, "no-kernel-metrics"))
    assert any(name.startswith("DCGM_") for name in left)
    assert not [name for name in left if name.startswith(("node_", "process_", "container_"))]


def test_phases_only_have_neither_metrics_nor_events(window: Window) -> None:
    bare = restrict(window, "phases-only")
    assert (bare.metrics.num_rows, bare.events.num_rows, bare.ops.num_rows) == (0, 0, 0)
    assert bare.steps.column_names == window.steps.column_names
    for name in window.steps.column_names:
        np.testing.assert_array_equal(bare.steps[name].to_numpy(), window.steps[name].to_numpy())


def test_step_times_only_are_four_columns(window: Window) -> None:
    bare = restrict(window, "step-times-only")
    assert bare.steps.column_names == ["rank", "step", "start_time", "step_seconds"]
    assert bare.steps.num_rows == window.steps.num_rows


@for_each("signals", SIGNAL_SETS)
def test_every_set_is_a_valid_window_that_can_be_diagnosed(window: Window, signals: str) -> None:
    left = restrict(window, signals)
    again = Window.from_tables(left.job, left.steps, left.metrics, left.events, left.ops)
    assert diagnose(again).failure_mode == diagnose(left).failure_mode


def test_with_all_signals_the_window_is_itself(real_windows: Path) -> None:
    window = read_window(real_windows / "healthy")
    assert restrict(window, "all") is window


def test_what_a_window_holds_has_one_of_four_names(window: Window) -> None:
    bare = restrict(window, "phases-only")
    steps = restrict(window, "step-times-only")
    untimed = replace(window, steps=steps.steps)
    told = [telemetry_of(one) for one in (window, bare, untimed, steps)]
    assert told == list(TELEMETRY)


def test_a_phase_that_nobody_measured_is_no_phase(window: Window) -> None:
    steps = restrict(window, "step-times-only")
    nothing = pa.array(np.full(steps.steps.num_rows, np.nan))
    assert (
        telemetry_of(replace(steps, steps=steps.steps.append_column("forward_seconds", nothing)))
        == TELEMETRY[3]
    )
