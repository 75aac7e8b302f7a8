"""Healthy jobs with batches or sequences that grow or shrink, suddenly or gradually."""

from __future__ import annotations

import numpy as np
import pytest

from rca.lab.simulation import SimulationScenario, sample_scenario, simulate
from rca.lab.simulation.compute_work import inputs_over_time, work_over_time
from rca.lab.simulation.healthy_job import Benign, Workload
from rca.lab.simulation.scenario import Telemetry
from rca.window.job import Parallelism

N_STEPS = 60


def scenario(**benign: object) -> SimulationScenario:
    return SimulationScenario(
        seed=5,
        dialect="gpu_cluster",
        n_steps=N_STEPS,
        parallelism=Parallelism(data=8),
        ranks_per_node=4,
        workload=Workload(
            forward_seconds=0.25, backward_seconds=0.5, transfer_seconds=0.1, samples_per_step=8
        ),
        benign=Benign(noise=0.001, hiccup_probability=0.0, warmup_steps=0, **benign),
        telemetry=Telemetry(load_columns=True),
    )


def halves(scenario: SimulationScenario, column: str) -> tuple[float, float]:
    """Mean of a column before step 20, and from step 40 on."""
    steps = simulate(scenario).window.steps
    values = np.array(steps[column]).reshape(-1, N_STEPS)
    return float(values[:, :20].mean()), float(values[:, 40:].mean())


@pytest.mark.parametrize(
    ("counted", "grown"),
    [
        ("samples", {"samples": 2, "tokens": 2, "sum_squared_sequence_length": 2}),
        ("lengths", {"samples": 1, "tokens": 2, "sum_squared_sequence_length": 4}),
        ("nothing", {"samples": 1, "tokens": 1, "sum_squared_sequence_length": 1}),
    ],
)
def test_growing_input_is_counted(counted: str, grown: dict[str, float]) -> None:
    changing = scenario(shift_step=30, shift_factor=2.0, shift_counted=counted)
    for column, factor in grown.items():
        before, after = halves(changing, column)
        assert after / before == pytest.approx(factor), column
    before, after = halves(changing, "forward_seconds")
    assert after / before == pytest.approx(2.0, rel=0.05)
    before, after = halves(changing, "host_to_device_seconds")
    assert after / before == pytest.approx(1.0 if counted == "nothing" else 2.0, rel=0.15)


def test_a_ramp_grows_step_by_step() -> None:
    ramp = work_over_time(scenario(shift_step=10, shift_factor=3.0, shift_ramp=19))
    assert ramp[9] == 1.0
    assert ramp[29] == 3.0
    np.testing.assert_allclose(np.diff(ramp[9:30]), 2 / 20)
    assert (ramp[29:] == 3.0).all()


def test_a_job_without_change_has_the_same_work_in_every_step() -> None:
    steady = scenario()
    assert (work_over_time(steady) == 1.0).all()
    assert (inputs_over_time(steady) == 1.0).all()


def test_samples_may_be_the_only_count() -> None:
    counting = scenario(shift_step=30, shift_factor=1.5, shift_counted="samples")
    telemetry = counting.telemetry.model_copy(update={"load_columns": False, "samples_counted": True})
    steps = simulate(counting.model_copy(update={"telemetry": telemetry})).window.steps
    assert "tokens" not in steps.column_names
    assert set(np.unique(np.array(steps["samples"]))) == {8.0, 12.0}


def test_work_grows_and_shrinks_suddenly_and_gradually() -> None:
    drawn = [
        sample_scenario(np.random.default_rng([7, index]), cause="healthy").benign for index in range(600)
    ]
    changing = [each for each in drawn if each.shift_counted != "nothing"]
    assert 0.02 < len(changing) / len(drawn) < 0.08
    assert (
        {each.shift_factor > 1 for each in changing}
        == {each.shift_ramp > 0 for each in changing}
        == {True, False}
    )
    assert all(1 / 3 - 1e-9 <= each.shift_factor <= 3 + 1e-9 for each in changing)
