"""Final signals after the last row: machines work, are idle, or channels do not decide."""

from __future__ import annotations

import numpy as np
import pytest

from rca.features.post_stop_signals import FinalSignals
from tests.for_each import for_each

BUSY = {
    "gpu_power": 350.0,
    "sm_active": 0.7,
    "gpu_memory_used": 6e4,
    "net_tx": 4e9,
    "nvlink_bytes": 1e10,
    "process_cpu": 1.1,
}


def final_signals(
    *, only: tuple[str, ...] = tuple(BUSY), networked: bool = True, **kept: float
) -> FinalSignals:
    """Final signals of eight ranks, with these ratios to before; other channels are unchanged."""
    before = {name: np.full(8, BUSY[name]) for name in only}
    last = {name: values * kept.get(name, 1.0) for name, values in before.items()}
    return FinalSignals.from_channels(before, last, networked=networked)


@pytest.mark.parametrize("only", [(name,) for name in ("gpu_power", "sm_active", "net_tx", "nvlink_bytes")])
def test_one_unchanged_channel_shows_work(only: tuple[str, ...]) -> None:
    assert final_signals(only=only) == FinalSignals(working=True)


@pytest.mark.parametrize(
    "only", [(), ("gpu_memory_used",), ("process_cpu",), ("gpu_memory_used", "process_cpu")]
)
def test_memory_and_host_cpu_do_not_show_work(only: tuple[str, ...]) -> None:
    assert final_signals(only=only) == FinalSignals()


@for_each(
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
def test_each_channel_that_fell_shows_an_idle_job(kept: dict[str, float]) -> None:
    assert final_signals(**kept) == FinalSignals(idle=True)


def test_one_idle_link_of_two_is_not_idle() -> None:
    assert final_signals(net_tx=0.0) == FinalSignals(working=True)


def test_power_of_a_device_without_load_does_not_decide() -> None:
    """At 60 W a waiting collective draws as much power as work."""
    small = {"gpu_power": np.full(8, 60.0)}
    assert FinalSignals.from_channels(small, small, networked=True) == FinalSignals()


def test_slightly_lower_power_does_not_decide() -> None:
    assert final_signals(only=("gpu_power",), gpu_power=0.82) == FinalSignals()


def test_network_traffic_of_a_single_node_does_not_decide() -> None:
    assert final_signals(only=("net_tx",), networked=False) == FinalSignals()


def test_one_rank_that_released_its_memory_shows_an_idle_job() -> None:
    before = {"gpu_memory_used": np.full(8, 6e4), "gpu_power": np.full(8, 350.0)}
    last = {name: values.copy() for name, values in before.items()}
    last["gpu_memory_used"][3] = 0.0
    assert FinalSignals.from_channels(before, last, networked=True) == FinalSignals(idle=True)


def test_a_stopped_process_shows_an_idle_job() -> None:
    before = {"gpu_power": np.full(8, 350.0)}
    last = before | {"process_stopped": np.eye(8)[2]}
    assert FinalSignals.from_channels(before, last, networked=True) == FinalSignals(idle=True)


def test_cpu_ratio_uses_the_first_channel_known_before() -> None:
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
    found = FinalSignals.from_channels(
        before, last, networked=True, rank_channels={"process_cpu", "container_cpu"}
    )
    np.testing.assert_allclose(found.cpu_ratio, [0.5, 0.0, unknown, unknown, 0.25])


def test_cpu_ratio_ignores_channels_of_nodes() -> None:
    busy = {"container_cpu": np.ones(4)}
    assert FinalSignals.from_channels(busy, busy, networked=True, rank_channels=frozenset()).cpu_ratio is None
    assert (
        FinalSignals.from_channels(busy, busy, networked=True, rank_channels={"container_cpu"}).cpu_ratio
        is not None
    )
