"""After the last row machines work on, or stand still, or nobody can tell."""

from __future__ import annotations

import numpy as np
import pytest

from rca.features.post_stop_signals import FinalSignals

BUSY = {
    "gpu_power": 350.0,
    "sm_active": 0.7,
    "gpu_memory_used": 6e4,
    "net_tx": 4e9,
    "nvlink_bytes": 1e10,
    "process_cpu": 1.1,
}


def lately(*, only: tuple[str, ...] = tuple(BUSY), networked: bool = True, **kept: float) -> FinalSignals:
    """Eight ranks whose channels keep these shares of before, and all others all of it."""
    before = {name: np.full(8, BUSY[name]) for name in only}
    last = {name: values * kept.get(name, 1.0) for name, values in before.items()}
    return FinalSignals.from_channels(before, last, networked=networked)


@pytest.mark.parametrize("only", [(name,) for name in ("gpu_power", "sm_active", "net_tx", "nvlink_bytes")])
def test_one_channel_that_tells_is_enough_to_work_on(only: tuple[str, ...]) -> None:
    assert lately(only=only) == FinalSignals(working=True)


@pytest.mark.parametrize(
    "only", [(), ("gpu_memory_used",), ("process_cpu",), ("gpu_memory_used", "process_cpu")]
)
def test_memory_and_a_spinning_host_do_not_tell(only: tuple[str, ...]) -> None:
    assert lately(only=only) == FinalSignals()


@pytest.mark.parametrize(
    "kept",
    [
        {"gpu_power": 0.5},
        {"sm_active": 0.15},
        {"gpu_memory_used": 0.0},
        {"net_tx": 0.0, "nvlink_bytes": 0.0},
        {"process_cpu": 0.1},
    ],
    ids=lambda kept: " and ".join(kept),
)
def test_whatever_fell_says_that_the_job_stands_still(kept: dict[str, float]) -> None:
    assert lately(**kept) == FinalSignals(idle=True)


def test_one_idle_link_of_two_is_no_standstill() -> None:
    assert lately(net_tx=0.0) == FinalSignals(working=True)


def test_a_device_that_never_drew_much_tells_nothing() -> None:
    """At 60 W a collective that spins draws as much as work does."""
    small = {"gpu_power": np.full(8, 60.0)}
    assert FinalSignals.from_channels(small, small, networked=True) == FinalSignals()


def test_power_a_little_lower_is_neither() -> None:
    assert lately(only=("gpu_power",), gpu_power=0.82) == FinalSignals()


def test_the_network_is_not_a_single_nodes() -> None:
    assert lately(only=("net_tx",), networked=False) == FinalSignals()


def test_one_rank_that_gave_its_memory_back_is_dead() -> None:
    before = {"gpu_memory_used": np.full(8, 6e4), "gpu_power": np.full(8, 350.0)}
    last = {name: values.copy() for name, values in before.items()}
    last["gpu_memory_used"][3] = 0.0
    assert FinalSignals.from_channels(before, last, networked=True) == FinalSignals(idle=True)


def test_a_stopped_process_stands_still() -> None:
    before = {"gpu_power": np.full(8, 350.0)}
    last = before | {"process_stopped": np.eye(8)[2]}
    assert FinalSignals.from_channels(before, last, networked=True) == FinalSignals(idle=True)


def test_cpu_time_is_told_of_every_rank_by_the_first_channel_that_knew_it() -> None:
    """Rank 2's process is gone, its container is not; rank 3 took no time; rank 4 has a container only."""
    unknown = np.nan
    before = {
        "process_cpu": np.array([1.0, 1.0, 1.0, 0.0, unknown]),
        "container_cpu": np.array([2.0, 2.0, 2.0, 2.0, 2.0]),
    }
    last = {
        "process_cpu": np.array([0.5, 0.0, unknown, 0.0, unknown]),
        "container_cpu": np.array([2.0, 2.0, 0.2, 2.0, 0.5]),
    }
    told = FinalSignals.from_channels(
        before, last, networked=True, rank_channels={"process_cpu", "container_cpu"}
    )
    np.testing.assert_allclose(told.cpu_ratio, [0.5, 0.0, unknown, unknown, 0.25])


def test_what_a_node_tells_of_all_its_ranks_is_no_ranks_own() -> None:
    busy = {"container_cpu": np.ones(4)}
    assert FinalSignals.from_channels(busy, busy, networked=True, rank_channels=frozenset()).cpu_ratio is None
    assert (
        FinalSignals.from_channels(busy, busy, networked=True, rank_channels={"container_cpu"}).cpu_ratio
        is not None
    )
