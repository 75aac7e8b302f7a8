"""Waiting inside a phase accuses whoever came early; members that begin apart and end together show it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from rca.telemetry.hidden_waits import without_hidden_waits
from rca.telemetry.job import Job, Parallelism, Topology
from rca.telemetry.phases import PhaseArrays

FloatArray = npt.NDArray[np.float64]
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


def test_what_was_told_is_left_as_it_was() -> None:
    told = shared_batch()
    before = told.seconds[LOADING].copy()
    without_hidden_waits(told, topology(data=2, tensor=4))
    assert np.array_equal(told.seconds[LOADING], before)


def test_an_exchange_inside_the_backward_is_told_apart_from_it() -> None:
    forward = np.full((4, 1), 0.3)
    forward[2] = 0.5
    backward = 0.4 + (0.5 - forward) + 0.1
    told = phases(beginnings(4, {}), **{FORWARD: forward, BACKWARD: backward, STEP: np.array(1.0)})
    cleared = without_hidden_waits(told, topology(data=4))
    assert np.allclose(cleared.seconds[BACKWARD], 0.5)
    assert np.allclose(cleared.seconds[WAIT], 0.5 - forward)


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
    told = phases(
        beginnings(8, {}),
        **{FORWARD: np.array(0.2), BACKWARD: np.array(0.3), WAIT: np.array(0.05), TRANSFER: np.array(0.1)},
        **{OPTIMIZER: np.array(0.05), STEP: np.array(0.95)},
    )
    cleared = without_hidden_waits(told, topology(data=4, pipeline=2))
    assert np.allclose(cleared.seconds[WAIT], 0.3)
    assert without_hidden_waits(told, topology(data=8)) is told


def test_an_unfinished_step_stays_unfinished() -> None:
    told = shared_batch()
    for values in told.seconds.values():
        values[:, -1] = np.nan
    cleared = without_hidden_waits(told, topology(data=2, tensor=4))
    assert np.isnan(cleared.seconds[WAIT][:, -1]).all()
    assert np.allclose(cleared.seconds[LOADING][:, :-1], 0.01)
