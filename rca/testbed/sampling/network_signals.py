"""Counters of a node's network: interface, TCP, queueing discipline, one figure per peer node."""

from __future__ import annotations

from pathlib import Path

from rca.testbed.names import node_name
from rca.testbed.sampling import parsers
from rca.testbed.sampling.netlink import Connection, NamespaceProbe
from rca.testbed.sampling.series import Series

#: A connection that has sent nothing for longer tells of the past.
ACTIVE_SECONDS = 1.0
_TCP = ("RetransSegs", "OutSegs", "InSegs", "InErrs")
_TCP_EXTENDED = ("TCPTimeouts", "TCPLostRetransmit", "TCPFastRetrans", "TCPSlowStartRetrans", "TCPLossProbes")


def sample_namespace(
    series: Series,
    time: float,
    node: int,
    folder: Path,
    probe: NamespaceProbe,
    interface: str,
    peers: dict[str, str],
) -> None:
    """Append what a node's network counts.

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
