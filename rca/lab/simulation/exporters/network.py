"""Signals about links: interfaces, InfiniBand and RoCE ports, TCP connections, queues; per node."""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.lab.simulation.finished_run import FinishedRun
from rca.lab.simulation.machine_differences import lasting_factors, machine_level, machines_have
from rca.lab.simulation.scraping import MetricsScraper

# Unacknowledged bytes per second of delay.
UNACKNOWLEDGED_BYTES_PER_SECOND = 2.5e6
#: Bytes per second of ports: of InfiniBand adapters, and of the Ethernet that sockets use.
PORT_BYTES_PER_SECOND = (2.5e10, 5e10, 1.25e10)
SOCKET_BYTES_PER_SECOND = (1.25e9, 3.125e9, 1.25e10)
# Share of the symptoms of one rail that the other ports of a node show.
SPARED = 0.02


def _moved(run: FinishedRun) -> FloatArray:
    """Bytes per second through each node's port, (n_nodes, n_segments)."""
    nodes = run.scenario.n_nodes
    others = machine_level(run, "other traffic", 1e3, 1e7) * np.ones((nodes, run.pace.size))
    # A job on one node does not use the network.
    return others + (run.scenario.workload.gradient_bytes * run.pace if nodes > 1 else 0.0)


def _retransmits(run: FinishedRun) -> FloatArray:
    """TCP retransmissions per second: lost packets, and probes because of late hosts."""
    lossy = (
        180
        * np.sqrt(run.state("nic_loss"))
        * np.clip(run.share("communication_transfer").mean(axis=0), 0.1, 1)
    )
    # A ring passes the stalls of a lossy neighbour on: every node retransmits somewhat more.
    shared = 0.35 * lossy.max(axis=0, keepdims=True)
    late = machine_level(run, "late probes", 0.3, 5.0) * run.gap_ratio.max(axis=0, keepdims=True)
    probes = 2.0 if run.scenario.dialect == "cpu_testbed" else 0.3
    harmless = np.zeros((run.scenario.n_nodes, 1))
    for signal in run.scenario.benign.harmless:
        if signal.kind == "tcp_retransmits":
            harmless[run.node_of[signal.rank % run.scenario.world_size]] = 6.0
    alive = 1 - run.stalled
    usual = probes * lasting_factors(run, "retransmits", 0.05, 1.2, run.scenario.n_nodes)
    return np.asarray((usual + np.maximum(lossy, shared) + late + harmless) * alive)


def interface(run: FinishedRun, out: MetricsScraper) -> None:
    """node_network_* and TCP totals."""
    moved, retransmits = _moved(run), _retransmits(run)
    if run.scenario.corpus > 1:
        moved = _over_sockets(run, moved)
        speed = np.full(moved.shape, SOCKET_BYTES_PER_SECOND[run.scenario.seed % 3])
        out.gauge("node_network_speed_bytes", "node", speed, device="eth0", noise=0.0)
    loss = run.state("nic_loss")
    for way in ("receive", "transmit"):
        out.counter(f"node_network_{way}_bytes_total", "node", moved, device="eth0", quantum=1, noise=0.04)
        out.counter(f"node_network_{way}_packets_total", "node", moved / 2900, device="eth0", quantum=1)
        drops = 400 * loss * (way == "receive")
        out.counter(f"node_network_{way}_drop_total", "node", drops, device="eth0", quantum=1, noise=0.3)
    out.counter("node_netstat_Tcp_RetransSegs", "node", retransmits, quantum=1, noise=0.5)
    out.counter("node_netstat_Tcp_OutSegs", "node", moved / 1850, quantum=1)
    out.counter("node_netstat_Tcp_InSegs", "node", moved / 1850, quantum=1)
    if run.scenario.dialect == "cpu_testbed":
        out.counter("node_netstat_TcpExt_TCPLossProbes", "node", 0.95 * retransmits, quantum=1, noise=0.5)
        fast = 60 * loss * np.ones_like(moved)
        out.counter("node_netstat_TcpExt_TCPFastRetrans", "node", 0.1 + fast, quantum=1, noise=0.5)
        out.counter("node_netstat_TcpExt_TCPTimeouts", "node", 8 * loss, quantum=1, noise=0.5)


def infiniband(run: FinishedRun, out: MetricsScraper) -> None:
    """Port counters of node_exporter, and RoCE's congestion and loss counters."""
    wiring = run.scenario.wiring
    ports = (1, 2, 4)[run.scenario.seed % 3] if wiring is None else wiring.adapters
    carried, roce = _moved(run) / ports, run.scenario.seed % 2 == 0
    if run.scenario.corpus > 1:
        carried = carried * (1 - run.state("sockets"))
    slow, crowded = run.state("nic_stretch") - 1, np.clip(run.state("congestion"), 0, 3)
    queued = np.clip(run.state("nic_queue"), 0, 2)
    errors, loss = run.state("nic_errors"), run.state("nic_loss")
    for port in range(ports):
        # A node's fault often affects one of its ports only.
        shown = _share_of_port(run, port)
        own = (1.0 if port == run.scenario.seed % ports or slow.min() > 0 else 0.1) * shown
        marked = shown * crowded
        device, moved = f"mlx5_{port}", carried * _share_of_traffic(run, port, ports)
        send_wait = (
            machine_level(run, "wait ticks", 1, 100) * moved / 2e4 * (0.05 + 2 * own * queued + 3 * marked)
        )
        prefix = "node_infiniband_port_"
        out.counter(f"{prefix}data_transmitted_bytes_total", "node", moved, device=device, quantum=1)
        out.counter(f"{prefix}data_received_bytes_total", "node", moved, device=device, quantum=1)
        out.counter(f"{prefix}transmit_wait_total", "node", send_wait, device=device, quantum=1, noise=0.3)
        out.counter("node_infiniband_symbol_error_total", "node", own * errors, device=device, quantum=1)
        recovered = 0.1 * own * errors
        out.counter("node_infiniband_link_error_recovery_total", "node", recovered, device=device, quantum=1)
        downs = 0.02 * own * errors + own * run.state("port_down") / run.duration
        out.counter("node_infiniband_link_downed_total", "node", downs, device=device, quantum=1)
        if run.scenario.corpus > 1:
            # Only the port that shows the fault has trained to a lower rate.
            rate = PORT_BYTES_PER_SECOND[run.scenario.seed % 3] * np.where(
                own < 1, 1.0, run.state("port_rate")
            )
            out.gauge("node_infiniband_rate_bytes_per_second", "node", rate, device=device, noise=0.0)
        if roce:
            _roce(out, device, marked, own * loss, 1 - run.stalled)


def _over_sockets(run: FinishedRun, moved: FloatArray) -> FloatArray:
    """Bytes per second of the Ethernet port: the job's own traffic only where it uses TCP sockets."""
    if run.scenario.dialect == "cpu_testbed":
        return moved
    own = run.scenario.workload.gradient_bytes * run.pace if run.scenario.n_nodes > 1 else 0.0
    return np.asarray(moved - own * (1 - run.state("sockets")))


def _share_of_traffic(run: FinishedRun, port: int, ports: int) -> FloatArray:
    """Traffic of a port relative to an even share, (n_nodes, n_segments): two where it carries another's."""
    if ports == 1:
        return np.ones((run.scenario.n_nodes, run.n_segments))
    crossed = run.state("crossed_port")
    share = np.where((crossed > 0) & ((crossed - 1) % ports == port), 2.0, 1.0)
    return np.where((crossed > 0) & (crossed % ports == port), 0.01, share)


def _share_of_port(run: FinishedRun, port: int) -> FloatArray:
    """Share of a node's symptoms that one port shows, (n_nodes, n_segments)."""
    only = run.state("only_port")
    return np.where((only == 0) | (only == 1 + port), 1.0, SPARED)


def _roce(out: MetricsScraper, device: str, marked: FloatArray, loss: FloatArray, alive: FloatArray) -> None:
    notified = (2 + 4000 * marked) * alive
    out.counter("np_cnp_sent", "node", notified, device=device, quantum=1, noise=0.3)
    out.counter("rp_cnp_handled", "node", 0.8 * notified, device=device, quantum=1, noise=0.3)
    out.counter("out_of_sequence", "node", 0.2 + 3000 * loss, device=device, quantum=1, noise=0.4)
    out.counter("packet_seq_err", "node", 0.05 + 900 * loss, device=device, quantum=1, noise=0.4)
    out.counter("local_ack_timeout_err", "node", 15 * loss, device=device, quantum=1, noise=0.5)
    out.counter("roce_slow_restart", "node", 30 * loss, device=device, quantum=1, noise=0.5)


def connections(run: FinishedRun, out: MetricsScraper) -> None:
    """Per-peer state of TCP connections; `device` is the peer's node."""
    nodes = run.scenario.n_nodes
    if nodes < 2:
        return
    delay, queued = run.state("nic_delay"), np.clip(run.state("nic_queue"), 0, 2)
    retransmits = _retransmits(run)
    late = machine_level(run, "late answers", 3e-5, 5e-4) * run.gap_ratio.max(axis=0, keepdims=True)
    burst = machine_level(run, "message sent", 1e4, 2e5) if machines_have(run, "messages seen", 0.5) else 0.0
    # Two kernels under one bridge, or two machines a few switches apart. Each kernel estimates by itself: a
    # node that sends little and gets late acknowledgements sees long round trips without being slower.
    usual = machine_level(run, "round trip", 3e-4, 4e-3) * lasting_factors(
        run, "round trips", 0.08, 0.7, nodes
    )
    piled = lasting_factors(run, "send queues", 0.05, 1.5, nodes)
    # A ring sends to the next node; the last peer listed is where the data goes.
    for hop in range(1, min(nodes, 4)):
        peer = (np.arange(nodes) + hop) % nodes
        added = delay + delay[peer]
        trip = usual + added + 3e-4 * queued + late
        device = f"+{hop}" if run.scenario.dialect != "cpu_testbed" else str(hop)
        out.gauge("node_tcp_rtt_seconds", "node", trip, device=device, quantum=1e-6, noise=0.35)
        out.gauge("node_tcp_rttvar_seconds", "node", 1.5 * trip, device=device, quantum=1e-6, noise=0.35)
        usually = machine_level(run, "send queue", 20, 20000) * piled
        waiting = usually + 2800 * queued + UNACKNOWLEDGED_BYTES_PER_SECOND * delay
        out.gauge(
            "node_tcp_send_queue_bytes", "node", waiting, device=device, quantum=1, noise=0.8, burst=burst
        )
        share = retransmits / (nodes - 1)
        out.counter(
            "node_tcp_connection_retransmits_total", "node", share, device=device, quantum=1, noise=0.5
        )


def queues(run: FinishedRun, out: MetricsScraper) -> None:
    """Record the interface's queueing discipline."""
    queued = np.clip(run.state("nic_queue"), 0, 2)
    moving = 1 - run.stalled
    # The queue of a healthy port sometimes shows bursts.
    seen = machine_level(run, "backlog", 1.0, 800.0) if machines_have(run, "bursts seen", 0.3) else 0.0
    waiting = (6400 * queued + seen) * moving
    burst = (
        machine_level(run, "message queued", 2e3, 1e5) if machines_have(run, "messages seen", 0.5) else 0.0
    )
    out.gauge("node_qdisc_backlog", "node", waiting, device="eth0", quantum=1, noise=0.5, burst=burst)
    out.gauge("node_qdisc_current_queue_length", "node", waiting / 3200, device="eth0", quantum=1, noise=0.5)
    over = (1500 * queued + _usual_overlimits(run)) * moving
    out.counter("node_qdisc_overlimits_total", "node", over, device="eth0", quantum=1, noise=0.2)
    drops = 30 * run.state("nic_loss")
    out.counter("node_qdisc_drops_total", "node", drops, device="eth0", quantum=1, noise=0.4)


def _usual_overlimits(run: FinishedRun) -> FloatArray:
    """Overlimits of healthy shaped ports per second, (n_nodes, 1): bursts reach the limit."""
    nodes = run.scenario.n_nodes
    if not machines_have(run, "limits in use", 0.5):
        return np.zeros((nodes, 1))
    return np.asarray(
        machine_level(run, "overlimits", 0.2, 300.0) * lasting_factors(run, "limits", 0.05, 1.2, nodes)
    )
