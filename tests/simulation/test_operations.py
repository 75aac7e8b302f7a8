"""The what-if analysis understands simulated operations, and prices a slow rank as the label does."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import cluster_workload, fault, scenario

from rca.lab.simulation import Benign, Telemetry, sample_scenario, simulate
from rca.whatif import scenarios_of, what_if
from rca.window.job import Parallelism
from rca.window.window import Window
from tests.for_each import for_each

JOBS = {
    "data parallel": Parallelism(data=8),
    "1F1B": Parallelism(data=4, pipeline=4),
    "interleaved": Parallelism(data=4, pipeline=2, virtual_pipeline=2),
    "tensor groups": Parallelism(data=4, pipeline=2, tensor=2),
}
QUIET = Benign(warmup_steps=0, hiccup_probability=0.0, noise=0.005, rank_offset=0.001, transfer_noise=0.02)


def _traced(shape: Parallelism, **changes):
    slow = fault("gpu_throttling", variant="brake", first_step=0, last_step=19, severity=0.5)
    # What lies between operations is no operation: a replay without delays cannot know it.
    between = {"data_loading_seconds": 0.001, "host_to_device_seconds": 0.003, "optimizer_seconds": 0.008}
    load = cluster_workload().model_copy(update={"p2p_seconds": 0.002, **between, **changes})
    return scenario(
        dialect="mixed",
        parallelism=shape,
        workload=load,
        faults=(slow,),
        n_steps=20,
        benign=QUIET,
        telemetry=Telemetry(ops=True),
    )


@for_each("gathered", [0.0, 0.4])
@for_each("shape", JOBS.values(), ids=JOBS)
def test_a_replay_without_delays_reproduces_the_simulated_steps(shape, gathered):
    window = simulate(_traced(shape, gather_share=gathered)).window
    Window.from_tables(window.job, window.steps, window.metrics, window.events, window.ops)
    answer = what_if(window)
    assert abs(answer.fidelity) < 0.01
    steps = window.steps.to_pandas()
    whole = steps.groupby("step").step_seconds.mean().to_numpy()
    np.testing.assert_allclose(answer.measured, whole, rtol=0.03)


@pytest.mark.parametrize("shape", JOBS.values(), ids=JOBS)
def test_what_if_prices_the_slow_rank_as_the_label_does(shape):
    made = simulate(_traced(shape))
    data_rank = 2 // shape.tensor
    repaired = {
        "name": "as its peers",
        "changes": [{"select": {"data_ranks": [data_rank], "stages": [0], "kind": "compute"}, "to": "peers"}],
    }
    with_it, without = scenarios_of(made.window, [{"name": "as is"}, repaired]).mean(axis=1)
    saved = made.label["causes"][0]["seconds_per_step"]
    assert saved > 0.05 * with_it
    assert with_it - without == pytest.approx(saved, rel=0.05)


def test_only_completed_steps_and_the_first_of_a_tensor_group_are_traced():
    drawn = _traced(JOBS["tensor groups"])
    stopped = drawn.model_copy(update={"faults": (fault("process_crash", first_step=12),)})
    ops = simulate(stopped).window.ops.to_pandas()
    assert ops.step.max() == 11
    assert set(ops["rank"]) == set(range(0, 16, 2))
    assert (ops.groupby(["rank", "step"]).size() > 0).all()


def test_operations_are_traced_rarely_and_only_in_small_jobs():
    rng = np.random.default_rng(8)
    drawn = [sample_scenario(rng, cause="healthy") for _ in range(300)]
    traced = [item for item in drawn if item.telemetry.ops]
    assert 1 <= len(traced) <= 18
    assert max(item.world_size for item in traced) <= 64
