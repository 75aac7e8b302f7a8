"""Network ports, switches and routes of the collective exchange."""

from __future__ import annotations

import numpy as np

from benchmarks.retold_incidents.exporters import Exporters
from benchmarks.retold_incidents.incident import Retold, incident, slow, some_of, stop, whole
from benchmarks.retold_incidents.jobs import Job

#: What a slow exchange may be called where no counter shows the reason.
EXCHANGE = "unknown network_congestion nic_degradation communication_misconfiguration nvlink_degradation"
MISROUTED = "communication_misconfiguration unknown nic_degradation network_congestion pcie_degradation"
STEP = {"data_loading": 0.008, "forward": 1.0, "backward": 2.0, "transfer": 0.55, "optimizer": 0.09}


@incident(
    "nic-half-rate", "Azure SuperBench: links at a part of their rate before any job starts", "rich", "poor"
)
def nic_half_rate(rng: np.random.Generator, variant: str) -> Retold:
    """All ports of a node at 100 of 200 Gbit/s from the first step: every exchange takes twice as long."""
    job = Job(rng, 64, 180, STEP)
    job.slow("transfer", 2.0)
    played = job.play()
    if variant == "poor":
        # Nothing in the window shows what the exchange would take on sound ports.
        expected = slow(EXCHANGE, whole(64), some_of(job.of_node(3)))
        expected = type(expected)(expected.verdicts | {"healthy"}, (), expected.causes, True)
        return Retold(played.window("nic-half-rate", ("forward", "backward")), expected)
    seen = Exporters(played, every=15)
    for port in range(8):
        device = f"mlx5_{port}/1"
        seen.set("node_infiniband_rate_bytes_per_second", 25e9, node=slice(None), device=device)
        seen.set("node_infiniband_rate_bytes_per_second", 12.5e9, node=[3], device=device)
        seen.set("node_infiniband_port_transmit_wait_total", 6e7, node=[3], device=device, noise=0.1)
    window = played.window("nic-half-rate", metrics=seen.table())
    return Retold(window, slow("nic_degradation", some_of(job.of_node(3))))


@incident(
    "port-errors", "Imbue 70B: a tenth of the InfiniBand links flapped or had errors", "few", "many", "flood"
)
def port_errors(rng: np.random.Generator, variant: str) -> Retold:
    """Symbol errors on one port. More of them must not make the answer less certain."""
    rate, factor = {"few": (4.0, 1.5), "many": (900.0, 2.2), "flood": (2.0e5, 3.4)}[variant]
    job = Job(rng, 32, 240, STEP)
    since = 100
    job.slow("transfer", factor, since=since)
    played = job.play()
    seen = Exporters(played, every=15)
    span = slice(seen.since(since), None)
    seen.set("node_infiniband_symbol_error_total", rate, node=[1], device="mlx5_4/1", span=span, noise=0.3)
    seen.set(
        "node_infiniband_link_error_recovery_total",
        rate / 40,
        node=[1],
        device="mlx5_4/1",
        span=span,
        noise=0.3,
    )
    window = played.window("port-errors", metrics=seen.table())
    return Retold(window, slow("nic_degradation", some_of(job.of_node(1))))


@incident(
    "flap-then-death",
    "MegaScale: network interfaces that flap for seconds and at last stay down",
    "rich",
    "events",
)
def flap_then_death(rng: np.random.Generator, variant: str) -> Retold:
    """A port flaps five times; the sixth time it stays down, and every rank aborts within seconds."""
    job = Job(rng, 48, 260, STEP)
    flaps = [60, 105, 150, 188, 221]
    for step in flaps:
        job.transfer[:, step] += rng.uniform(6, 14)
    played = job.play(stop_at=244, tail=75.0)
    died = played.stopped + 2.1
    node = job.node(4)
    events = [
        {
            "time": played.at(step) + 3.2,
            "node": node,
            "rank": None,
            "kind": "link_down",
            "code": None,
            "message": "mlx5_3: Port: 1 Link DOWN",
        }
        for step in [*flaps, 244]
    ]
    first = job.of_node(4)
    order = [*rng.permutation(first), *rng.permutation([rank for rank in range(48) if rank not in first])]
    for position, rank in enumerate(order):
        at = died + (0.3 * position if position < 8 else 4 + 0.08 * position + rng.exponential(0.6))
        where = {"node": job.node(int(rank) // 8), "rank": int(rank)}
        if position < 3 or rng.random() < 0.4:
            events.append(
                {
                    "time": at - 0.2,
                    **where,
                    "kind": "log",
                    "code": None,
                    "message": "NCCL WARN NET/IB: Got completion with status=12 opcode=0 vendor err 129",
                }
            )
        events.append({"time": at, **where, "kind": "process_exit", "code": "-6", "message": None})
    expected = stop("nic_degradation process_crash hang", some_of(first))
    if variant == "events":
        window = played.window(
            "flap-then-death", ("forward", "backward"), events=events, unfinished=slice(None)
        )
        return Retold(window, expected)
    seen = Exporters(played)
    for step in [*flaps, 244]:
        at = seen.since(step)
        seen.set(
            "node_infiniband_link_downed_total", 1 / 15, node=[4], device="mlx5_3/1", span=slice(at, at + 1)
        )
        seen.set(
            "node_infiniband_symbol_error_total", 2.0, node=[4], device="mlx5_3/1", span=slice(at, at + 1)
        )
    seen.ended(slice(None), died + 8)
    window = played.window("flap-then-death", metrics=seen.table(), events=events, unfinished=slice(None))
    return Retold(window, expected)


@incident(
    "leaf-congested",
    "Alibaba HPN and C4: traffic of several jobs collides on one leaf switch",
    "rich",
    "poor",
)
def leaf_congested(rng: np.random.Generator, variant: str) -> Retold:
    """Four nodes below one leaf switch get congestion notifications; the exchange takes 2.1 times as long."""
    job = Job(rng, 64, 200, STEP)
    first, last = 70, 165
    steps = np.arange(200)
    job.slow("transfer", np.where((steps >= first) & (steps < last), rng.uniform(1.8, 2.4, 200), 1.0))
    played = job.play()
    behind = [rank for node in (4, 5, 6, 7) for rank in job.of_node(node)]
    if variant == "poor":
        window = played.window("leaf-congested", ("forward", "backward"))
        return Retold(window, slow(EXCHANGE, whole(64)).or_abstains())
    seen = Exporters(played, roce=True)
    span = slice(seen.since(first), seen.since(last))
    for port in range(8):
        for name, rate in (("np_cnp_sent", 5200.0), ("rp_cnp_handled", 5200.0), ("out_of_sequence", 4.0)):
            seen.set(name, rate, node=[4, 5, 6, 7], device=f"mlx5_{port}/1", span=span, noise=0.3)
    window = played.window("leaf-congested", metrics=seen.table())
    return Retold(window, slow("network_congestion", whole(64), some_of(behind)))


@incident(
    "iterations-fall",
    "FALCON: 0.57, then 0.41, then 0.31 iterations per second by congestion",
    "rich",
    "poor",
)
def iterations_fall(rng: np.random.Generator, variant: str) -> Retold:
    """Congestion of the whole fabric in two levels, with notifications on every node."""
    seconds = {"data_loading": 0.006, "forward": 0.36, "backward": 0.72, "transfer": 0.6, "optimizer": 0.06}
    job = Job(rng, 32, 330, seconds)
    lost = np.select(
        [np.arange(330) < 130, np.arange(330) < 230], [0.0, 1 / 0.41 - 1 / 0.57], 1 / 0.31 - 1 / 0.57
    )
    job.transfer += lost * rng.lognormal(0, 0.12, 330)
    played = job.play()
    if variant == "poor":
        window = played.window("iterations-fall", ("forward", "backward"), waiting="joint")
        return Retold(window, slow(EXCHANGE, whole(32)).or_abstains())
    seen = Exporters(played, roce=True)
    for first, last, rate in ((130, 230, 2600.0), (230, 329, 7400.0)):
        span = slice(seen.since(first), seen.since(last))
        for port in range(8):
            for name in ("np_cnp_sent", "rp_cnp_handled"):
                seen.set(name, rate, node=slice(None), device=f"mlx5_{port}/1", span=span, noise=0.35)
    window = played.window("iterations-fall", metrics=seen.table())
    return Retold(window, slow("network_congestion", whole(32)))


@incident(
    "socket-fallback", "NCCL issues: the wrong interface is chosen, and RDMA is not used", "rich", "earlier"
)
def socket_fallback(rng: np.random.Generator, variant: str) -> Retold:
    """Gradients go over 10 Gbit/s Ethernet in every step: 88 % of it is exchange, RDMA ports idle."""
    seconds = {"data_loading": 0.004, "forward": 0.21, "backward": 0.42, "transfer": 5.1, "optimizer": 0.03}
    job = Job(rng, 16, 150, seconds)
    played = job.play()
    expected = slow(MISROUTED, whole(16))
    if variant == "earlier":
        usual = Job(rng, 16, 300, seconds | {"transfer": 0.13})
        usual.start = job.start - 86_400
        window = played.window("socket-fallback", ("forward", "backward"))
        return Retold(window, expected, usual.play().window("socket-fallback", ("forward", "backward")))
    seen = Exporters(played)
    for port in range(8):
        for way in ("transmitted", "received"):
            seen.set(
                f"node_infiniband_port_data_{way}_bytes_total",
                300.0,
                node=slice(None),
                device=f"mlx5_{port}/1",
                noise=0.3,
            )
        seen.set("node_infiniband_port_transmit_wait_total", 0.0, node=slice(None), device=f"mlx5_{port}/1")
    for way in ("transmit", "receive"):
        seen.set(f"node_network_{way}_bytes_total", 1.12e9, node=slice(None), device="eth0", noise=0.02)
    seen.set("node_netstat_Tcp_OutSegs", 2.1e4, node=slice(None), noise=0.05)
    seen.set("node_netstat_Tcp_RetransSegs", 35, node=slice(None), noise=0.3)
    return Retold(played.window("socket-fallback", metrics=seen.table()), expected.or_abstains())


@incident("lossy-tcp", "PyTorch on cloud machines: retransmissions on one node of a TCP job", "rich")
def lossy_tcp(rng: np.random.Generator, _: str) -> Retold:
    """One node sends 2 % of its segments again; every exchange takes 2.6 times as long."""
    seconds = {"data_loading": 0.01, "forward": 0.16, "backward": 0.33, "transfer": 0.2, "optimizer": 0.02}
    job = Job(rng, 8, 600, seconds, per_node=2)
    since = 260
    job.slow("transfer", 2.6 * rng.lognormal(0, 0.25, 600 - since), since=since)
    played = job.play()
    seen = Exporters(played, gpu="V100", ports=0, every=5)
    span = slice(seen.since(since), None)
    for way in ("transmit", "receive"):
        seen.set(f"node_network_{way}_bytes_total", 6e8, node=slice(None), device="eth0", noise=0.05)
        seen.set(
            f"node_network_{way}_bytes_total", 2.6e8, node=slice(None), device="eth0", span=span, noise=0.05
        )
    seen.set("node_netstat_Tcp_OutSegs", 1.6e4, node=slice(None), noise=0.05)
    seen.set("node_netstat_Tcp_RetransSegs", 320.0, node=[1], span=span, noise=0.2)
    window = played.window("lossy-tcp", metrics=seen.table())
    return Retold(window, slow("nic_degradation", some_of(job.of_node(1))))


@incident("shared-adapter", "NCCL issues: two GPUs of a node are routed through one adapter", "rich", "poor")
def shared_adapter(rng: np.random.Generator, variant: str) -> Retold:
    """On one node of four GPUs 2 and 3 use one adapter, the other adapter is idle: 1.9 times the exchange."""
    seconds = {"data_loading": 0.004, "forward": 0.8, "backward": 1.6, "transfer": 0.5, "optimizer": 0.05}
    job = Job(rng, 32, 260, seconds, parallelism={"data": 4, "tensor": 8}, framework="megatron")
    groups = np.arange(32) % 8
    job.transfer[np.isin(groups, [2, 3])] *= 1.9
    played = job.play(groups=groups)
    culprits = [18, 19]
    if variant == "poor":
        window = played.window("shared-adapter", ("forward", "backward"))
        places = (some_of(np.flatnonzero(np.isin(groups, [2, 3])).tolist()), whole(32))
        return Retold(window, slow(MISROUTED, *places).or_abstains())
    seen = Exporters(played)
    for name in ("transmitted", "received"):
        moved = seen.of_node[f"node_infiniband_port_data_{name}_bytes_total", "mlx5_2/1"][2].copy()
        seen.set(f"node_infiniband_port_data_{name}_bytes_total", 2 * moved, node=[2], device="mlx5_2/1")
        seen.set(
            f"node_infiniband_port_data_{name}_bytes_total", 400.0, node=[2], device="mlx5_3/1", noise=0.2
        )
    seen.set("node_infiniband_port_transmit_wait_total", 3e7, node=[2], device="mlx5_2/1", noise=0.1)
    window = played.window("shared-adapter", metrics=seen.table())
    return Retold(window, slow(MISROUTED, some_of(job.of_node(2)), some_of(culprits)))


@incident(
    "flaps-only", "MegaScale: a port flaps for seconds at a time, and the job goes on", "rich", "events"
)
def flaps_only(rng: np.random.Generator, variant: str) -> Retold:
    """Nine flaps of one port of node 3: each step with one lasts 5 to 12 s longer."""
    job = Job(rng, 48, 260, STEP)
    flaps = np.sort(rng.choice(np.arange(30, 250), 9, replace=False))
    job.transfer[:, flaps] += rng.uniform(5, 12, 9)
    played = job.play()
    events = [
        {
            "time": played.at(int(step)) + 3.1,
            "node": job.node(3),
            "rank": None,
            "kind": "link_down",
            "code": None,
            "message": "mlx5_6: Port: 1 Link DOWN",
        }
        for step in flaps
    ]
    expected = slow("nic_degradation", some_of(job.of_node(3)))
    if variant == "events":
        return Retold(played.window("flaps-only", ("forward", "backward"), events=events), expected)
    seen = Exporters(played)
    for step in flaps:
        span = slice(seen.since(int(step)), seen.since(int(step)) + 1)
        seen.set("node_infiniband_link_downed_total", 1 / 15, node=[3], device="mlx5_6/1", span=span)
    return Retold(played.window("flaps-only", metrics=seen.table(), events=events), expected)


@incident("roce-timeouts", "Minder: a bad optical module, timeouts and slow restarts on one port", "rich")
def roce_timeouts(rng: np.random.Generator, _: str) -> Retold:
    """Acknowledgements of node 5 time out for a third of the window: exchanges take four times as long."""
    job = Job(rng, 64, 200, STEP)
    first, last = 90, 160
    job.transfer[:, first:last] *= rng.uniform(3.0, 5.0, last - first)
    played = job.play()
    seen = Exporters(played, roce=True)
    span = slice(seen.since(first), seen.since(last))
    for name, rate in (("local_ack_timeout_err", 3.5), ("roce_slow_restart", 40.0), ("packet_seq_err", 25.0)):
        seen.set(name, 0.0, node=slice(None), device="mlx5_1/1")
        seen.set(name, rate, node=[5], device="mlx5_1/1", span=span, noise=0.3)
    window = played.window("roce-timeouts", metrics=seen.table())
    return Retold(window, slow("nic_degradation", some_of(job.of_node(5))))
