"""The cost of faults: the job without some of them, which runs once for each set of faults."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import fault, scenario

from rca.lab.simulation import impact, simulate
from rca.lab.simulation.faults import apply_faults
from rca.lab.simulation.impact import Runs, impacts, slowdown, total_impact
from rca.lab.simulation.noise import draw_noise
from rca.lab.simulation.timing import run_steps
from tests.for_each import for_each

THROTTLED = fault("gpu_throttling", ranks=(3,), severity=0.8)
STALLED = fault("data_loader_stall", ranks=(1,), severity=0.8)
CRASHED = fault("process_crash", ranks=(2,))


def seconds(drawn, *faults):
    return run_steps(drawn, apply_faults(drawn, faults), draw_noise(drawn)).step_seconds


@for_each(
    ("faults", "n_runs"),
    [((), 0), ((CRASHED,), 0), ((THROTTLED,), 2), ((THROTTLED, STALLED), 4), ((THROTTLED, CRASHED), 4)],
    ids=["healthy", "stopped", "slow", "two slow", "slow and stopped"],
)
def test_a_job_runs_once_for_each_set_of_faults(monkeypatch, faults, n_runs):
    drawn, ran = scenario(faults=faults), []

    def counted(job, resources, noise):
        ran.append(job)
        return run_steps(job, resources, noise)

    monkeypatch.setattr(impact, "run_steps", counted)
    runs = Runs(drawn, draw_noise(drawn))
    impacts(runs)
    total_impact(runs)
    assert len(ran) == n_runs


def test_costs_compare_the_job_with_itself_without_the_fault():
    drawn = scenario(faults=(THROTTLED, STALLED))
    first, second = impacts(Runs(drawn, draw_noise(drawn)))
    both, calm = seconds(drawn, 0, 1), seconds(drawn)
    counted = slice(drawn.benign.warmup_steps, None)
    for cost, alone, without in ((first, 0, 1), (second, 1, 0)):
        saved = (both - seconds(drawn, without))[counted].mean()
        assert cost["seconds_per_step"] == pytest.approx(saved)
        assert cost["alone_seconds_per_step"] == pytest.approx((seconds(drawn, alone) - calm)[counted].mean())
    # All ranks wait longer for the stall than for the throttled one.
    assert (first["seconds_per_step"], first["alone_seconds_per_step"] > 0) == (0.0, True)
    assert second["seconds_per_step"] > 0
    labelled = [each["seconds_per_step"] for each in simulate(drawn).label["causes"]]
    assert labelled == [first["seconds_per_step"], second["seconds_per_step"]]


def test_known_step_times_change_no_slowdown():
    drawn = scenario(faults=(THROTTLED,))
    assert slowdown(drawn) == slowdown(drawn, draw_noise(drawn), calm=seconds(drawn)) > 1.05
    twice = slowdown(drawn, draw_noise(drawn), calm=2 * np.asarray(seconds(drawn)))
    assert twice == pytest.approx(slowdown(drawn) / 2)
