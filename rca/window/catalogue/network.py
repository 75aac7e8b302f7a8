"""Network signals: InfiniBand and RoCE counters, interfaces, TCP, queueing disciplines."""

from __future__ import annotations

from functools import partial

from rca.window.catalogue.signal import Signal, unused

_count = partial(Signal, kind="counter", combine="sum", worse="higher")
_traffic = partial(Signal, unit="B", kind="counter", combine="sum", ignored_devices=("lo",))
_drops = partial(_count, ignored_devices=("lo",))
_queue = partial(Signal, combine="max", worse="higher", momentary=True)

# The kernel exposes RDMA hardware counters without a prefix; every exporter adds its own.
_HARDWARE_PREFIXES = ("node_infiniband_", "node_infiniband_hw_", "infiniband_hw_", "rdma_", "node_rdma_")


def _hardware(channel: str, *names: str, meaning: str) -> tuple[Signal, ...]:
    return tuple(
        _count(name, channel, meaning, aliases=tuple(prefix + name for prefix in _HARDWARE_PREFIXES))
        for name in names
    )


SIGNALS: tuple[Signal, ...] = (
    _count(
        "node_infiniband_port_transmit_wait_total",
        "ib_wait",
        "ticks with data to send but no flow-control credit",
        "ticks",
        aliases=("infiniband_port_xmit_wait", "port_xmit_wait"),
    ),
    _count(
        "node_infiniband_symbol_error_total",
        "ib_errors",
        "physical errors on the link",
        aliases=("node_infiniband_port_symbol_error_total", "infiniband_symbol_error"),
    ),
    _count(
        "node_infiniband_link_error_recovery_total",
        "ib_errors",
        "link recoveries that succeeded",
        aliases=("node_infiniband_port_link_error_recovery_total",),
    ),
    _count(
        "node_infiniband_port_errors_received_total",
        "ib_errors",
        "packets received with an error",
        aliases=("node_infiniband_port_receive_errors_total", "node_infiniband_port_rcv_errors_total"),
    ),
    _count("node_infiniband_local_link_integrity_errors_total", "ib_errors", "local physical errors"),
    _count("node_infiniband_excessive_buffer_overrun_errors_total", "ib_errors", "buffer overruns"),
    _count(
        "node_infiniband_link_downed_total",
        "ib_link_down",
        "times the link went down",
        aliases=("node_infiniband_port_link_downed_total", "infiniband_link_downed"),
    ),
    _count(
        "node_network_carrier_down_changes_total",
        "ib_link_down",
        "times the interface lost its carrier",
        ignored_devices=("lo",),
    ),
    *_hardware(
        "roce_congestion",
        "np_cnp_sent",
        "rp_cnp_handled",
        "np_ecn_marked_roce_packets",
        meaning="congestion notifications",
    ),
    *_hardware(
        "roce_congestion",
        "rx_prio3_pause",
        "tx_prio3_pause",
        "rx_pfc_pause",
        "tx_pfc_pause",
        meaning="priority pause frames",
    ),
    *_hardware(
        "roce_errors",
        "out_of_sequence",
        "packet_seq_err",
        "local_ack_timeout_err",
        "implied_nak_seq_err",
        "rnr_nak_retry_err",
        "roce_adp_retrans",
        "roce_slow_restart",
        "rx_icrc_encapsulated",
        meaning="RoCE losses and retransmissions",
    ),
    _drops("node_network_receive_drop_total", "net_drops", "packets dropped on receive"),
    _drops("node_network_transmit_drop_total", "net_drops", "packets dropped on send"),
    _drops("node_network_receive_errs_total", "net_drops", "receive errors"),
    _drops("node_network_transmit_errs_total", "net_drops", "send errors"),
    _traffic("node_network_transmit_bytes_total", "net_tx", "bytes sent"),
    _traffic("node_network_receive_bytes_total", "net_rx", "bytes received"),
    _traffic("node_infiniband_port_data_transmitted_bytes_total", "net_tx", "bytes sent"),
    _traffic("node_infiniband_port_data_received_bytes_total", "net_rx", "bytes received"),
    _count("node_netstat_Tcp_RetransSegs", "tcp_retrans", "segments sent again", "segments"),
    Signal("node_netstat_Tcp_OutSegs", "tcp_out_segs", "segments sent", "segments", "counter", "sum"),
    # The mean: a bad port slows all its connections, but only one connection of each neighbour.
    Signal(
        "node_tcp_rtt_seconds", "tcp_rtt", "smoothed round-trip time, mean over peers", "s", worse="higher"
    ),
    _queue("node_tcp_send_queue_bytes", "tcp_send_queue", "unacknowledged bytes, by peer", "B"),
    _queue(
        "node_qdisc_backlog",
        "qdisc_backlog",
        "bytes waiting to be sent",
        "B",
        ignored_devices=("lo",),
        aliases=("node_qdisc_backlog_bytes",),
    ),
    _drops("node_qdisc_drops_total", "qdisc_drops", "packets dropped by the queueing discipline"),
    _drops("node_qdisc_overlimits_total", "qdisc_overlimits", "times that a rate limit delayed a packet"),
    *unused(
        "node_netstat_TcpExt_TCPBacklogDrop",
        "node_netstat_TcpExt_TCPFastRetrans",
        "node_netstat_TcpExt_TCPLossProbes",
        "node_netstat_TcpExt_TCPLostRetransmit",
        "node_netstat_TcpExt_TCPOFOQueue",
        "node_netstat_TcpExt_TCPSackRecovery",
        "node_netstat_TcpExt_TCPSlowStartRetrans",
        "node_netstat_TcpExt_TCPSynRetrans",
        "node_netstat_TcpExt_TCPTimeouts",
        "node_tcp_connection_retransmits_total",
        meaning="a part or a copy of the retransmitted segments",
    ),
    *unused(
        "node_netstat_TcpExt_ListenDrops",
        "node_netstat_TcpExt_ListenOverflows",
        meaning="incoming connections that were dropped; training connections are open all the time",
    ),
    *unused(
        "node_netstat_Tcp_InErrs",
        "node_netstat_Tcp_InSegs",
        "node_netstat_Tcp_CurrEstab",
        "node_network_receive_packets_total",
        "node_network_transmit_packets_total",
        "node_network_up",
        "node_network_speed_bytes",
        "node_network_mtu_bytes",
        "node_infiniband_rate_bytes_per_second",
        "node_infiniband_state_id",
        "node_infiniband_port_packets_received_total",
        "node_infiniband_port_packets_transmitted_total",
        "node_qdisc_bytes_total",
        "node_qdisc_packets_total",
        "node_qdisc_current_queue_length",
        "node_qdisc_requeues_total",
        "node_tcp_busy_seconds_total",
        "node_tcp_bytes_acked_total",
        "node_tcp_rtt_seconds_max",
        "node_tcp_rttvar_seconds",
        meaning="traffic and state that the byte, queue and round-trip channels already show",
    ),
)
