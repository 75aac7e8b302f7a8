"""Signals about links: interfaces, InfiniBand and RoCE ports, TCP connections, queues; per node."""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.simulation.finished_run import World
from rca.simulation.machine_differences import is_so, level, uneven
from rca.simulation.scraping import Collector

# What waits to be acknowledged per second of delay.
BYTES_UNDERWAY = 2.5e6


def _moved(world: World) -> FloatArray:
    """Bytes per second through each node's port, (n_nodes, n_segments)."""
    nodes = world.scenario.n_nodes
    others = level(world, "other traffic", 1e3, 1e7) * np.ones((nodes, world.pace.size))
    # A job of one node has no business with the network.
    return others + (world.scenario.workload.gradient_bytes * world.pace if nodes > 1 else 0.0)


def _retransmits(world: World) -> FloatArray:
    """TCP retransmissions per second: lost packets, and probes that a late host provokes."""
    lossy = (
        180
        * np.sqrt(world.state("nic_loss"))
        * np.clip(world.share("communication_transfer").mean(axis=0), 0.1, 1)
    )
    # A ring hands a lossy neighbour's stalls on: everybody retransmits somewhat more.
    shared = 0.35 * lossy.max(axis=0, keepdims=True)
    late = level(world, "late probes", 0.3, 5.0) * world.gap_ratio.max(axis=0, keepdims=True)
    probes = 2.0 if world.scenario.dialect == "cpu_testbed" else 0.3
    harmless = np.zeros((world.scenario.n_nodes, 1))
    for signal in world.scenario.benign.harmless:
        if signal.kind == "tcp_retransmits":
            harmless[world.node_of[signal.rank % world.scenario.world_size]] = 6.0
    alive = 1 - world.stands_still
    usual = probes * uneven(world, "retransmits", 0.05, 1.2, world.scenario.n_nodes)
    return np.asarray((usual + np.maximum(lossy, shared) + late + harmless) * alive)


def interface(world: World, out: Collector) -> None:
    """node_network_* and TCP totals."""
    moved, retransmits = _moved(world), _retransmits(world)
    loss = world.state("nic_loss")
    for way in ("receive", "transmit"):
        out.counter(f"node_network_{way}_bytes_total", "node", moved, device="eth0", quantum=1, noise=0.04)
        out.counter(f"node_network_{way}_packets_total", "node", moved / 2900, device="eth0", quantum=1)
        drops = 400 * loss * (way == "receive")
        out.counter(f"node_network_{way}_drop_total", "node", drops, device="eth0", quantum=1, noise=0.3)
    out.counter("node_netstat_Tcp_RetransSegs", "node", retransmits, quantum=1, noise=0.5)
    out.counter("node_netstat_Tcp_OutSegs", "node", moved / 1850, quantum=1)
    out.counter("node_netstat_Tcp_InSegs", "node", moved / 1850, quantum=1)
    if world.scenario.dialect == "cpu_testbed":
        out.counter("node_netstat_TcpExt_TCPLossProbes", "node", 0.95 * retransmits, quantum=1, noise=0.5)
        fast = 60 * loss * np.ones_like(moved)
        out.counter("node_netstat_TcpExt_TCPFastRetrans", "node", 0.1 + fast, quantum=1, noise=0.5)
        out.counter("node_netstat_TcpExt_TCPTimeouts", "node", 8 * loss, quantum=1, noise=0.5)


def infiniband(world: World, out: Collector) -> None:
    """Port counters of node_exporter, and RoCE's congestion and loss counters."""
    ports = (1, 2, 4)[world.scenario.seed % 3]
    moved, roce = _moved(world) / ports, world.scenario.seed % 2 == 0
    slow, marked = world.state("nic_stretch") - 1, np.clip(world.state("congestion"), 0, 3)
    queued = np.clip(world.state("nic_queue"), 0, 2)
    errors, loss = world.state("nic_errors"), world.state("nic_loss")
    for port in range(ports):
        # A node's fault is often in one of its ports only.
        own = 1.0 if port == world.scenario.seed % ports or slow.min() > 0 else 0.1
        device = f"mlx5_{port}"
        send_wait = level(world, "wait ticks", 1, 100) * moved / 2e4 * (0.05 + 2 * own * queued + 3 * marked)
        prefix = "node_infiniband_port_"
        out.counter(f"{prefix}data_transmitted_bytes_total", "node", moved, device=device, quantum=1)
        out.counter(f"{prefix}data_received_bytes_total", "node", moved, device=device, quantum=1)
        out.counter(f"{prefix}transmit_wait_total", "node", send_wait, device=device, quantum=1, noise=0.3)
        out.counter("node_infiniband_symbol_error_total", "node", own * errors, device=device, quantum=1)
        recovered = 0.1 * own * errors
        out.counter("node_infiniband_link_error_recovery_total", "node", recovered, device=device, quantum=1)
        out.counter(
            "node_infiniband_link_downed_total", "node", 0.02 * own * errors, device=device, quantum=1
        )
        if roce:
            _roce(out, device, marked, own * loss, 1 - world.stands_still)


def _roce(out: Collector, device: str, marked: FloatArray, loss: FloatArray, alive: FloatArray) -> None:
    notified = (2 + 4000 * marked) * alive
    out.counter("np_cnp_sent", "node", notified, device=device, quantum=1, noise=0.3)
    out.counter("rp_cnp_handled", "node", 0.8 * notified, device=device, quantum=1, noise=0.3)
    out.counter("out_of_sequence", "node", 0.2 + 3000 * loss, device=device, quantum=1, noise=0.4)
    out.counter("packet_seq_err", "node", 0.05 + 900 * loss, device=device, quantum=1, noise=0.4)
    out.counter("local_ack_timeout_err", "node", 15 * loss, device=device, quantum=1, noise=0.5)
    out.counter("roce_slow_restart", "node", 30 * loss, device=device, quantum=1, noise=0.5)


def connections(world: World, out: Collector) -> None:
    """Per-peer state of TCP connections; `device` is the peer's node."""
    nodes = world.scenario.n_nodes
    if nodes < 2:
        return
    delay, queued = world.state("nic_delay"), np.clip(world.state("nic_queue"), 0, 2)
    retransmits = _retransmits(world)
    late = level(world, "late answers", 3e-5, 5e-4) * world.gap_ratio.max(axis=0, keepdims=True)
    burst = level(world, "message sent", 1e4, 2e5) if is_so(world, "messages seen", 0.5) else 0.0
    # Two kernels under one bridge, or two machines a few switches apart. Estimates are a kernel's own: who
    # sends little, and gets it acknowledged late, sees long round trips, and nothing is slower for it.
    usual = level(world, "round trip", 3e-4, 4e-3) * uneven(world, "round trips", 0.08, 0.7, nodes)
    piled = uneven(world, "send queues", 0.05, 1.5, nodes)
    # A ring sends to the next node; the last peer listed is where the data goes.
    for hop in range(1, min(nodes, 4)):
        peer = (np.arange(nodes) + hop) % nodes
        added = delay + delay[peer]
        trip = usual + added + 3e-4 * queued + late
        device = f"+{hop}" if world.scenario.dialect != "cpu_testbed" else str(hop)
        out.gauge("node_tcp_rtt_seconds", "node", trip, device=device, quantum=1e-6, noise=0.35)
        out.gauge("node_tcp_rttvar_seconds", "node", 1.5 * trip, device=device, quantum=1e-6, noise=0.35)
        usually = level(world, "send queue", 20, 20000) * piled
        waiting = usually + 2800 * queued + BYTES_UNDERWAY * delay
        out.gauge(
            "node_tcp_send_queue_bytes", "node", waiting, device=device, quantum=1, noise=0.8, burst=burst
        )
        share = retransmits / (nodes - 1)
        out.counter(
            "node_tcp_connection_retransmits_total", "node", share, device=device, quantum=1, noise=0.5
        )


def queues(world: World, out: Collector) -> None:
    """Record the interface's queueing discipline."""
    queued = np.clip(world.state("nic_queue"), 0, 2)
    moving = 1 - world.stands_still
    # Bursts of a sound port are seen in its queue now and then.
    seen = level(world, "backlog", 1.0, 800.0) if is_so(world, "bursts seen", 0.3) else 0.0
    waiting = (6400 * queued + seen) * moving
    burst = level(world, "message queued", 2e3, 1e5) if is_so(world, "messages seen", 0.5) else 0.0
    out.gauge("node_qdisc_backlog", "node", waiting, device="eth0", quantum=1, noise=0.5, burst=burst)
    out.gauge("node_qdisc_current_queue_length", "node", waiting / 3200, device="eth0", quantum=1, noise=0.5)
    over = (1500 * queued + _usual_overlimits(world)) * moving
    out.counter("node_qdisc_overlimits_total", "node", over, device="eth0", quantum=1, noise=0.2)
    drops = 30 * world.state("nic_loss")
    out.counter("node_qdisc_drops_total", "node", drops, device="eth0", quantum=1, noise=0.4)


def _usual_overlimits(world: World) -> FloatArray:
    """Where ports are shaped at all, bursts meet the limit now and then, on some nodes more often."""
    nodes = world.scenario.n_nodes
    if not is_so(world, "limits in use", 0.5):
        return np.zeros((nodes, 1))
    return np.asarray(level(world, "overlimits", 0.2, 300.0) * uneven(world, "limits", 0.05, 1.2, nodes))
