"""Confounder 3: pipeline stages do different work, so a rank is compared with the ranks of its own stage."""

from __future__ import annotations

import pytest
from hand_made import KERNELS, believed, blamed, names_of

import rca
from rca.lab.simulation import SimulationScenario, Telemetry, Workload, simulate
from rca.window.job import Parallelism
from tests.for_each import for_each

SHAPES = pytest.mark.parametrize(
    ("pipeline", "data"), [(2, 4), (4, 2), (4, 16)], ids=["2 stages of 4", "4 stages of 2", "4 stages of 16"]
)


@SHAPES
@for_each("extra", [0.0, 0.06, 0.1])
def test_stages_with_different_work_are_not_stragglers(pipeline: int, data: int, extra: float) -> None:
    """The last stage computes the logits as well: a tenth more is what a well-balanced job looks like."""
    job = SimulationScenario(
        seed=3,
        dialect="mixed",
        parallelism=Parallelism(data=data, pipeline=pipeline),
        ranks_per_node=2 if data < 16 else 8,
        workload=Workload(
            forward_seconds=0.25, backward_seconds=0.5, transfer_seconds=0.2, last_stage_extra=extra
        ),
        telemetry=Telemetry(exporters=("dcgm", "cpu")),
    )
    diagnosis = rca.diagnose(simulate(job).window)
    assert (diagnosis.failure_mode, diagnosis.stragglers) == ("healthy", [])


@pytest.mark.parametrize("extra", [0.02, 0.05])
def test_a_heavier_stage_is_never_called_a_slow_machine(make_window, extra: float) -> None:
    heavy = dict.fromkeys(range(8, 16), extra)
    window = make_window(
        16, late=heavy, phase=KERNELS, parallelism={"data": 8, "pipeline": 2}, ranks_per_node=4
    )
    diagnosis = rca.diagnose(window)
    assert blamed(diagnosis) in (set(), set(heavy))
    assert all(cause.owner == "workload" for cause in diagnosis.causes if cause.probability >= 0.4)


def test_a_slow_rank_of_a_light_stage_is_found_beside_a_heavy_stage(make_window) -> None:
    """Rank 2 needs as long as the heavy stage's ranks and 40 ms more; only rank 2 differs from its peers."""
    late = dict.fromkeys(range(8, 16), 0.006) | {2: 0.046}
    window = make_window(
        16, late=late, steps=slice(15, 30), parallelism={"data": 8, "pipeline": 2}, ranks_per_node=4
    )
    assert 2 in blamed(rca.diagnose(window))
    assert not blamed(rca.diagnose(window)) & set(range(8, 16))


def test_a_slow_rank_of_the_heavy_stage_is_found_within_it(make_window) -> None:
    heavy, sick = 0.006, 0.05
    window = make_window(
        16,
        late=dict.fromkeys(range(8, 16), heavy) | {11: heavy + sick},
        parallelism={"data": 8, "pipeline": 2},
        ranks_per_node=4,
    )
    assert blamed(rca.diagnose(window)) == {11}


HALF_OF_THE_JOB = dict.fromkeys(range(4, 8), 0.03)


def test_what_a_stage_is_charged_with_needs_stages(make_window) -> None:
    """The same times: once the second of two stages, once the second of two nodes."""
    staged = make_window(
        8, late=HALF_OF_THE_JOB, phase=KERNELS, parallelism={"data": 4, "pipeline": 2}, ranks_per_node=2
    )
    flat = make_window(8, late=HALF_OF_THE_JOB, phase=KERNELS, ranks_per_node=4)
    assert "stage_imbalance" in names_of(believed(rca.diagnose(staged)))
    assert "stage_imbalance" not in names_of(believed(rca.diagnose(flat)))


@pytest.mark.parametrize("steps", [slice(12, 30), slice(None)], ids=["for a while", "always"])
def test_half_of_the_job_may_be_slow(make_window, steps: slice) -> None:
    flat = make_window(8, late=HALF_OF_THE_JOB, phase=KERNELS, ranks_per_node=4, steps=steps)
    diagnosis = rca.diagnose(flat)
    if diagnosis.failure_mode == "healthy":
        # From the first step to the last it could be two kinds of machine: then the answer stays open.
        assert steps == slice(None)
        assert diagnosis.abstained
        assert diagnosis.failure_mode_probability["fail_slow"] > 0.5
        return
    assert blamed(diagnosis) == set(HALF_OF_THE_JOB)
