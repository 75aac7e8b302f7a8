"""Waiting is arithmetic: everybody waits for the last arrival, and counterfactuals share their noise."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import cluster_workload, fault, scenario

from rca.simulation.faults import FAULTS, apply_faults
from rca.simulation.noise import draw_noise
from rca.simulation.timing import last_arrivals, run_steps
from rca.telemetry.job import Parallelism

SHAPES = [
    Parallelism(data=8),
    Parallelism(data=2, tensor=4),
    Parallelism(data=2, tensor=2, pipeline=2),
    Parallelism(data=1, pipeline=4, context=2),
]


def _run(drawn):
    return run_steps(drawn, apply_faults(drawn), draw_noise(drawn))


@pytest.mark.parametrize("shape", SHAPES)
def test_arrival_plus_wait_is_the_same_for_all_members(shape):
    timing = _run(scenario("gpu_throttling", parallelism=shape, workload=cluster_workload()))
    together = timing.arrival + timing.phases["communication_wait_seconds"]
    np.testing.assert_allclose(together, np.broadcast_to(timing.last_arrival, together.shape), rtol=1e-12)
    assert timing.phases["communication_wait_seconds"].min() >= 0


@pytest.mark.parametrize("shape", SHAPES)
def test_each_step_starts_where_the_last_one_ended(shape):
    timing = _run(scenario(parallelism=shape))
    ends = timing.start + timing.phases["step_seconds"]
    np.testing.assert_allclose(timing.start[:, 1:], ends[:, :-1], rtol=1e-12)


def test_without_a_pipeline_the_last_to_arrive_does_not_wait():
    timing = _run(scenario("gpu_throttling"))
    assert timing.phases["communication_wait_seconds"].min(axis=0).max() < 1e-9
    assert (timing.arrival[:, 21:50].argmax(axis=0) == 2).all()


def test_a_pipeline_takes_its_slowest_stage_and_one_microbatch_of_the_others():
    drawn = scenario(parallelism=Parallelism(data=1, pipeline=4), ranks_per_node=4)
    compute = np.array([[1.0], [2.0], [3.0], [2.0]]).repeat(drawn.n_steps, axis=1)
    took = last_arrivals(drawn, compute, compute)
    np.testing.assert_allclose(took, 3.0 + 5.0 / drawn.workload.microbatches)


@pytest.mark.parametrize("cause", [cause for cause, kind in FAULTS.items() if kind.straggler_type])
def test_a_fault_never_speeds_a_step_up_and_leaves_the_time_before_alone(cause):
    # The testbed has no links inside a node.
    with_fault = scenario(cause, dialect="mixed" if cause == "nvlink_degradation" else "cpu_testbed")
    slow, calm = _run(with_fault).step_seconds, _run(with_fault.without(0)).step_seconds
    np.testing.assert_allclose(slow[:20], calm[:20], rtol=1e-12)
    if cause != "sequence_length_imbalance":  # lighter batches do exist there
        assert (slow.cumsum() >= calm.cumsum() * (1 - 1e-12)).all()
    assert slow[20:51].mean() > 1.05 * calm[20:51].mean()


def test_one_fault_draws_nothing_from_anothers_stream():
    both = scenario("gpu_throttling")
    both = both.model_copy(update={"faults": (*both.faults, fault("storage_degradation"))})
    alone = apply_faults(both, (1,))
    together = apply_faults(both)
    np.testing.assert_array_equal(alone.input_stall, together.input_stall)
