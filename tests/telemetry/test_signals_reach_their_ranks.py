"""Which ranks a sample belongs to, and how several devices become one value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from telemetry_windows import START, job, metrics, window

from rca.sources.labels import read_collection
from rca.window.signals.signal_arrays import SignalArrays

EDGES = [START, START + 2]
TWO_NODES = job(
    ranks=[{"rank": 0, "node": "a", "gpu": 0}, {"rank": 1, "node": "b", "gpu": 3}],
)


def signals(*samples: tuple[object, ...], job_fields: dict[str, object] = TWO_NODES) -> SignalArrays:
    """Every sample twice, a second before and after, so that gauges are known throughout."""
    doubled = [(time, name, value, *rest) for name, value, *rest in samples for time in (0, 2)]
    return SignalArrays.from_window(window(job=job_fields, metrics=metrics(*doubled)), EDGES)


def counted(*rates: tuple[object, ...]) -> SignalArrays:
    """Counters that grow by so much per second."""
    doubled = [(time, name, 100.0 + rate * time, *rest) for name, rate, *rest in rates for time in (0, 2)]
    return SignalArrays.from_window(window(job=TWO_NODES, metrics=metrics(*doubled)), EDGES)


def test_a_ranks_sample_is_the_ranks() -> None:
    found = signals(("node_load1", 1.0, "a", 0))
    assert found.values["load1"][:, 0] == pytest.approx([1, np.nan], nan_ok=True)
    assert found.level["load1"] == "rank"


def test_a_nodes_sample_is_all_its_ranks() -> None:
    same = job(ranks=[{"rank": 0, "node": "a"}, {"rank": 1, "node": "a"}])
    found = signals(("node_load1", 1.0, "a"), job_fields=same)
    assert found.values["load1"][:, 0].tolist() == [1, 1]
    assert found.level["load1"] == "node"


def test_nodes_of_one_rank_each_keep_their_ranks_in_whatever_order() -> None:
    crossed = job(ranks=[{"rank": 1, "node": "a"}, {"rank": 0, "node": "b"}])
    found = signals(("node_load1", 1.0, "a"), ("node_load1", 2.0, "b"), job_fields=crossed)
    assert found.values["load1"][:, 0].tolist() == [2, 1]


def test_a_sample_without_labels_belongs_to_all_ranks() -> None:
    found = signals(("node_load1", 1.0))
    assert found.values["load1"][:, 0].tolist() == [1, 1]
    assert found.level["load1"] == "global"


@pytest.mark.parametrize("device", ["3", "gpu3", "nvidia3", "3/extra"])
def test_a_gpu_is_the_rank_on_it(device: str) -> None:
    found = signals(("DCGM_FI_DEV_SM_CLOCK", 1400.0, "b", None, device))
    assert found.values["sm_clock_mhz"][:, 0] == pytest.approx([np.nan, 1400], nan_ok=True)
    assert found.level["sm_clock_mhz"] == "rank"


def test_a_gpu_without_a_rank_speaks_for_its_node() -> None:
    found = signals(("DCGM_FI_DEV_SM_CLOCK", 1400.0, "b", None, "GPU-7f3a"))
    assert found.values["sm_clock_mhz"][:, 0] == pytest.approx([np.nan, 1400], nan_ok=True)
    assert found.level["sm_clock_mhz"] == "node"


def test_ports_and_disks_add_up() -> None:
    found = counted(
        ("node_network_receive_drop_total", 3.0, "a", None, "eth0"),
        ("node_network_transmit_drop_total", 4.0, "a", None, "eth1"),
        ("node_network_receive_drop_total", 100.0, "a", None, "lo"),
        ("node_network_receive_drop_total", 1.0, "b", None, "eth0"),
    )
    assert found.values["net_drops"][:, 0] == pytest.approx([7, 1])


def test_the_worst_queue_counts() -> None:
    found = signals(
        ("node_tcp_send_queue_bytes", 10.0, "a", None, "1"),
        ("node_tcp_send_queue_bytes", 9e3, "a", None, "2"),
    )
    assert found.values["tcp_send_queue"][0, 0] == pytest.approx(9e3)


def test_round_trips_average_over_peers() -> None:
    """A bad port slows all its connections, and one of each of its neighbours'."""
    found = signals(
        ("node_tcp_rtt_seconds", 0.001, "a", None, "1"), ("node_tcp_rtt_seconds", 0.2, "a", None, "2")
    )
    assert found.values["tcp_rtt"][0, 0] == pytest.approx(0.1005)


def test_cpu_time_is_a_share_of_one_cpu() -> None:
    found = counted(
        ("node_cpu_seconds_total", 0.8, "a", None, "0/user"),
        ("node_cpu_seconds_total", 0.2, "a", None, "1/user"),
        ("node_cpu_seconds_total", 0.1, "a", None, "1/steal"),
    )
    assert found.values["node_cpu_user"][0, 0] == pytest.approx(0.5)
    assert found.values["node_cpu_steal"][0, 0] == pytest.approx(0.1)


@pytest.mark.parametrize("cores", [1, 96], ids=["mean over cores", "sum over cores"])
def test_cpu_time_by_mode_is_a_share_of_the_node_however_it_was_added_up(cores: int) -> None:
    shares = {"user": 0.5, "steal": 0.1, "idle": 0.4}
    found = counted(
        *(("node_cpu_seconds_total", cores * share, "a", None, mode) for mode, share in shares.items())
    )
    for mode, share in shares.items():
        assert found.values[f"node_cpu_{mode}"][0, 0] == pytest.approx(share)


def test_cpu_time_without_idle_time_is_unchanged() -> None:
    """Nobody knows then how many cores there are."""
    found = counted(
        ("node_cpu_seconds_total", 48.0, "a", None, "user"),
        ("node_cpu_seconds_total", 4.0, "a", None, "system"),
    )
    assert found.values["node_cpu_user"][0, 0] == pytest.approx(48.0)


def test_throttling_counts_by_its_share_of_time() -> None:
    """One sample of 27 with a bit is one sample; a harmless bit (0x1, an idle GPU) is none."""
    name = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"
    rows = [(second, name, 4.0 if second == 13 else 1.0, "a", 0, "0") for second in range(27)]
    held = window(job=TWO_NODES | {"end": START + 26}, metrics=metrics(*rows))
    found = SignalArrays.from_window(held, [START, START + 26])
    assert 0.02 < found.values["throttled"][0, 0] < 0.06


def test_a_rank_is_throttled_if_one_of_its_gpus_is() -> None:
    found = signals(
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 1.0, "a", 0, "0"),
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 64.0, "a", 0, "1"),
    )
    assert found.values["throttled"][0, 0] == 1


def test_a_loader_is_separate_from_its_host_and_summed_with_it() -> None:
    found = counted(
        ("process_schedstat_waiting_seconds_total", 0.1, "a", 0, "host"),
        ("process_schedstat_waiting_seconds_total", 0.5, "a", 0, "loader"),
    )
    assert found.values["runqueue_wait"][0, 0] == pytest.approx(0.6)
    assert found.values["loader_runqueue_wait"][0, 0] == pytest.approx(0.5)
    assert found.values["host_runqueue_wait"][0, 0] == pytest.approx(0.1)


def test_a_plain_process_has_no_split() -> None:
    found = counted(("process_cpu_seconds_total", 0.4, "a", 0))
    assert found.values["process_cpu"][0, 0] == pytest.approx(0.4)
    assert "loader_cpu" not in found.values


def test_one_level_speaks_and_the_other_is_unused() -> None:
    found = signals(("node_load1", 1.0, "a"), ("node_load1", 2.0, "b"), ("node_load1", 9.0))
    assert found.level["load1"] == "node"
    assert found.values["load1"][:, 0].tolist() == [1, 2]
    assert found.samples_used == 4


def test_a_level_with_a_missing_exporter_is_kept_while_half_report() -> None:
    found = signals(("node_load1", 1.0, "a", 0), ("node_load1", 9.0))
    assert found.level["load1"] == "rank"


def test_a_level_that_few_ranks_report_gives_way() -> None:
    three = job(world_size=3, ranks=[{"rank": rank, "node": "a"} for rank in range(3)])
    found = signals(("node_load1", 1.0, "a", 0), ("node_load1", 5.0, "a"), job_fields=three)
    assert found.level["load1"] == "node"
    assert found.values["load1"][:, 0].tolist() == [5, 5, 5]


def test_metrics_of_a_node_without_ranks_are_not_used() -> None:
    found = signals(("node_load1", 1.0, "elsewhere.cluster.local"))
    assert found.values == {}
    assert found.samples_used == 0


def test_absent_channels_are_absent() -> None:
    assert signals(("my_metric", 1.0)).values == {}
    assert signals(("my_metric", 1.0)).unknown_names == ("my_metric",)


def test_every_rank_has_a_row_in_every_bin() -> None:
    found = SignalArrays.from_window(
        window(job=TWO_NODES, metrics=metrics((0, "node_load1", 1.0, "a"), (1, "node_load1", 3.0, "a"))),
        [START, START + 1, START + 5, START + 9],
    )
    assert found.values["load1"] == pytest.approx(
        np.array([[2, 3, np.nan], [np.nan, np.nan, np.nan]]), nan_ok=True
    )


def test_absurd_values_neither_warn_nor_spread() -> None:
    found = counted(("node_load1", 1.0, "a"), ("node_network_receive_drop_total", 1.0, "a", None, "eth0"))
    huge = signals(("node_load1", 1.7e308, "a"), ("node_qdisc_backlog", 3.0, "a"))
    assert huge.values["qdisc_backlog"][0, 0] == pytest.approx(3)
    assert found.values["net_drops"][0, 0] == pytest.approx(1)


CAPTURED = Path(__file__).resolve().parents[2] / "data" / "windows"


def test_every_metric_of_the_captured_windows_is_known() -> None:
    for entry in read_collection(CAPTURED):
        captured = entry.read_window()
        found = SignalArrays.from_window(captured, [captured.job.start, captured.job.end])
        assert found.unknown_names == ()
        assert {"runqueue_wait", "loader_cpu", "tcp_rtt", "psi_cpu", "gc_pause"} <= set(found.values)
