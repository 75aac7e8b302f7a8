from __future__ import annotations

import socket
import struct
import sys

import pytest

from rca.lab.testbed.sampling import network_signals
from rca.lab.testbed.sampling.network_signals import by_peer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="netlink is Linux")


def attribute(kind: int, content: bytes) -> bytes:
    padding = b"\0" * (-len(content) % 4)
    return struct.pack("=HH", 4 + len(content), kind) + content + padding


def test_attributes_are_aligned_and_nesting_flags_are_ignored():
    data = attribute(1, b"abc") + attribute(2 | 0x8000, b"defg")
    assert list(network_signals.attributes(data)) == [(1, b"abc"), (2, b"defg")]


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


def test_a_cut_attribute_ends_the_list():
    assert list(network_signals.attributes(b"\x02\x00\x01\x00")) == []


@pytest.mark.system
def test_the_kernel_reports_our_own_connection():
    with socket.create_server(("127.0.0.1", 0)) as server:
        probe = network_signals.NamespaceProbe("lo")
        try:
            with socket.create_connection(server.getsockname()):
                accepted, _ = server.accept()
                with accepted:
                    found = probe.connections()
        finally:
            probe.close()
    assert any(each.peer == "127.0.0.1" for each in found)
    assert all(0 <= each.rtt_seconds < 60 for each in found)
