"""Counters of a node's network: interface, TCP, queueing discipline, and values per peer node.

Queue and TCP state come from the kernel over netlink, which is cheaper than `tc` and `ss`.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rca.lab.testbed.names import node_name
from rca.lab.testbed.sampling import parsers
from rca.lab.testbed.sampling.series import Series

_REQUEST_DUMP = 0x1 | 0x300
_DONE, _ERROR = 3, 2
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_RECEIVE_BYTES = 1 << 18

_NETLINK_ROUTE, _RTM_GETQDISC = 0, 38
_TC_MESSAGE = struct.Struct("=BxxxiIII")
_TCA_STATS2, _TCA_STATS_QUEUE = 7, 3
_QUEUE = struct.Struct("=5I")
_ROOT_PARENT = 0xFFFFFFFF

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_DIAG_REQUEST = struct.Struct("=BBBBI48x")
_DIAG_MESSAGE_BYTES = 72
_INET_DIAG_INFO = 2
_TCP_INFO_BYTES = 104
_ESTABLISHED = 1 << 1
_NESTED = 0x8000
#: The round trip of a connection that has sent nothing for longer is too old.
ACTIVE_SECONDS = 1.0
_TCP = ("RetransSegs", "OutSegs", "InSegs", "InErrs")
_TCP_EXTENDED = ("TCPTimeouts", "TCPLostRetransmit", "TCPFastRetrans", "TCPSlowStartRetrans", "TCPLossProbes")


@dataclass(frozen=True)
class QueueState:
    """Root queueing discipline of an interface."""

    length: int
    backlog_bytes: int
    drops: int
    requeues: int
    overlimits: int


@dataclass(frozen=True)
class Connection:
    """An established TCP connection.

    Attributes
    ----------
    peer : str
        IPv4 address.
    rtt_seconds : float
        Smoothed round-trip time.
    send_queue_bytes : int
        Bytes that are not yet acknowledged.
    idle_seconds : float
        Since it last sent data: the round trip of an idle connection is old.
    """

    peer: str
    rtt_seconds: float
    send_queue_bytes: int
    retransmits: int
    idle_seconds: float


def open_socket(protocol: int) -> socket.socket:
    """Open a netlink socket in the caller's namespace; it stays there."""
    held = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    held.settimeout(1.0)
    return held


class NamespaceProbe:
    """Netlink sockets of one namespace; create it inside that namespace."""

    def __init__(self, interface: str) -> None:
        self._interface_index = socket.if_nametoindex(interface)
        self._route = open_socket(_NETLINK_ROUTE)
        self._diag = open_socket(_NETLINK_SOCK_DIAG)

    def queue(self) -> QueueState | None:
        """State of the interface's root queueing discipline."""
        request = _TC_MESSAGE.pack(socket.AF_UNSPEC, self._interface_index, 0, 0, 0)
        for message in _dump(self._route, _RTM_GETQDISC, request):
            _, index, _, parent, _ = _TC_MESSAGE.unpack_from(message)
            if index == self._interface_index and parent == _ROOT_PARENT:
                return _queue_of(message[_TC_MESSAGE.size :])
        return None

    def connections(self) -> list[Connection]:
        """Established TCP connections."""
        request = _DIAG_REQUEST.pack(
            socket.AF_INET, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, _ESTABLISHED
        )
        messages = _dump(self._diag, _SOCK_DIAG_BY_FAMILY, request)
        return [_connection(message) for message in messages]

    def close(self) -> None:
        self._route.close()
        self._diag.close()


def _dump(held: socket.socket, kind: int, request: bytes) -> Iterator[bytes]:
    """Send a dump request and yield the messages' bodies."""
    held.send(_HEADER.pack(_HEADER.size + len(request), kind, _REQUEST_DUMP, 0, 0) + request)
    while True:
        data = held.recv(_RECEIVE_BYTES)
        place = 0
        while place + _HEADER.size <= len(data):
            length, message_kind, *_ = _HEADER.unpack_from(data, place)
            if message_kind in (_DONE, _ERROR):
                return
            yield data[place + _HEADER.size : place + length]
            place += _aligned(length)


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and content of each attribute in a netlink message's tail."""
    place = 0
    while place + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, place)
        if length < _ATTRIBUTE.size:
            return
        yield kind & ~_NESTED, data[place + _ATTRIBUTE.size : place + length]
        place += _aligned(length)


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def _queue_of(tail: bytes) -> QueueState | None:
    stats = dict(attributes(tail)).get(_TCA_STATS2)
    queue = None if stats is None else dict(attributes(stats)).get(_TCA_STATS_QUEUE)
    return None if queue is None else QueueState(*_QUEUE.unpack_from(queue))


def _connection(message: bytes) -> Connection:
    peer = socket.inet_ntoa(message[24:28])
    send_queue = struct.unpack_from("=I", message, 60)[0]
    information = dict(attributes(message[_DIAG_MESSAGE_BYTES:])).get(_INET_DIAG_INFO, b"")
    rtt, retransmits, idle = 0.0, 0, 0.0
    if len(information) >= _TCP_INFO_BYTES:
        idle = struct.unpack_from("=I", information, 44)[0] * 1e-3
        rtt = struct.unpack_from("=I", information, 68)[0] * 1e-6
        retransmits = struct.unpack_from("=I", information, 100)[0]
    return Connection(peer, rtt, send_queue, retransmits, idle)


def sample_namespace(
    series: Series,
    time: float,
    node: int,
    folder: Path,
    probe: NamespaceProbe,
    interface: str,
    peers: dict[str, str],
) -> None:
    """Append the counters of a node's network.

    Parameters
    ----------
    folder : Path
        ``/proc/PID/net`` of a process inside the namespace.
    peers : dict of str to str
        Device name of each address: the peer's node index.
    """
    name = node_name(node)
    values = {
        f"node_network_{key}_total": float(count)
        for key, count in parsers.interface_counters((folder / "dev").read_text(), interface).items()
    }
    series.add(time, values, node=name, device=interface)
    counters = parsers.paired_counters((folder / "snmp").read_text())
    counters |= parsers.paired_counters((folder / "netstat").read_text())
    wanted = [f"Tcp_{key}" for key in _TCP] + [f"TcpExt_{key}" for key in _TCP_EXTENDED]
    series.add(time, {f"node_netstat_{key}": counters[key] for key in wanted if key in counters}, node=name)
    queue = probe.queue()
    if queue is not None:
        series.add(
            time,
            {
                "node_qdisc_backlog": queue.backlog_bytes,
                "node_qdisc_current_queue_length": queue.length,
                "node_qdisc_drops_total": queue.drops,
                "node_qdisc_requeues_total": queue.requeues,
                "node_qdisc_overlimits_total": queue.overlimits,
            },
            node=name,
            device=interface,
        )
    for device, held in by_peer(probe.connections(), peers).items():
        series.add(time, held, node=name, device=device)


def by_peer(connections: list[Connection], peers: dict[str, str]) -> dict[str, dict[str, float]]:
    """Worst current round trip, summed queue and retransmissions towards each other node."""
    held: dict[str, dict[str, float]] = {}
    for connection in connections:
        device = peers.get(connection.peer)
        if device is None:
            continue
        values = held.setdefault(
            device,
            {"node_tcp_send_queue_bytes": 0.0, "node_tcp_connection_retransmits_total": 0.0},
        )
        if connection.idle_seconds < ACTIVE_SECONDS:
            worst = max(values.get("node_tcp_rtt_seconds", 0.0), connection.rtt_seconds)
            values["node_tcp_rtt_seconds"] = worst
        values["node_tcp_send_queue_bytes"] += connection.send_queue_bytes
        values["node_tcp_connection_retransmits_total"] += connection.retransmits
    return held
