from __future__ import annotations

import socket
import struct
import sys
from pathlib import Path

import pytest

from rca.lab.testbed.sampling import network_signals
from rca.lab.testbed.sampling.network_signals import by_peer, sample_namespace
from rca.lab.testbed.sampling.series import Series
from rca.window.catalogue import resolve

pytestmark = [pytest.mark.system, pytest.mark.skipif(sys.platform != "linux", reason="netlink is Linux")]


def test_an_idle_connection_has_no_round_trip():
    store = network_signals.Connection("10.213.0.2", 5e-3, 0, 1, idle_seconds=30.0)
    ring = network_signals.Connection("10.213.0.2", 1e-3, 4096, 2, idle_seconds=0.01)
    stranger = network_signals.Connection("192.0.2.1", 9e-3, 0, 0, idle_seconds=0.0)
    assert by_peer([store, ring, stranger], {"10.213.0.2": "0"}) == {
        "0": {
            "node_tcp_rtt_seconds": 1e-3,
            "node_tcp_send_queue_bytes": 4096,
            "node_tcp_connection_retransmits_total": 3,
        }
    }


@pytest.fixture
def loopback():
    probe = network_signals.NamespaceProbe("lo")
    yield probe
    probe.close()


@pytest.fixture
def connected():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0],
    ):
        client.sendall(b"x" * 1000)
        yield client


def test_the_kernel_reports_our_own_connection(loopback, connected):
    found = loopback.connections()
    assert any(each.peer == "127.0.0.1" for each in found)
    assert all(0 <= each.rtt_seconds < 60 for each in found)
    assert min(each.idle_seconds for each in found) < 1


def test_a_connection_that_sends_has_a_round_trip_in_seconds(loopback, connected):
    connected.sendall(b"x")
    microseconds = struct.unpack_from(
        "=I", connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 68
    )[0]
    assert microseconds * 1e-6 in [pytest.approx(each.rtt_seconds) for each in loopback.connections()]


def test_interface_counters_are_those_of_proc_net_dev(loopback):
    def of_proc() -> list[float]:
        [line] = [line for line in Path("/proc/net/dev").read_text().splitlines() if "lo:" in line]
        fields = [float(field) for field in line.partition(":")[2].split()]
        return fields[:4] + fields[8:12]

    before, values, after = of_proc(), loopback.interface(), of_proc()
    assert list(values) == [
        f"node_network_{direction}_{counter}_total"
        for direction in ("receive", "transmit")
        for counter in ("bytes", "packets", "errs", "drop")
    ]
    held = zip(before, values.values(), after, strict=True)
    assert all(first <= value <= last for first, value, last in held)


def test_every_question_gets_the_queue_of_its_own_round(loopback):
    assert [set(loopback.queue()) for _ in range(3)] == 3 * [
        {
            "node_qdisc_backlog",
            "node_qdisc_current_queue_length",
            "node_qdisc_drops_total",
            "node_qdisc_requeues_total",
            "node_qdisc_overlimits_total",
        }
    ]


def test_every_metric_name_of_a_network_is_in_the_catalogue(loopback, connected):
    series = Series()
    sample_namespace(series, 5.0, 0, Path("/proc/self/net"), loopback, "lo", {"127.0.0.1": "1"})
    names = {each.name for each in series.samples}
    assert {"node_netstat_Tcp_RetransSegs", "node_tcp_rtt_seconds"} <= names
    assert {name for name in names if resolve(name) is None} == set()
