from __future__ import annotations

import socket
import struct
import sys

import pytest

from rca.testbed.sampling import netlink

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="netlink is Linux")


def attribute(kind: int, content: bytes) -> bytes:
    padding = b"\0" * (-len(content) % 4)
    return struct.pack("=HH", 4 + len(content), kind) + content + padding


def test_attributes_are_aligned_and_nesting_flags_are_ignored():
    data = attribute(1, b"abc") + attribute(2 | 0x8000, b"defg")
    assert list(netlink.attributes(data)) == [(1, b"abc"), (2, b"defg")]


def test_a_cut_attribute_ends_the_list():
    assert list(netlink.attributes(b"\x02\x00\x01\x00")) == []


def test_the_kernel_reports_our_own_connection():
    with socket.create_server(("127.0.0.1", 0)) as server:
        probe = netlink.NamespaceProbe("lo")
        try:
            with socket.create_connection(server.getsockname()):
                accepted, _ = server.accept()
                with accepted:
                    found = probe.connections()
        finally:
            probe.close()
    assert any(each.peer == "127.0.0.1" for each in found)
    assert all(0 <= each.rtt_seconds < 60 for each in found)
