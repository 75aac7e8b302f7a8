"""How trainers book a step changes what is written, never what happened."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import cluster_workload, phase, scenario

from rca.lab.simulation import Benign, PhaseAccounting, Telemetry, sample_scenario, simulate
from rca.lab.simulation.exporters import EXPORTERS
from rca.window.job import Parallelism
from rca.window.times.hidden_waits import without_hidden_waits
from rca.window.times.phases import PhaseArrays
from tests.for_each import for_each

TENSOR = Parallelism(data=2, tensor=4)
WAIT, TRANSFER = "communication_wait_seconds", "communication_transfer_seconds"
TIMED = (
    "data_loading_seconds", "host_to_device_seconds", "forward_seconds", "backward_seconds", WAIT, TRANSFER,
    "optimizer_seconds", "checkpoint_seconds",
)  # fmt: skip


def run(cause: str | None, shape: Parallelism, *, begun: bool = True, **phase_accounting):
    """The window of one fault with these timers."""
    telemetry = Telemetry(
        exporters=tuple(EXPORTERS),
        phase_accounting=PhaseAccounting(**phase_accounting),
        begun_steps_reported=begun,
    )
    drawn = scenario(
        cause, dialect="mixed", parallelism=shape, workload=cluster_workload(), telemetry=telemetry
    )
    return simulate(drawn).window


def timed(window) -> np.ndarray:
    return sum(phase(window, name) for name in TIMED if name in window.steps.column_names)


@pytest.mark.parametrize("phase_accounting", ["batch_shared", "tensor_waits_inside"])
def test_accounting_only_moves_time_between_phases(phase_accounting):
    apart, inside = run("gpu_throttling", TENSOR), run("gpu_throttling", TENSOR, **{phase_accounting: True})
    np.testing.assert_allclose(timed(inside), timed(apart))
    np.testing.assert_array_equal(phase(inside, "step_seconds"), phase(apart, "step_seconds"))
    assert inside.metrics.equals(apart.metrics)
    assert (phase(inside, WAIT) <= phase(apart, WAIT) + 1e-12).all()
    assert (phase(inside, WAIT) < phase(apart, WAIT) - 1e-6).any()


def test_a_tensor_group_in_lock_step_shows_one_compute_time():
    window = run("gpu_throttling", TENSOR, tensor_waits_inside=True)
    for name in ("forward_seconds", "backward_seconds"):
        grouped = phase(window, name).reshape(2, 4, -1)
        np.testing.assert_allclose(grouped, np.broadcast_to(grouped[:, :1], grouped.shape))


def test_a_shared_batch_is_loaded_when_the_last_rank_needs_it():
    window = run("gpu_throttling", TENSOR, batch_shared=True)
    arrays = PhaseArrays.from_window(window)
    loaded = (arrays.start_time + arrays.seconds["data_loading_seconds"]).reshape(2, 4, -1)
    # Only groups without any waiting to share may differ.
    assert np.nanquantile(np.ptp(loaded, axis=1), 0.95) < 1e-5


def test_bubbles_in_no_phase_leave_the_wait_for_other_replicas():
    shape = Parallelism(data=4, pipeline=2)
    as_waiting, nowhere = run("gpu_throttling", shape), run("gpu_throttling", shape, bubbles_in="nowhere")
    untimed = phase(nowhere, "step_seconds") - timed(nowhere)
    assert np.median(untimed) > 0.05 * np.median(phase(nowhere, "step_seconds"))
    assert (phase(nowhere, WAIT) <= phase(as_waiting, WAIT) + 1e-12).all()
    slow_steps = slice(25, 45)
    # Rank 2 is slow: its replica (ranks 2 and 6) is the last, so it alone waits for no other.
    waits = phase(nowhere, WAIT)[:, slow_steps].mean(axis=1)
    assert set(np.argsort(waits)[:2]) == {2, 6}


def test_an_exchange_in_the_backward_has_no_columns_and_can_be_found_again():
    window = run("gpu_throttling", Parallelism(data=8), exchange_in="backward")
    assert WAIT not in window.steps.column_names
    arrays = PhaseArrays.from_window(window)
    cleared = without_hidden_waits(arrays, window.job.topology)
    seen, found = (
        (each.seconds["forward_seconds"] + each.seconds["backward_seconds"])[:, 25:45].mean(axis=1)
        for each in (arrays, cleared)
    )
    assert seen.argmax() != 2
    assert found.argmax() == 2
    assert found[2] > 1.1 * np.delete(found, 2).max()


def test_ranks_that_gather_parameters_by_layer_wait_within_the_forward():
    """A slow copy holds up the others' first layer; a slow device their backward, too."""
    shape, others, late = Parallelism(data=8), np.delete(np.arange(8), 2), slice(25, 45)
    for cause, waited_in_forward in (("pcie_degradation", 0.95), ("gpu_throttling", 0.35)):
        apart, layers = run(cause, shape), run(cause, shape, exchange_in="layers")
        assert not {WAIT, TRANSFER, "communication_seconds"} & set(layers.steps.column_names)
        np.testing.assert_allclose(timed(layers), timed(apart))
        assert layers.metrics.equals(apart.metrics)
        grown = phase(layers, "forward_seconds") - phase(apart, "forward_seconds")
        waited = grown - phase(apart, TRANSFER) / 3
        share = waited[others, late] / phase(apart, WAIT)[others, late]
        assert np.median(share) == pytest.approx(waited_in_forward, abs=0.1)
        assert np.median(waited[2, late]) < 0.05 * np.median(waited[others, late])


def test_no_rank_waits_longer_within_layers_than_before():
    """A tensor group with its waits inside the phases has no other waiting."""
    apart = run("gpu_throttling", TENSOR, tensor_waits_inside=True)
    layers = run("gpu_throttling", TENSOR, tensor_waits_inside=True, exchange_in="layers")
    np.testing.assert_allclose(timed(layers), timed(apart))
    for name in ("forward_seconds", "backward_seconds"):
        moved = phase(layers, name) - phase(apart, name)
        assert moved.min() > -1e-9
        assert (moved <= phase(apart, WAIT) + phase(apart, TRANSFER) + 1e-9).all()


def test_an_optimizer_that_waits_for_the_gradients_is_as_long_as_the_exchange_and_can_be_cleared():
    shape, name = Parallelism(data=8), "optimizer_seconds"
    apart, inside = run("gpu_throttling", shape), run("gpu_throttling", shape, exchange_in="optimizer")
    assert not {WAIT, TRANSFER, "communication_seconds"} & set(inside.steps.column_names)
    np.testing.assert_allclose(
        phase(inside, name) - phase(apart, name), phase(apart, WAIT) + phase(apart, TRANSFER)
    )
    assert inside.metrics.equals(apart.metrics)
    cleared = without_hidden_waits(PhaseArrays.from_window(inside), inside.job.topology).seconds[name]
    # Rank 2's GPU is slow: the others are in the optimizer before it, and wait there.
    waited = (phase(inside, name) - cleared)[:, 25:45].mean(axis=1)
    assert waited[2] < 0.2 * np.delete(waited, 2).min()


@for_each(
    ("phase_accounting", "holder", "held"),
    [
        ({"copy_in": "data loading"}, "data_loading_seconds", ["host_to_device_seconds"]),
        ({"copy_in": "forward"}, "forward_seconds", ["host_to_device_seconds"]),
        ({"loading_in": "forward"}, "forward_seconds", ["data_loading_seconds"]),
        (
            {"loading_in": "forward", "copy_in": "data loading"},
            "forward_seconds",
            ["host_to_device_seconds", "data_loading_seconds"],
        ),
    ],
)  # fmt: skip
@for_each("exchange_in", ["own phase", "layers"])
def test_inputs_may_be_timed_within_another_phase(phase_accounting, holder, held, exchange_in):
    shape = Parallelism(data=8)
    apart, inside = (
        run("pcie_degradation", shape, exchange_in=exchange_in, **each) for each in ({}, phase_accounting)
    )
    assert not set(held) & set(inside.steps.column_names)
    moved = sum(phase(apart, name) for name in held)
    np.testing.assert_allclose(phase(inside, holder) - phase(apart, holder), moved, atol=1e-9)
    np.testing.assert_allclose(timed(inside), timed(apart))
    assert inside.metrics.equals(apart.metrics)


def test_a_rank_that_stops_in_the_copy_does_not_end_the_containing_phase():
    shape, copies = Parallelism(data=8), 0
    for seed in range(40):
        drawn = scenario("hang", dialect="mixed", parallelism=shape, workload=cluster_workload(), seed=seed)
        apart, inside = (
            simulate(
                drawn.model_copy(
                    update={"telemetry": Telemetry(phase_accounting=PhaseAccounting(copy_in=place))}
                )
            ).window
            for place in ("own phase", "data loading")
        )
        loaded, copied = (
            np.isfinite(phase(apart, name)[2, -1])
            for name in ("data_loading_seconds", "host_to_device_seconds")
        )
        assert np.isfinite(phase(inside, "data_loading_seconds")[2, -1]) == (loaded and copied)
        copies += bool(loaded and not copied)
    assert copies


def test_bubbles_may_be_part_of_the_backward():
    shape = Parallelism(data=4, pipeline=2)
    as_waiting, inside = run("gpu_throttling", shape), run("gpu_throttling", shape, bubbles_in="backward")
    np.testing.assert_allclose(timed(inside), timed(as_waiting))
    moved = phase(as_waiting, WAIT) - phase(inside, WAIT)
    np.testing.assert_allclose(
        phase(inside, "backward_seconds") - phase(as_waiting, "backward_seconds"), moved
    )
    assert np.median(moved) > 0.05 * np.median(phase(as_waiting, "step_seconds"))


def test_a_cut_window_counts_an_exchange_within_another_phase_once():
    drawn = scenario(None, dialect="mixed", parallelism=Parallelism(data=8), workload=cluster_workload())
    cut = Telemetry(exporters=(), ending="cut")
    ended = {}
    for place in ("own phase", "backward"):
        telemetry = cut.model_copy(update={"phase_accounting": PhaseAccounting(exchange_in=place)})
        window = simulate(drawn.model_copy(update={"telemetry": telemetry})).window
        ended[place] = (
            np.isfinite(phase(window, "step_seconds")).sum(),
            np.isfinite(phase(window, "optimizer_seconds")).sum(),
        )
    assert ended["own phase"] == ended["backward"]


def test_a_timer_of_few_ranks_is_empty_for_the_others():
    names = ("data_loading_seconds", "optimizer_seconds")
    partly = Telemetry(exporters=(), partly_timed=names, timing_ranks=(0, 4))
    drawn = scenario(None, dialect="mixed", parallelism=Parallelism(data=8), workload=cluster_workload())
    window = simulate(drawn.model_copy(update={"telemetry": partly})).window
    for name in names:
        assert set(np.flatnonzero(np.isfinite(phase(window, name)).all(axis=1))) == {0, 4}
        assert np.isnan(phase(window, name)[[1, 2, 3, 5, 6, 7]]).all()
    assert np.isfinite(phase(window, "forward_seconds")).all()


@pytest.mark.parametrize("place", ["backward", "layers"])
def test_a_stop_in_the_collective_leaves_every_backward_open(place):
    drawn = scenario("hang", dialect="mixed", parallelism=Parallelism(data=8), workload=cluster_workload())
    hang = drawn.faults[0].model_copy(update={"variant": "collective"})
    telemetry = Telemetry(exporters=tuple(EXPORTERS), phase_accounting=PhaseAccounting(exchange_in=place))
    window = simulate(drawn.model_copy(update={"faults": (hang,), "telemetry": telemetry})).window
    assert np.isfinite(phase(window, "forward_seconds")[:, -1]).all()
    assert np.isnan(phase(window, "backward_seconds")[:, -1]).all()


@for_each("cause", ["process_crash", "hang"])
@for_each(
    ("place", "ended"), [("own phase", (True, True)), ("backward", (True, False)), ("layers", (False, False))]
)
def test_no_rank_ends_a_phase_with_the_exchange_without_the_stopped_rank(cause, place, ended):
    """Rank 2 stops in its forward."""
    window = run(cause, Parallelism(data=8), exchange_in=place)
    others = np.delete(np.arange(8), 2)
    for name, known in zip(("forward_seconds", "backward_seconds"), ended, strict=True):
        assert (np.isfinite(phase(window, name)[others, -1]) == known).all()


@pytest.mark.parametrize(
    ("place", "column"),
    [("forward", "forward_seconds"), ("optimizer", "optimizer_seconds"), ("nowhere", None)],
)
def test_a_host_that_does_not_wait_times_launches_and_waits_in_one_place(place, column):
    shape = Parallelism(data=8)
    apart = run("gpu_throttling", shape)
    window = run("gpu_throttling", shape, waits_for_device=place, launch_share=0.2)
    assert WAIT not in window.steps.column_names
    assert window.metrics.equals(apart.metrics)
    phases = ("forward_seconds", "backward_seconds", "optimizer_seconds")
    for name in set(phases) - {column}:
        assert np.median(phase(window, name)) < 0.3 * np.median(phase(apart, name))
    untimed = phase(window, "step_seconds") - timed(window)
    waited = untimed if column is None else phase(window, column)
    assert np.median(waited) > 0.5 * np.median(phase(window, "step_seconds"))
    # The slow GPU holds up the others' hosts as much as its own.
    assert np.ptp(waited[:, 25:45].mean(axis=1)) < 0.1 * waited[:, 25:45].mean()


def test_hosts_that_wait_for_the_loss_begin_their_next_step_before_the_device_is_done():
    shape = Parallelism(data=8)
    apart, early = run(None, shape), run(None, shape, waits_for_device="forward")
    on_time, found = PhaseArrays.from_window(apart), PhaseArrays.from_window(early)
    ahead = on_time.start_time - found.start_time
    np.testing.assert_allclose(ahead[:, 0], 0.0, atol=1e-6)
    assert (ahead[:, 1:] > 0.1).all()
    np.testing.assert_allclose(
        np.diff(found.start_time, axis=1), found.seconds["step_seconds"][:, :-1], atol=1e-5
    )
    assert timed(early).max() <= phase(early, "step_seconds").max() + 1e-9


@pytest.mark.parametrize("cause", ["process_crash", "hang"])
def test_a_stop_may_leave_no_rows_of_its_step(cause):
    shape = Parallelism(data=8)
    with_rows, without = run(cause, shape), run(cause, shape, begun=False)
    last = int(np.max(without.steps.column("step")))
    assert last == int(np.max(with_rows.steps.column("step"))) - 1
    assert np.isfinite(phase(without, "step_seconds")).all()
    assert without.job.end == with_rows.job.end


@pytest.mark.parametrize(
    ("place", "column"), [("forward", "forward_seconds"), ("checkpoint", "checkpoint_seconds")]
)
def test_regular_slow_steps_fall_where_the_job_does_them(place, column):
    benign = Benign(slow_step_every=10, slow_step_factor=3.0, slow_step_phase=place, warmup_steps=0)
    window = simulate(scenario(benign=benign)).window
    long = phase(window, column)[:, 5::10].mean()
    assert long > np.delete(phase(window, column), np.s_[5::10], axis=1).mean() + 1.5 * 0.08


def test_slow_steps_between_steps_are_in_no_phase():
    benign = Benign(slow_step_every=10, slow_step_factor=3.0, slow_step_phase="between", warmup_steps=0)
    window = simulate(scenario(benign=benign)).window
    untimed = phase(window, "step_seconds") - timed(window)
    assert untimed[:, 5::10].min() > 0.1 > np.delete(untimed, np.s_[5::10], axis=1).max()


def test_rank_0_may_write_the_checkpoint_for_all():
    benign = Benign(slow_step_every=10, slow_step_factor=3.0, slow_step_alone=True, warmup_steps=0)
    written = phase(simulate(scenario(benign=benign)).window, "checkpoint_seconds")
    assert written[0, 5::10].min() > 0.1
    assert written[1:].max() == 0


def test_only_cluster_timers_mix_waiting_and_work():
    rng = np.random.default_rng(5)
    drawn = [sample_scenario(rng, cause="healthy") for _ in range(150)]
    accountings = [
        each.telemetry.phase_accounting.model_copy(update={"transfer_skew": 0.0, "skewed_by": "ring"})
        for each in drawn
    ]
    blurred = [
        each
        for each, phase_accounting in zip(drawn, accountings, strict=True)
        if phase_accounting != PhaseAccounting()
    ]
    assert blurred
    assert all(each.dialect != "cpu_testbed" for each in blurred)


@pytest.mark.parametrize("by", ["ring", "node"])
@pytest.mark.parametrize("shape", [Parallelism(data=8), Parallelism(data=4, pipeline=2)])
def test_ranks_may_count_part_of_a_transfer_as_waiting(by, shape):
    even, uneven = run(None, shape), run(None, shape, transfer_skew=0.4, skewed_by=by)
    kept = phase(uneven, TRANSFER) / phase(even, TRANSFER)
    moved = phase(uneven, WAIT) - phase(even, WAIT)
    assert kept.min() < 0.8
    assert np.ptp(kept, axis=1).max() < 1e-9  # It is lasting.
    assert np.allclose(phase(even, TRANSFER) * (1 - kept), moved)
    for exchange in kept[:, 0].reshape(shape.pipeline, -1):
        assert exchange.max() == pytest.approx(1)  # Somebody was last.


def test_one_rank_of_each_node_gets_no_data_from_a_neighbour():
    even, uneven = (
        phase(run(None, TENSOR, **skew), TRANSFER)
        for skew in ({}, {"transfer_skew": 0.4, "skewed_by": "node"})
    )
    assert np.array_equal(even, uneven)


def test_a_slow_rank_is_slow_with_any_timers():
    """The true slowdown does not depend on the timers."""
    drawn = scenario("gpu_throttling", dialect="mixed", parallelism=TENSOR, workload=cluster_workload())
    telemetry = drawn.telemetry.model_copy(
        update={"phase_accounting": PhaseAccounting(tensor_waits_inside=True)}
    )
    inside = drawn.model_copy(update={"telemetry": telemetry})
    assert simulate(inside).label == simulate(drawn).label
