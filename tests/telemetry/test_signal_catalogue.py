"""Names of exporters, old and new, and what they mean."""

from __future__ import annotations

import pytest

from rca.window.catalogue import KNOWN, channels, resolve, to_markdown, unit_of_channel
from tests.for_each import for_each


@for_each(
    ("name", "channel"),
    [
        ("DCGM_FI_DEV_SM_CLOCK", "sm_clock_mhz"),
        ("dcgm_fi_dev_sm_clock", "sm_clock_mhz"),
        ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "throttled"),
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "throttled"),
        ("node_netstat_Tcp_RetransSegs", "tcp_retrans"),
        ("node_infiniband_port_transmit_wait_total", "ib_wait"),
        ("np_cnp_sent", "roce_congestion"),
        ("node_infiniband_np_cnp_sent_total", "roce_congestion"),
        ("rdma_np_cnp_sent", "roce_congestion"),
        ("rdma_out_of_sequence_total", "roce_errors"),
        ("node_disk_io_time_ms", "disk_io_time"),
        ("container_cpu_cfs_throttled_seconds", "cpu_throttled"),
        ("namedprocess_namegroup_cpu_seconds_total", "process_cpu"),
    ],
)
def test_names_lead_to_channels(name: str, channel: str) -> None:
    signal = resolve(name)
    assert signal is not None
    assert signal.channel == channel


def test_aliases_are_the_same_signal() -> None:
    assert resolve("node_cpu") is resolve("node_cpu_seconds_total")
    assert resolve("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS") is resolve("DCGM_FI_DEV_CLOCKS_EVENT_REASONS")


@pytest.mark.parametrize("name", ["", "total", "node_cpu_seconds_total_total_x", "my_app_requests_total"])
def test_unknown_names_stay_unknown(name: str) -> None:
    assert resolve(name) is None


def test_known_but_unused_names_feed_nothing() -> None:
    signal = resolve("node_memory_MemTotal_bytes")
    assert signal is not None
    assert signal.all_channels() == ()


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("3/steal", ("node_cpu_steal",)),
        ("steal", ("node_cpu_steal",)),
        ("3/guest", ()),
        (None, ()),
    ],
)
def test_cpu_time_is_split_by_mode(device: str | None, expected: tuple[str, ...]) -> None:
    signal = resolve("node_cpu_seconds_total")
    assert signal is not None
    assert signal.channels(device) == expected


@for_each(
    ("device", "expected"),
    [
        ("loader/user", ("process_cpu", "loader_cpu")),
        ("loader-2/user", ("process_cpu", "loader_cpu")),
        ("host/system", ("process_cpu", "host_cpu")),
        ("python3/user", ("process_cpu",)),
        (None, ("process_cpu",)),
    ],
)
def test_a_loaders_share_is_separate(device: str | None, expected: tuple[str, ...]) -> None:
    signal = resolve("process_cpu_seconds_total")
    assert signal is not None
    assert signal.channels(device) == expected


def test_forced_switches_are_separate_from_voluntary_ones() -> None:
    signal = resolve("process_context_switches_total")
    assert signal is not None
    assert signal.channels("host/nonvoluntary") == ("ctx_involuntary",)
    assert signal.channels("loader/voluntary") == ("ctx_voluntary",)


def test_loopback_is_no_network() -> None:
    signal = resolve("node_network_receive_drop_total")
    assert signal is not None
    assert signal.channels("lo") == ()
    assert signal.channels("eth0") == ("net_drops",)


@for_each("channel", [channel for channel, signals in channels().items() if len(signals) > 1])
def test_signals_of_one_channel_agree(channel: str) -> None:
    signals = channels()[channel]
    assert len({(one.kind, one.unit, one.combine, one.worse) for one in signals}) == 1


def test_units_of_counters_are_per_second() -> None:
    assert unit_of_channel("psi_cpu") == "s/s"
    assert unit_of_channel("loader_cpu") == "s/s"
    assert unit_of_channel("gpu_temp") == "°C"
    assert unit_of_channel("throttled") == "s/s"


def test_the_table_lists_every_name_once() -> None:
    table = to_markdown()
    for signal in KNOWN:
        assert f"`{signal.name}`" in table
    assert all(f"| `{channel}` |" in table for channel in channels())


@for_each(
    ("name", "device", "channels"),
    [
        ("amd_gpu_clock", "0/GPU_CLOCK_TYPE_SYSTEM/3", ("sm_clock_mhz",)),
        ("gpu_clock", "0/GPU_CLOCK_TYPE_MEMORY/8", ("mem_clock_mhz",)),
        ("amd_gpu_clock", "0/GPU_CLOCK_TYPE_VIDEO/2", ()),
        ("amd_gpu_gfx_activity", "0", ("gpu_util",)),
        ("amd_gpu_ecc_uncorrect_total", "0", ("ecc_dbe",)),
        ("hw_gpu_utilization_ratio", "0/general", ("gpu_util",)),
        ("hw_gpu_utilization", "0/decoder", ()),
        ("gpu_dcgm_clock_throttle_duration_time_seconds_total", "0/power", ("power_violation",)),
        ("gpu_dcgm_memory_bytes_used", "0/free", ("gpu_memory_free",)),
        ("DCGM_EXP_XID_ERRORS_COUNT", "0", ()),
        ("nccl_bus_bandwidth_gbs", "0", ()),
        # NVLink 5, before and since DCGM 4.5.
        ("DCGM_FI_DEV_NVLINK_COUNT_RX_ERRORS", "0", ("nvlink_errors",)),
        ("DCGM_FI_DEV_NVLINK_RX_ERROR_TOTAL", "0", ("nvlink_errors",)),
        ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_TOTAL", "0", ("nvlink_errors",)),
        ("DCGM_FI_PROF_NVLINK_L17_TX_BYTES", "0", ("nvlink_bytes",)),
        ("DCGM_FI_DEV_NVLINK_COUNT_SYMBOL_BER_FLOAT", "0", ()),
    ],
)
def test_other_exporters_of_gpus_are_known(name: str, device: str, channels: tuple[str, ...]) -> None:
    signal = resolve(name)
    assert signal is not None
    assert signal.channels(device) == channels
