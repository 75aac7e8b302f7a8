"""Resources have a state: queues run empty, heat sinks warm up, links share switches, nodes differ."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import cluster_workload, fault, phase, scenario

from rca.lab.simulation import Benign, Fleet, SimulationScenario, simulate
from rca.lab.simulation.compute_work import spread_for, stage_work
from rca.lab.simulation.faults import apply_faults
from rca.lab.simulation.gpu_clock import SPAN_DEGREES, THROTTLE_DEGREES, WORKING_DEGREES, cooling_for
from rca.lab.simulation.impact import slowdown
from rca.lab.simulation.noise import draw_noise
from rca.lab.simulation.timing import run_steps
from rca.window.job import Parallelism
from tests.for_each import for_each

CALM = Benign(warmup_steps=0, hiccup_probability=0.0)


def _loading(drawn: SimulationScenario) -> np.ndarray:
    timing = run_steps(drawn, apply_faults(drawn), draw_noise(drawn))
    return timing.phases["data_loading_seconds"][2]


def _stalled(ahead: int, last: int, *, workers: int = 1) -> np.ndarray:
    load = cluster_workload().model_copy(update={"prefetch_steps": ahead, "loader_workers": workers})
    stall = fault("data_loader_stall", severity=0.5, last_step=last)
    return _loading(scenario(dialect="mixed", workload=load, benign=CALM, faults=(stall,)))


def test_a_queue_hides_a_short_stall_and_not_a_long_one():
    waited = cluster_workload().step_seconds * 0.1
    assert _stalled(4, last=21).max() < waited
    assert _stalled(0, last=21)[20:22].min() > waited
    assert np.median(_stalled(4, last=60)[45:60]) > waited


@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_a_deeper_queue_is_empty_later(ahead):
    felt = np.flatnonzero(_stalled(ahead, last=60) > 0.1)
    assert felt[0] >= 20 + ahead
    assert felt[0] > np.flatnonzero(_stalled(ahead - 1, last=60) > 0.1)[0]


@pytest.mark.parametrize(("ahead", "workers"), [(1, 1), (2, 1), (2, 2), (4, 3)])
def test_an_empty_queue_delivers_at_the_pace_of_its_workers(ahead, workers):
    """The strength of a stall is the wait of the step, with any queue."""
    felt = _stalled(ahead, last=65, workers=workers)[45:65].mean()
    assert felt == pytest.approx(2.3 * cluster_workload().step_seconds * 0.5**2.35, rel=0.25)


def _rarely(share: float) -> np.ndarray:
    """Extra waiting compared with the same job without a fault, on the ranks that share the stall."""
    stall = fault("storage_degradation", severity=0.6, ranks=tuple(range(8)), nodes=(0, 1, 2, 3))
    stall = stall.model_copy(update={"late_share": share, "first_step": 0, "last_step": None})
    load = cluster_workload().model_copy(update={"prefetch_steps": 0, "loader_workers": 1})
    drawn = scenario(dialect="mixed", workload=load, benign=CALM, faults=(stall,), n_steps=400)
    healthy = drawn.model_copy(update={"faults": ()})
    felt, usual = (
        run_steps(each, apply_faults(each), draw_noise(each)).phases["data_loading_seconds"]
        for each in (drawn, healthy)
    )
    return felt - usual


@pytest.mark.parametrize("share", [0.03, 0.25])
def test_rare_late_batches_are_long_and_come_one_by_one(share):
    rare, every = _rarely(share), _rarely(1.0)
    late = rare > 0.5 * np.median(every)
    assert late.mean() == pytest.approx(share, rel=0.25)
    assert rare[late].mean() == pytest.approx(every.mean() / np.sqrt(share), rel=0.3)
    assert rare.mean() < every.mean()
    anybody = late.any(axis=0).mean()
    assert anybody == pytest.approx(1 - (1 - share) ** 8, rel=0.25), "ranks are late independently"


def _hot(seconds: float, severity: float = 0.6, **changes) -> np.ndarray:
    hot = fault("gpu_throttling", variant="thermal", severity=severity, **changes)
    drawn = scenario(
        dialect="mixed", workload=cluster_workload(), faults=(hot,), fleet=Fleet(cooling_seconds=seconds)
    )
    resources = apply_faults(drawn)
    assert resources.heat[2].max() < THROTTLE_DEGREES + SPAN_DEGREES - WORKING_DEGREES
    return resources.clock[2]


def test_heat_makes_the_clock_fall_gradually():
    slow, quick = _hot(60.0), _hot(8.0)
    assert slow[20] == pytest.approx(1.0)
    falling = slow[20:50]
    assert (np.diff(falling) < 0.01).all()
    assert ((falling > falling.min() + 0.05) & (falling < 0.95)).sum() >= 4
    assert (slow < 0.95).argmax() > (quick < 0.95).argmax()


@pytest.mark.parametrize("severity", [0.2, 0.6, 1.0])
def test_too_little_cooling_ends_at_the_clock_of_a_power_cap(severity):
    settled = 1 / (1 + 2.5 * severity**1.6)
    assert _hot(15.0, severity, last_step=65)[45:].mean() == pytest.approx(settled, rel=0.03)
    assert float(cooling_for(settled)) < 1


def test_a_gpu_that_is_hot_before_the_window_starts_slow():
    clock = _hot(60.0, first_step=0, last_step=65)
    assert clock[0] == pytest.approx(clock[-20:].mean(), rel=0.05)


@pytest.mark.parametrize(("share", "slowed"), [(0.0, False), (1 / 64, False), (0.1, True)])
def test_a_narrow_link_slows_the_nic_behind_the_same_switch(share, slowed):
    narrow = fault("pcie_degradation", severity=0.9)
    drawn = scenario(dialect="mixed", faults=(narrow,), fleet=Fleet(switch_share=share))
    transfer = phase(simulate(drawn).window, "communication_transfer_seconds")
    growth = transfer[:, 22:51].mean(axis=1) / transfer[:, 5:20].mean(axis=1)
    # A ring moves at the pace of its slowest port: all ranks' transfers grow, or none does.
    assert (growth > 1.5).all() if slowed else (growth < 1.1).all()


def test_nodes_of_two_generations_are_a_healthy_job():
    old = Fleet(models=(0, 1, 0, 1), speeds=(1.0, 0.97, 1.0, 0.97))
    drawn = scenario(dialect="mixed", workload=cluster_workload(), benign=CALM, fleet=old)
    made = simulate(drawn)
    assert made.label["failure_mode"] == "healthy"
    forward = phase(made.window, "forward_seconds").mean(axis=1)
    assert forward[[2, 3, 6, 7]].min() > 1.015 * forward[[0, 1, 4, 5]].max()
    clock = (
        made.window.metrics.to_pandas().query("name == 'DCGM_FI_DEV_SM_CLOCK'").groupby("rank").value.max()
    )
    assert clock[[2, 3, 6, 7]].max() < clock[[0, 1, 4, 5]].min()


def test_a_fleet_has_an_entry_for_every_node():
    with pytest.raises(ValueError, match=r"fleet\.speeds has 3 entries for 4 nodes"):
        scenario(fleet=Fleet(speeds=(1.0, 1.0, 1.0)))


def test_model_chunks_need_microbatches_that_divide_by_the_stages():
    load = cluster_workload().model_copy(update={"microbatches": 6})
    with pytest.raises(ValueError, match="model chunks need"):
        scenario(parallelism=Parallelism(data=2, pipeline=4, virtual_pipeline=2), workload=load)


def test_stages_hold_whole_layers():
    load = cluster_workload().model_copy(update={"layers": 50, "last_stage_extra": 0.05})
    drawn = scenario(parallelism=Parallelism(data=2, pipeline=4), workload=load)
    share = stage_work(drawn, np.zeros((4, 1)))[:, 0]
    np.testing.assert_allclose(share * 12.5, [12, 13, 13, 12 + 0.05 * 12.5])


@for_each("packed", [True, False])
@for_each("deviation", [0.02, 0.2, 0.5])
def test_wider_lengths_make_steps_uneven_by_the_given_spread(packed, deviation):
    load = cluster_workload().model_copy(update={"packed": packed, "samples_per_step": 8})
    drawn = scenario(
        parallelism=Parallelism(data=64),
        workload=load,
        n_steps=300,
        benign=Benign(sequence_jitter=deviation, noise=0.0, rank_offset=0.0, hiccup_probability=0.0),
    )
    assert 0 < spread_for(load, deviation) < 2.5
    timing = run_steps(drawn, apply_faults(drawn), draw_noise(drawn))
    forward = timing.phases["forward_seconds"][:, 5:]
    # Heavy tails make a sample's deviation fall short of the distribution's.
    assert forward.std() / forward.mean() == pytest.approx(deviation, rel=0.25)


def test_compute_follows_the_recorded_squared_lengths():
    drawn = scenario("sequence_length_imbalance", dialect="mixed", workload=cluster_workload(), benign=CALM)
    logged = drawn.telemetry.model_copy(update={"load_columns": True})
    window = simulate(drawn.model_copy(update={"telemetry": logged})).window
    steps = window.steps.to_pandas().query("20 <= step <= 50")
    squares, forward = steps.sum_squared_sequence_length, steps.forward_seconds
    assert np.corrcoef(squares, forward)[0, 1] > 0.99


def test_late_stages_wait_during_the_bubble():
    """A pipeline's bubble exists without any fault, and it is no rank's own work."""
    sizes = Parallelism(data=2, pipeline=4)
    drawn = scenario(dialect="mixed", parallelism=sizes, workload=cluster_workload(), benign=CALM)
    timing = run_steps(drawn, apply_faults(drawn), draw_noise(drawn))
    bubble = 0.75 * 3 / 8
    assert timing.phases["communication_wait_seconds"].mean() == pytest.approx(bubble, rel=0.3)
    assert timing.step_seconds.mean() == pytest.approx(drawn.expected_step_seconds, rel=0.05)
    assert slowdown(scenario("stage_imbalance", dialect="mixed")) > 1.3
