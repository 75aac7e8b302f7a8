"""Counters of a node's network: interface, TCP, queueing discipline, and values per peer node."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rca.lab.testbed.names import node_name
from rca.lab.testbed.sampling import parsers
from rca.lab.testbed.sampling.series import Series

_ROOT_PARENT = 0xFFFFFFFF
# In the kernel's `inet_diag.h` and `tcp_states.h`.
_INFO_EXTENSION = 1 << 1
_ESTABLISHED = 1 << 1
#: The round trip of a connection that has sent nothing for longer is too old.
ACTIVE_SECONDS = 1.0
_TCP = ("RetransSegs", "OutSegs", "InSegs", "InErrs")
_TCP_EXTENDED = ("TCPTimeouts", "TCPLostRetransmit", "TCPFastRetrans", "TCPSlowStartRetrans", "TCPLossProbes")


class Connection(NamedTuple):
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


class NamespaceProbe:
    """Netlink sockets of one namespace; create it inside that namespace."""

    def __init__(self, interface: str) -> None:
        from pyroute2 import DiagSocket, IPRoute

        self._index = socket.if_nametoindex(interface)
        self._route = IPRoute()
        self._diag = DiagSocket()

    def interface(self) -> dict[str, float]:
        """Counters of the interface, with the node exporter's names."""
        [link] = self._route.get_links(self._index)
        held = link.get_attr("IFLA_STATS64")
        values: dict[str, float] = {}
        for direction, sign in (("receive", "rx"), ("transmit", "tx")):
            for name, key in (
                ("bytes", "bytes"),
                ("packets", "packets"),
                ("errs", "errors"),
                ("drop", "dropped"),
            ):
                values[f"node_network_{direction}_{name}_total"] = held[f"{sign}_{key}"]
        # As in /proc/net/dev.
        values["node_network_receive_drop_total"] += held["rx_missed_errors"]
        return values

    def queue(self) -> dict[str, float]:
        """Counters of the interface's root queueing discipline; empty if it has none."""
        for message in self._route.get_qdiscs(index=self._index):
            stats = message.get_attr("TCA_STATS2") if message["parent"] == _ROOT_PARENT else None
            held = None if stats is None else stats.get_attr("TCA_STATS_QUEUE")
            if held is not None:
                return {
                    "node_qdisc_backlog": held["backlog"],
                    "node_qdisc_current_queue_length": held["qlen"],
                    "node_qdisc_drops_total": held["drops"],
                    "node_qdisc_requeues_total": held["requeues"],
                    "node_qdisc_overlimits_total": held["overlimits"],
                }
        return {}

    def connections(self) -> list[Connection]:
        """Established TCP connections; none if the kernel lacks ``tcp_diag``."""
        from pyroute2 import NetlinkError

        try:
            messages = self._diag.get_sock_stats(
                family=socket.AF_INET, states=_ESTABLISHED, extensions=_INFO_EXTENSION
            )
        except NetlinkError:
            return []
        return [_connection(message, message.get_attr("INET_DIAG_INFO") or {}) for message in messages]

    def close(self) -> None:
        self._route.close()
        self._diag.close()


def _connection(message: Mapping[str, Any], info: Mapping[str, int]) -> Connection:
    return Connection(
        peer=message["idiag_dst"],
        rtt_seconds=info.get("tcpi_rtt", 0) * 1e-6,
        send_queue_bytes=message["idiag_wqueue"],
        retransmits=info.get("tcpi_total_retrans", 0),
        idle_seconds=info.get("tcpi_last_data_sent", 0) * 1e-3,
    )


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
    for values in (probe.interface(), probe.queue()):
        series.add(time, values, node=name, device=interface)
    counters = parsers.paired_counters((folder / "snmp").read_text())
    counters |= parsers.paired_counters((folder / "netstat").read_text())
    wanted = [f"Tcp_{key}" for key in _TCP] + [f"TcpExt_{key}" for key in _TCP_EXTENDED]
    series.add(time, {f"node_netstat_{key}": counters[key] for key in wanted if key in counters}, node=name)
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
