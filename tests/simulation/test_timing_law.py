"""Waiting is arithmetic: all ranks wait for the last arrival, and counterfactuals share their noise."""

from __future__ import annotations

import numpy as np
from simulated import cluster_workload, fault, scenario

from rca.lab.simulation import Benign
from rca.lab.simulation.faults import FAULTS, apply_faults
from rca.lab.simulation.noise import draw_noise
from rca.lab.simulation.timing import run_steps
from rca.window.job import Parallelism
from tests.for_each import for_each

SHAPES = [
    Parallelism(data=8),
    Parallelism(data=2, tensor=4),
    Parallelism(data=2, tensor=2, pipeline=2),
    Parallelism(data=1, pipeline=4, context=2),
    Parallelism(data=4, pipeline=2, virtual_pipeline=2),
]
OWN = ("data_loading", "host_to_device", "forward", "backward")


def _run(drawn):
    return run_steps(drawn, apply_faults(drawn), draw_noise(drawn))


def _arrival(timing):
    return timing.start + sum(timing.phases[f"{name}_seconds"] for name in OWN)


@for_each("shape", SHAPES)
def test_waiting_is_the_rest_of_a_step(shape):
    timing = _run(scenario("gpu_throttling", parallelism=shape, workload=cluster_workload()))
    wait = timing.phases["communication_wait_seconds"]
    done = _arrival(timing) + wait + timing.phases["communication_transfer_seconds"]
    np.testing.assert_allclose(done, timing.replay.exchanged, rtol=1e-12)
    assert wait.min() >= 0


def test_members_of_a_collective_leave_its_wait_together():
    timing = _run(scenario("gpu_throttling"))
    together = _arrival(timing) + timing.phases["communication_wait_seconds"]
    np.testing.assert_allclose(together, np.broadcast_to(together[0], together.shape), rtol=1e-12)


@for_each("shape", SHAPES)
def test_each_step_starts_where_the_last_one_ended(shape):
    timing = _run(scenario(parallelism=shape))
    ends = timing.start + timing.phases["step_seconds"]
    np.testing.assert_allclose(timing.start[:, 1:], ends[:, :-1], rtol=1e-12)


def test_without_a_pipeline_the_last_to_arrive_does_not_wait():
    timing = _run(scenario("gpu_throttling"))
    assert timing.phases["communication_wait_seconds"].min(axis=0).max() < 1e-9
    assert (_arrival(timing)[:, 21:50].argmax(axis=0) == 2).all()


def test_a_tensor_group_waits_for_its_slowest_member_inside_every_layer():
    shape = Parallelism(data=2, tensor=4)
    timing = _run(scenario("gpu_throttling", parallelism=shape))
    wait = timing.phases["communication_wait_seconds"][:, 22:51].mean(axis=1)
    assert wait[2] < 0.3 * np.delete(wait, 2).min()


def test_gathered_parameters_delay_all_ranks_at_the_start_of_a_step():
    """The late loader is waited for once, whether before the forward or after the backward."""
    sharded = cluster_workload().model_copy(update={"gather_share": 0.4})
    # Gathering and exchanging vary by themselves.
    even = Benign(transfer_noise=0.0)
    late, together = (
        _run(scenario("data_loader_stall", workload=load, benign=even))
        for load in (sharded, cluster_workload())
    )
    np.testing.assert_allclose(
        late.phases["communication_transfer_seconds"], together.phases["communication_transfer_seconds"]
    )
    np.testing.assert_allclose(late.step_seconds, together.step_seconds, rtol=0.03)
    assert late.step_seconds.sum() > together.step_seconds.sum()


@for_each("cause", [cause for cause, kind in FAULTS.items() if kind.straggler_type])
def test_a_fault_never_speeds_a_step_up_and_leaves_the_time_before_alone(cause):
    # The testbed has no links inside a node.
    with_fault = scenario(cause, dialect="mixed" if cause == "nvlink_degradation" else "cpu_testbed")
    slow, calm = _run(with_fault).step_seconds, _run(with_fault.without(0)).step_seconds
    np.testing.assert_allclose(slow[:20], calm[:20], rtol=1e-12)
    if cause != "sequence_length_imbalance":  # lighter batches do exist there
        assert (slow.cumsum() >= calm.cumsum() * (1 - 1e-12)).all()
    assert slow[20:51].mean() > 1.05 * calm[20:51].mean()


def test_every_fault_has_its_own_random_stream():
    both = scenario("gpu_throttling")
    both = both.model_copy(update={"faults": (*both.faults, fault("storage_degradation"))})
    alone = apply_faults(both, (1,))
    together = apply_faults(both)
    np.testing.assert_array_equal(alone.read_stretch, together.read_stretch)
    assert alone.read_stretch.max() > 1
