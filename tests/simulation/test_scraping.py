"""Exporters that collect on their own clock repeat themselves, and what they say is old."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from simulated import cluster_workload, scenario

from rca.lab.simulation import SimulationScenario, simulate
from rca.window.job import Parallelism


def _watched(hold: float, lag: float, **changes) -> SimulationScenario:
    drawn = scenario("gpu_throttling", dialect="mixed", workload=cluster_workload(), **changes)
    injected = drawn.faults[0].model_copy(update={"variant": "brake", "severity": 0.9})
    seen = drawn.telemetry.model_copy(
        update={
            "interval_seconds": 1.0,
            "hold_seconds": hold,
            "lag_seconds": lag,
            "exporters": ("dcgm", "cpu"),
        }
    )
    return drawn.model_copy(update={"faults": (injected,), "telemetry": seen})


def _series(drawn: SimulationScenario, name: str, rank: int = 2) -> pd.DataFrame:
    frame = simulate(drawn).window.metrics.to_pandas()
    return frame[(frame.name == name) & (frame["rank"] == rank)].sort_values("time")


def _longest_repeat(values: np.ndarray) -> int:
    edges = np.flatnonzero(np.append(True, np.diff(values) != 0))
    return int(np.diff(np.append(edges, values.size)).max())


def test_a_held_gauge_repeats_its_value_until_it_is_collected_again():
    name = "DCGM_FI_DEV_POWER_USAGE"
    live, held = (_series(_watched(hold, 0.0), name).value.to_numpy() for hold in (0.0, 5.0))
    assert _longest_repeat(live) == 1
    assert 4 <= _longest_repeat(held) <= 6
    assert np.unique(held).size < 0.4 * held.size


def test_a_held_counter_keeps_its_value_and_then_catches_up():
    name = "DCGM_FI_DEV_POWER_VIOLATION"
    live, held = (_series(_watched(hold, 0.0), name).value.to_numpy() for hold in (0.0, 5.0))
    grown = live.max() - live.min()
    assert (np.diff(held) >= 0).all()
    assert held.max() - held.min() == pytest.approx(grown, rel=0.2)
    assert np.diff(held).max() > 3 * np.diff(live).max()


def test_lag_shows_the_state_of_some_time_ago():
    drops = []
    for lag in (0.0, 6.0):
        clock = _series(_watched(0.0, lag), "DCGM_FI_DEV_SM_CLOCK")
        drops.append(float(clock.time[clock.value < 0.7 * clock.value.max()].iloc[0]))
    assert drops[1] - drops[0] == pytest.approx(6.0, abs=1.5)


def test_kernel_counters_are_read_at_the_scrape():
    drawn = _watched(5.0, 3.0)
    frame = simulate(drawn).window.metrics.to_pandas()
    idle = frame[(frame.name == "node_cpu_seconds_total") & (frame.device == "idle")]
    per_node = idle.groupby("node", observed=True).value
    assert all(_longest_repeat(values.to_numpy()) <= 2 for _, values in per_node)


def test_the_largest_jobs_fit_a_window():
    shape = Parallelism(data=512, tensor=8, pipeline=4)
    drawn = scenario(
        dialect="mixed", parallelism=shape, ranks_per_node=8, n_steps=16, workload=cluster_workload()
    )
    seen = drawn.telemetry.model_copy(update={"exporters": ("dcgm", "network")})
    window = simulate(drawn.model_copy(update={"telemetry": seen})).window
    assert window.steps.num_rows == 16_384 * 16
    assert window.job.world_size == 16_384
    assert len(window.job.topology.node_names) == 2_048
    assert window.metrics.num_rows > 16_384
