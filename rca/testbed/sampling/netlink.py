"""Queue and TCP state of a namespace straight from the kernel: cheaper than starting `tc` and `ss`."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

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
        Written, not yet acknowledged.
    idle_seconds : float
        Since it last sent data: the round trip of an idle connection is an old one.
    """

    peer: str
    rtt_seconds: float
    send_queue_bytes: int
    retransmits: int
    idle_seconds: float


def open_socket(protocol: int) -> socket.socket:
    """Open a netlink socket in the namespace the caller is in; it stays there."""
    held = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    held.settimeout(1.0)
    return held


class NamespaceProbe:
    """Both sockets of one namespace; build it inside that namespace."""

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
