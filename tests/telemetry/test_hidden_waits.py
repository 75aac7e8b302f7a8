"""Waiting inside a phase makes early ranks look slow; members that begin apart and end together show it."""

from __future__ import annotations

import numpy as np
import pytest

from rca.arrays import FloatArray
from rca.window.job import Job, Parallelism, Topology
from rca.window.times.hidden_waits import without_hidden_waits
from rca.window.times.phases import PhaseArrays

STEPS = 30
LOADING, FORWARD, BACKWARD, OPTIMIZER = (
    f"{name}_seconds" for name in ("data_loading", "forward", "backward", "optimizer")
)
WAIT, TRANSFER, UNSPLIT, STEP = (
    "communication_wait_seconds", "communication_transfer_seconds", "communication_seconds", "step_seconds",
)  # fmt: skip


def topology(**sizes: int) -> Topology:
    parallelism = Parallelism(**sizes)
    world = parallelism.world_size
    return Job(job_id="j", world_size=world, parallelism=parallelism, start=0.0, end=1e3).topology


def phases(start: FloatArray, **seconds: FloatArray) -> PhaseArrays:
    """Arrays of one window; a phase may be one number, one per rank, or complete."""
    shape = start.shape
    held = {name: np.broadcast_to(values, shape).copy() for name, values in seconds.items()}
    return PhaseArrays(np.arange(shape[1]), np.ones(shape, dtype=bool), start, held, {})


def beginnings(n_ranks: int, late: dict[int, float]) -> FloatArray:
    """Everybody begins a step each second, and some ranks later."""
    start = np.tile(np.arange(STEPS, dtype=float), (n_ranks, 1))
    for rank, seconds in late.items():
        start[rank] += seconds
    return start


def shared_batch(late: float = 0.2) -> PhaseArrays:
    """Rank 0 of the tensor group 0..3 comes late; its peers' loading lasts until it is there."""
    start = beginnings(8, {0: late})
    loading = np.full((8, 1), 0.01)
    loading[1:4] += late
    return phases(
        start,
        **{LOADING: loading, FORWARD: np.array(0.3), BACKWARD: np.array(0.4), WAIT: np.array(0.0)},
        **{TRANSFER: np.array(0.1), STEP: np.array(0.9)},
    )


def test_loading_until_the_last_of_a_tensor_group_is_waiting() -> None:
    cleared = without_hidden_waits(shared_batch(), topology(data=2, tensor=4))
    assert np.allclose(cleared.seconds[LOADING], 0.01)
    assert np.allclose(cleared.seconds[WAIT][1:4], 0.2)
    assert np.allclose(cleared.seconds[WAIT][[0, 4, 5, 6, 7]], 0.0)


def test_time_is_moved_and_not_lost() -> None:
    told = shared_batch()
    cleared = without_hidden_waits(told, topology(data=2, tensor=4))
    assert np.allclose(sum(cleared.seconds.values()), sum(told.seconds.values()))


def test_phases_without_waiting_are_unchanged() -> None:
    told = shared_batch()
    before = told.seconds[LOADING].copy()
    without_hidden_waits(told, topology(data=2, tensor=4))
    assert np.array_equal(told.seconds[LOADING], before)


def exchange_in_backward(slow: slice, clock: FloatArray | float = 0.0) -> PhaseArrays:
    """Rank 2's forward is slow for some steps, and the backward of all ranks lasts until it is done.

    Its clock is ahead of the others' by `clock`.
    """
    forward = np.full((4, STEPS), 0.3)
    forward[2, slow] = 0.5
    backward = 0.4 + (forward.max(axis=0) - forward) + 0.1
    start = beginnings(4, {})
    start[2] += clock
    return phases(start, **{FORWARD: forward, BACKWARD: backward, STEP: np.array(1.0)})


@pytest.mark.parametrize(
    "clock",
    [0.0, 3.0, -0.15, np.where(np.arange(STEPS) < 24, 0.0, -1.4)],
    ids=["one clock", "ahead", "behind", "set back at last"],
)
def test_an_exchange_inside_the_backward_is_separated_from_it(clock: FloatArray | float) -> None:
    """A rank that ends a phase with the others waited for the difference of their durations."""
    cleared = without_hidden_waits(exchange_in_backward(slice(10, 22), clock), topology(data=4))
    assert np.allclose(cleared.seconds[BACKWARD], 0.5)


@pytest.mark.parametrize("clock", [0.0, 3.0, -0.15], ids=["one clock", "ahead", "behind"])
def test_who_ends_the_phase_later_worked_on_after_the_others_were_there(clock: float) -> None:
    """In some steps rank 1 leaves the backward later than it was met in it."""
    told = exchange_in_backward(slice(10, 22), clock)
    tail = np.where(np.arange(STEPS) % 5 == 0, 0.1, 0.0)
    told.seconds[BACKWARD][1] += tail
    cleared = without_hidden_waits(told, topology(data=4))
    assert cleared.seconds[BACKWARD][1] == pytest.approx(0.5 + tail, abs=0.06)
    assert np.delete(cleared.seconds[BACKWARD], 1, axis=0) == pytest.approx(0.5, abs=0.01)


def test_no_column_is_invented_for_waiting_that_was_not_measured() -> None:
    """Without one, own work is the sum of the phases; a column of zeros would claim that no rank waited."""
    cleared = without_hidden_waits(exchange_in_backward(slice(10, 22)), topology(data=4))
    assert not {WAIT, TRANSFER, UNSPLIT} & cleared.seconds.keys()


def launches_timed(**exchange: float) -> PhaseArrays:
    """Rank 2 loads slowly for some steps; no rank waits for the device before the optimizer."""
    loading = np.full((4, STEPS), 0.05)
    loading[2, 10:22] = 0.25
    optimizer = 0.7 + loading.max(axis=0) - loading
    named = {name: np.array(seconds) for name, seconds in exchange.items()}
    return phases(
        beginnings(4, {}),
        **{LOADING: loading, FORWARD: np.array(0.05), OPTIMIZER: optimizer, STEP: np.array(1.0)},
        **named,
    )


def test_waiting_in_an_optimizer_that_waits_for_the_device_is_taken_out() -> None:
    cleared = without_hidden_waits(launches_timed(), topology(data=4))
    assert np.allclose(cleared.seconds[OPTIMIZER], 0.7)
    assert np.allclose(cleared.seconds[LOADING][2, 10:22], 0.25)


def test_where_the_exchange_is_timed_the_optimizer_is_work() -> None:
    told = launches_timed(**{TRANSFER: 0.1, WAIT: 0.0})
    assert without_hidden_waits(told, topology(data=4)) is told


@pytest.mark.parametrize("late", [0.2, 0.25])
def test_a_clock_that_is_behind_does_not_acquit_a_straggler(late: float) -> None:
    """Rank 5's clock lags by what its backward takes longer: it begins apart and ends with the others."""
    backward = np.full((8, STEPS), 0.4)
    backward[5] += late
    told = phases(
        beginnings(8, {5: -0.2}),
        **{FORWARD: np.array(0.3), BACKWARD: backward, WAIT: np.array(0.05), STEP: np.array(1.0)},
    )
    assert without_hidden_waits(told, topology(data=8)) is told


def test_wait_and_total_both_take_the_waiting() -> None:
    told = shared_batch()
    held = dict(told.seconds) | {UNSPLIT: told.seconds[WAIT] + told.seconds[TRANSFER]}
    del held[TRANSFER]
    told = PhaseArrays(told.steps, told.present, told.start_time, held, {})
    cleared = without_hidden_waits(told, topology(data=2, tensor=4))
    assert np.allclose(cleared.seconds[UNSPLIT] - cleared.seconds[WAIT], 0.1)
    assert np.allclose(cleared.seconds[WAIT][1:4], 0.2)


def test_unsplit_communication_takes_the_waiting() -> None:
    told = shared_batch()
    held = {name: values for name, values in told.seconds.items() if name not in (WAIT, TRANSFER)}
    told = PhaseArrays(
        told.steps, told.present, told.start_time, held | {UNSPLIT: told.seconds[TRANSFER]}, {}
    )
    cleared = without_hidden_waits(told, topology(data=2, tensor=4))
    assert WAIT not in cleared.seconds
    assert np.allclose(cleared.seconds[UNSPLIT][1:4], 0.3)


@pytest.mark.parametrize("late", [0.0, 0.3])
def test_who_comes_late_and_leaves_late_shows_no_barrier(late: float) -> None:
    told = phases(
        beginnings(8, {0: late}),
        **{LOADING: np.array(0.01), FORWARD: np.array(0.3), BACKWARD: np.array(0.4), STEP: np.array(0.9)},
    )
    assert without_hidden_waits(told, topology(data=2, tensor=4)) is told


def test_clocks_apart_are_no_barrier() -> None:
    skewed = {rank: 5.0 * (rank // 2) for rank in range(8)}
    told = phases(
        beginnings(8, skewed),
        **{FORWARD: np.array(0.3), BACKWARD: np.array(0.4), WAIT: np.array(0.1), STEP: np.array(0.9)},
    )
    assert without_hidden_waits(told, topology(data=2, tensor=4)) is told


def test_a_few_coincidences_are_no_barrier() -> None:
    told = shared_batch()
    start = beginnings(8, {})
    loading = np.full((8, STEPS), 0.01)
    start[0, :3] += 0.2
    loading[1:4, :3] += 0.2
    rare = PhaseArrays(told.steps, told.present, start, dict(told.seconds) | {LOADING: loading}, {})
    assert without_hidden_waits(rare, topology(data=2, tensor=4)) is rare


def test_bubbles_that_are_in_no_phase_are_waiting() -> None:
    timed = {FORWARD: np.array(0.2), BACKWARD: np.array(0.3), WAIT: np.array(0.05), TRANSFER: np.array(0.1)}
    timed |= {LOADING: np.array(0.01), OPTIMIZER: np.array(0.05), STEP: np.array(0.96)}
    told = phases(beginnings(8, {}), **timed)
    cleared = without_hidden_waits(told, topology(data=4, pipeline=2))
    assert np.allclose(cleared.seconds[WAIT], 0.3)
    assert without_hidden_waits(told, topology(data=8)) is told


@pytest.mark.parametrize("untimed", [LOADING, OPTIMIZER])
def test_a_phase_without_a_timer_is_no_bubble(untimed: str) -> None:
    timed = {FORWARD: np.array(0.2), BACKWARD: np.array(0.3), WAIT: np.array(0.05), TRANSFER: np.array(0.1)}
    timed |= {LOADING: np.array(0.01), OPTIMIZER: np.array(0.05), STEP: np.array(0.96)}
    del timed[untimed]
    told = phases(beginnings(8, {}), **timed)
    assert without_hidden_waits(told, topology(data=4, pipeline=2)) is told


def test_bubbles_that_no_column_can_take_leave_everything_as_it_was() -> None:
    timed = {FORWARD: np.array(0.2), BACKWARD: np.array(0.3), LOADING: np.array(0.01)}
    told = phases(beginnings(8, {}), **timed, **{OPTIMIZER: np.array(0.05), STEP: np.array(0.96)})
    assert without_hidden_waits(told, topology(data=4, pipeline=2)) is told


def test_an_unfinished_step_stays_unfinished() -> None:
    told = shared_batch()
    for values in told.seconds.values():
        values[:, -1] = np.nan
    cleared = without_hidden_waits(told, topology(data=2, tensor=4))
    assert np.isnan(cleared.seconds[WAIT][:, -1]).all()
    assert np.allclose(cleared.seconds[LOADING][:, :-1], 0.01)
