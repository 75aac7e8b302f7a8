"""Slowness outside the catalogue: times grow, watched signals do not; single long steps are healthy."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from simulated import fault, scenario

from rca.lab.simulation import simulate
from rca.lab.simulation.faults import apply_faults
from rca.lab.simulation.faults.job import UNEXPLAINED_TYPES
from rca.lab.simulation.healthy_job import LongStall
from rca.lab.simulation.noise import draw_noise
from rca.lab.simulation.resources import Resources
from rca.lab.simulation.timing import run_steps
from rca.window.causes import UNKNOWN
from tests.for_each import for_each

#: What only times show.
STRETCHES = {
    "compute_stretch",
    "launch_stretch",
    "copy_stretch",
    "nic_stretch",
    "nvlink_stretch",
    "untimed_stall",
}


@for_each("variant", UNEXPLAINED_TYPES)
def test_unexplained_slowness_shows_in_times_only(variant: str) -> None:
    base = scenario("gpu_throttling", dialect="mixed")
    job = base.model_copy(update={"faults": (fault(UNKNOWN, variant=variant),)})
    hit, calm = apply_faults(job), apply_faults(job, ())
    moved = {
        field.name
        for field in fields(Resources)
        if field.name != "stop" and not np.array_equal(getattr(hit, field.name), getattr(calm, field.name))
    }
    assert moved
    assert moved <= STRETCHES


@pytest.mark.parametrize("variant", ["compute", "host", "jitter"])
def test_unexplained_slowness_is_labelled_unknown_with_its_type(variant: str) -> None:
    base = scenario("gpu_throttling", dialect="mixed")
    label = simulate(base.model_copy(update={"faults": (fault(UNKNOWN, variant=variant),)})).label
    assert label["failure_mode"] == "fail_slow"
    assert label["straggler_type"] == UNEXPLAINED_TYPES[variant]
    assert label["causes"][0]["accepted"] == [UNKNOWN]


def test_a_single_long_step_is_healthy_and_lengthens_that_step_alone() -> None:
    calm = scenario()
    stall = LongStall(ranks=(3,), step=30, length=50.0)
    hit = calm.model_copy(update={"benign": calm.benign.model_copy(update={"events": (stall,)})})
    before, after = (
        run_steps(each, apply_faults(each), draw_noise(each)).step_seconds for each in (calm, hit)
    )
    grown = after - before
    assert grown[30] == pytest.approx(50 * calm.workload.step_seconds, rel=0.1)
    assert np.abs(np.delete(grown, [30, 31])).max() < 1e-6
    assert simulate(hit).label["failure_mode"] == "healthy"
