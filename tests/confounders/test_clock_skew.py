"""Confounder 6: nodes' clocks differ by milliseconds to seconds; no answer may depend on that."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hand_made import KERNELS, Exported, believed, blamed, exported

import rca

SKEWS = {
    "milliseconds": (0.0, 0.004, -0.007, 0.002),
    "a step": (0.1, -0.1, 0.05, 0.0),
    "seconds": (0.0, 2.5, -1.5, 0.7),
    "one node far ahead": (0.0, 0.0, 0.0, 5.0),
}
skews = pytest.mark.parametrize("skew", SKEWS.values(), ids=SKEWS)


def skewed(window: rca.Window, seconds: tuple[float, ...]) -> rca.Window:
    """Every node writes its rows by its own clock; metrics carry the time of the scraper."""
    node = window.job.topology.node[window.steps["rank"].to_numpy()]
    start = window.steps["start_time"].to_numpy() + np.array(seconds)[node]
    place = window.steps.column_names.index("start_time")
    steps = window.steps.set_column(place, "start_time", pa.array(start))
    return rca.Window.from_tables(window.job, steps, window.metrics, window.events)


@skews
def test_clock_skew_between_nodes_changes_nothing(make_window, skew: tuple[float, ...]) -> None:
    """Without metrics the clocks are not needed at all, so not even the figures may move."""
    window = make_window(late={2: 0.03}, steps=slice(15, 30))
    plain, off = rca.diagnose(window), rca.diagnose(skewed(window, skew))
    assert off.failure_mode_probability == pytest.approx(plain.failure_mode_probability, abs=0.02)
    assert off.slowdown.seconds_per_step == pytest.approx(plain.slowdown.seconds_per_step)
    # Only clock times depend on clocks.
    untimed = [
        [each.model_copy(update={"since": None, "until": None}) for each in answer.stragglers]
        for answer in (off, plain)
    ]
    assert untimed[0] == untimed[1]


@skews
def test_evidence_is_found_by_skewed_clocks(make_window, skew: tuple[float, ...]) -> None:
    """The run queue of node 1 fills in steps 15 to 30, whatever node 1's clock says."""
    window = make_window(late={2: 0.05, 3: 0.05}, phase=KERNELS, n_steps=60, steps=slice(15, 40))
    waiting = np.full((4, 60), 0.02)
    waiting[1, 15:40] = 0.8
    series = (
        Exported("node_pressure_cpu_waiting_seconds_total", waiting, scope="node", counter=True),
        Exported("process_schedstat_waiting_seconds_total", np.repeat(waiting, 2, axis=0), counter=True),
    )
    diagnosis = rca.diagnose(skewed(exported(window, *series), skew))
    assert ("cpu_contention", (2, 3)) in believed(diagnosis)
    assert blamed(diagnosis) == {2, 3}


@skews
@pytest.mark.parametrize(
    "name", ["compute-duty-cycle", "cpu-contention-node", "healthy", "killed-rank", "slow-dataset"]
)
def test_skew_does_not_change_the_answer_on_real_windows(
    real_windows, name: str, skew: tuple[float, ...]
) -> None:
    window = rca.read_window(real_windows / name)
    plain, off = rca.diagnose(window), rca.diagnose(skewed(window, skew))
    assert off.failure_mode == plain.failure_mode
    assert blamed(off) == blamed(plain)


def test_a_clock_that_runs_ahead_is_no_silence_and_one_behind_no_stop(make_window) -> None:
    """Node 3's rows seem to end seconds before the window does: its clock is slow, the rank is not gone."""
    for seconds in (-4.0, 4.0):
        window = skewed(make_window(), (0.0, 0.0, 0.0, seconds))
        assert rca.diagnose(window).failure_mode == "healthy"
