"""Network ports, switches and routes of the collective exchange."""

from __future__ import annotations

import numpy as np

from benchmarks.retold_incidents.expected import HEALTHY, Expected, slow, some_of, stop, whole
from benchmarks.retold_incidents.exporters import PORTS
from benchmarks.retold_incidents.incident import RetoldReport, incident

#: What a slow exchange may be called where no counter shows the reason.
EXCHANGE = "unknown network_congestion nic_degradation communication_misconfiguration nvlink_degradation"
MISROUTED = "communication_misconfiguration unknown nic_degradation network_congestion pcie_degradation"
STEP = {"data_loading": 0.008, "forward": 1.0, "backward": 2.0, "transfer": 0.55, "optimizer": 0.09}


@incident(
    "Azure SuperBench: links at a part of their rate before any job starts",
    "rich poor", poor="few, split",
)  # fmt: skip
def nic_half_rate(report: RetoldReport) -> Expected:
    """All ports of a node at 100 of 200 Gbit/s from the first step: every exchange takes twice as long."""
    job = report.job(64, 180, STEP)
    job.slow("transfer", 2.0)
    if report.variant == "poor":
        # Nothing in the window shows what the exchange would take on sound ports.
        return Expected(frozenset({"fail_slow", HEALTHY}), (), frozenset(EXCHANGE.split()), True)
    for port in PORTS:
        job.seen.shows(device=port, node_infiniband_rate_bytes_per_second=25e9)
        job.seen.shows([3], device=port, node_infiniband_rate_bytes_per_second=12.5e9)
        job.seen.shows([3], device=port, node_infiniband_port_transmit_wait_total=(6e7, 0.1))
    return slow("nic_degradation", some_of(job.of_node(3)))


@incident("Imbue 70B: a tenth of the InfiniBand links flapped or had errors", "few many flood")
def port_errors(report: RetoldReport) -> Expected:
    """Symbol errors on one port. More of them must not make the answer less certain."""
    rate, factor = {"few": (4.0, 1.5), "many": (900.0, 2.2), "flood": (2.0e5, 3.4)}[report.variant]
    job = report.job(32, 240, STEP)
    job.slow("transfer", factor, since=100)
    for name, errors in (("symbol_error", rate), ("link_error_recovery", rate / 40)):
        metric = {f"node_infiniband_{name}_total": (errors, 0.3)}
        job.seen.shows([1], since=100, device="mlx5_4/1", **metric)
    return slow("nic_degradation", some_of(job.of_node(1)))


@incident("MegaScale: network interfaces that flap for seconds and at last stay down", "rich events")
def flap_then_death(report: RetoldReport) -> Expected:
    """A port flaps five times; the sixth time it stays down, and every rank aborts within seconds."""
    job, rng = report.job(48, 260, STEP, stop_at=244, tail=75.0, unfinished=slice(None)), report.rng
    flaps = [60, 105, 150, 188, 221]
    for step in flaps:
        job.transfer[:, step] += rng.uniform(6, 14)
    for step in [*flaps, 244]:
        job.event(job.at(step) + 3.2, None, "link_down", "mlx5_3: Port: 1 Link DOWN", node=4)
    died, first = job.stopped + 2.1, job.of_node(4)
    order = [*rng.permutation(first), *rng.permutation([rank for rank in range(48) if rank not in first])]
    for position, rank in enumerate(map(int, order)):
        at = died + (0.3 * position if position < 8 else 4 + 0.08 * position + rng.exponential(0.6))
        if position < 3 or rng.random() < 0.4:
            message = "NCCL WARN NET/IB: Got completion with status=12 opcode=0 vendor err 129"
            job.event(at - 0.2, rank, "log", message)
        job.event(at, rank, "process_exit", code="-6")
    for step in [*flaps, 244]:
        scrape = slice(job.seen.since(step), job.seen.since(step) + 1)
        for name, rate in (("link_downed", 1 / 15), ("symbol_error", 2.0)):
            job.seen.shows([4], span=scrape, device="mlx5_3/1", **{f"node_infiniband_{name}_total": rate})
    job.seen.ended(slice(None), died + 8)
    return stop("nic_degradation process_crash hang", some_of(first))


@incident(
    "Alibaba HPN and C4: traffic of several jobs collides on one leaf switch",
    "rich poor", poor="few, split",
)  # fmt: skip
def leaf_congested(report: RetoldReport) -> Expected:
    """Four nodes below one leaf switch get congestion notifications; the exchange takes 2.1 times as long."""
    job = report.job(64, 200, STEP, roce=True)
    job.slow("transfer", report.rng.uniform(1.8, 2.4, 200)[70:165], since=70, until=165)
    if report.variant == "poor":
        return slow(EXCHANGE, whole(64)).or_abstains()
    rates = {"np_cnp_sent": (5200.0, 0.3), "rp_cnp_handled": (5200.0, 0.3), "out_of_sequence": (4.0, 0.3)}
    job.seen.shows([4, 5, 6, 7], since=70, until=165, device=PORTS, **rates)
    return slow("network_congestion", whole(64), some_of(job.of_node(4, 5, 6, 7)))


@incident("FALCON: 0.57, then 0.41, then 0.31 iterations per second by congestion", "rich poor")
def iterations_fall(report: RetoldReport) -> Expected:
    """Congestion of the whole fabric in two levels, with notifications on every node."""
    seconds = {"data_loading": 0.006, "forward": 0.36, "backward": 0.72, "transfer": 0.6, "optimizer": 0.06}
    job, step = report.job(32, 330, seconds, roce=True), np.arange(330)
    lost = np.select([step < 130, step < 230], [0.0, 1 / 0.41 - 1 / 0.57], 1 / 0.31 - 1 / 0.57)
    job.transfer += lost * report.rng.lognormal(0, 0.12, 330)
    if report.variant == "poor":
        return slow(EXCHANGE, whole(32)).or_abstains()
    for first, last, rate in ((130, 230, 2600.0), (230, 329, 7400.0)):
        rates = {"np_cnp_sent": (rate, 0.35), "rp_cnp_handled": (rate, 0.35)}
        job.seen.shows(since=first, until=last, device=PORTS, **rates)
    return slow("network_congestion", whole(32))


@incident("NCCL issues: the wrong interface is chosen, and RDMA is not used", "rich earlier")
def socket_fallback(report: RetoldReport) -> Expected:
    """Gradients go over 10 Gbit/s Ethernet in every step: 88 % of it is exchange, RDMA ports idle."""
    seconds = {"data_loading": 0.004, "forward": 0.21, "backward": 0.42, "transfer": 5.1, "optimizer": 0.03}
    job = report.job(16, 150, seconds)
    if report.variant == "earlier":
        job.usual(86_400, steps=300, seconds=seconds | {"transfer": 0.13})
        return slow(MISROUTED, whole(16))
    for port in PORTS:
        for name, rate in (("data_transmitted_bytes", 300.0), ("data_received_bytes", 300.0)):
            job.seen.shows(device=port, **{f"node_infiniband_port_{name}_total": (rate, 0.3)})
        job.seen.shows(device=port, node_infiniband_port_transmit_wait_total=0.0)
    for way in ("transmit", "receive"):
        job.seen.shows(device="eth0", **{f"node_network_{way}_bytes_total": (1.12e9, 0.02)})
    job.seen.shows(node_netstat_Tcp_OutSegs=(2.1e4, 0.05), node_netstat_Tcp_RetransSegs=(35, 0.3))
    return slow(MISROUTED, whole(16)).or_abstains()


@incident("PyTorch on cloud machines: retransmissions on one node of a TCP job")
def lossy_tcp(report: RetoldReport) -> Expected:
    """One node sends 2 % of its segments again; every exchange takes 2.6 times as long."""
    seconds = {"data_loading": 0.01, "forward": 0.16, "backward": 0.33, "transfer": 0.2, "optimizer": 0.02}
    job = report.job(8, 600, seconds, per_node=2, gpu="V100", ports=0, every=5)
    job.slow("transfer", 2.6 * report.rng.lognormal(0, 0.25, 340), since=260)
    for way in ("transmit", "receive"):
        job.seen.shows(device="eth0", **{f"node_network_{way}_bytes_total": (6e8, 0.05)})
        job.seen.shows(device="eth0", since=260, **{f"node_network_{way}_bytes_total": (2.6e8, 0.05)})
    job.seen.shows(node_netstat_Tcp_OutSegs=(1.6e4, 0.05))
    job.seen.shows([1], since=260, node_netstat_Tcp_RetransSegs=(320.0, 0.2))
    return slow("nic_degradation", some_of(job.of_node(1)))


@incident("NCCL issues: two GPUs of a node are routed through one adapter", "rich poor", poor="few, split")
def shared_adapter(report: RetoldReport) -> Expected:
    """On one node of four GPUs 2 and 3 use one adapter, the other adapter is idle: 1.9 times the exchange."""
    seconds = {"data_loading": 0.004, "forward": 0.8, "backward": 1.6, "transfer": 0.5, "optimizer": 0.05}
    groups = np.arange(32) % 8
    job = report.job(
        32, 260, seconds, parallelism={"data": 4, "tensor": 8}, framework="megatron", groups=groups
    )
    slowed = np.isin(groups, [2, 3])
    job.transfer[slowed] *= 1.9
    if report.variant == "poor":
        return slow(MISROUTED, some_of(np.flatnonzero(slowed).tolist()), whole(32)).or_abstains()
    for way in ("transmitted", "received"):
        name = f"node_infiniband_port_data_{way}_bytes_total"
        moved = job.seen.of_node[name, "mlx5_2/1"][2].copy()
        job.seen.shows([2], device="mlx5_2/1", **{name: 2 * moved})
        job.seen.shows([2], device="mlx5_3/1", **{name: (400.0, 0.2)})
    job.seen.shows([2], device="mlx5_2/1", node_infiniband_port_transmit_wait_total=(3e7, 0.1))
    return slow(MISROUTED, some_of(job.of_node(2)), some_of([18, 19]))


@incident("MegaScale: a port flaps for seconds at a time, and the job goes on", "rich events")
def flaps_only(report: RetoldReport) -> Expected:
    """Nine flaps of one port of node 3: each step with one lasts 5 to 12 s longer."""
    job, rng = report.job(48, 260, STEP), report.rng
    flaps = np.sort(rng.choice(np.arange(30, 250), 9, replace=False)).tolist()
    job.transfer[:, flaps] += rng.uniform(5, 12, 9)
    for step in flaps:
        job.event(job.at(step) + 3.1, None, "link_down", "mlx5_6: Port: 1 Link DOWN", node=3)
    for step in flaps:
        scrape = slice(job.seen.since(step), job.seen.since(step) + 1)
        job.seen.shows([3], span=scrape, device="mlx5_6/1", node_infiniband_link_downed_total=1 / 15)
    return slow("nic_degradation", some_of(job.of_node(3)))


@incident("Minder: a bad optical module, timeouts and slow restarts on one port")
def roce_timeouts(report: RetoldReport) -> Expected:
    """Acknowledgements of node 5 time out for a third of the window: exchanges take four times as long."""
    job = report.job(64, 200, STEP, roce=True)
    job.slow("transfer", report.rng.uniform(3.0, 5.0, 70), since=90, until=160)
    rates = {"local_ack_timeout_err": 3.5, "roce_slow_restart": 40.0, "packet_seq_err": 25.0}
    for name, rate in rates.items():
        job.seen.shows([5], since=90, until=160, device="mlx5_1/1", **{name: (rate, 0.3)})
    return slow("nic_degradation", some_of(job.of_node(5)))
