"""Faults from the first step to the last: no change point, only peers, earlier days and a sound machine."""

from __future__ import annotations

import numpy as np

from benchmarks.retold_incidents.accelerators import COMPUTE
from benchmarks.retold_incidents.exporters import Exporters
from benchmarks.retold_incidents.fabric import EXCHANGE
from benchmarks.retold_incidents.incident import (
    HEALTHY,
    SLOW,
    Expected,
    Retold,
    between,
    exactly,
    incident,
    slow,
    some_of,
    whole,
)
from benchmarks.retold_incidents.jobs import Job

STEP = {"data_loading": 0.01, "forward": 0.8, "backward": 1.6, "transfer": 0.4, "optimizer": 0.08}
COPIES = STEP | {"host_to_device": 0.06}


@incident(
    "lanes-chronic",
    "Meta, reliability of research clusters: 8 of 16 lanes since the last boot",
    "rich",
    "untimed",
)
def lanes_chronic(rng: np.random.Generator, variant: str) -> Retold:
    """A GPU's link has 4 of 16 lanes under load in every step, and no error is logged."""
    job = Job(rng, 16, 220, COPIES)
    job.slow("host_to_device", 3.8, [2])
    job.slow("transfer", 1.5)
    played = job.play()
    seen = Exporters(played, every=15)
    seen.set("DCGM_FI_DEV_PCIE_LINK_WIDTH", 4, rank=[2])
    seen.set("DCGM_FI_PROF_PCIE_RX_BYTES", 9e8, rank=[2], noise=0.1)
    seen.set("DCGM_FI_PROF_PCIE_TX_BYTES", 9e8, rank=[2], noise=0.1)
    phases = ("forward", "backward", "optimizer") if variant == "untimed" else None
    window = played.window("lanes-chronic", phases, metrics=seen.table())
    return Retold(window, slow("pcie_degradation", between([2], range(8))))


@incident(
    "port-waits-chronic", "Azure SuperBench: one port of a node far below its rate in every job", "rich"
)
def port_waits_chronic(rng: np.random.Generator, _: str) -> Retold:
    """One port of node 2 waits for credits all the time, with a trickle of symbol errors."""
    job = Job(rng, 32, 200, STEP)
    job.slow("transfer", 2.6)
    played = job.play()
    seen = Exporters(played, gpu="A100")
    seen.set("node_infiniband_port_transmit_wait_total", 2.4e8, node=[2], device="mlx5_5/1", noise=0.1)
    seen.set("node_infiniband_symbol_error_total", 1.2, node=[2], device="mlx5_5/1", noise=0.4)
    window = played.window("port-waits-chronic", metrics=seen.table())
    return Retold(window, slow("nic_degradation", some_of(job.of_node(2))))


@incident(
    "capped-fleet", "Llama 3 report: power of the data centre; all GPUs capped alike", "rich", "earlier"
)
def capped_fleet(rng: np.random.Generator, variant: str) -> Retold:
    """All 64 GPUs run at 1,170 of 1,980 MHz under a power brake, in every step."""
    job = Job(rng, 64, 150, STEP)
    job.slow("compute", 1.6)
    played = job.play()
    if variant == "earlier":
        usual = Job(rng, 64, 150, STEP)
        usual.start = job.start - 80_000
        window = played.window("capped-fleet", ("forward", "backward"), waiting="joint")
        earlier = usual.play().window("capped-fleet", ("forward", "backward"), waiting="joint")
        return Retold(window, slow(COMPUTE, whole(64)), earlier)
    seen = Exporters(played)
    everyone = slice(None)
    seen.set("DCGM_FI_DEV_SM_CLOCK", 1170, rank=everyone, noise=0.015)
    seen.set("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", float(0x80 | 0x8), rank=everyone)
    seen.set("DCGM_FI_DEV_POWER_USAGE", 385, rank=everyone, noise=0.02)
    seen.set("DCGM_FI_DEV_POWER_VIOLATION", 9.1e8, rank=everyone, noise=0.02)
    window = played.window("capped-fleet", metrics=seen.table())
    return Retold(window, slow("gpu_throttling", whole(64)))


@incident("swapping-always", "ByteRobust: host memory is exhausted by caches on every machine", "rich")
def swapping_always(rng: np.random.Generator, _: str) -> Retold:
    """All nodes reclaim memory all the time: memory pressure 0.7, 40,000 swapped pages per second."""
    job = Job(rng, 16, 160, STEP, noise=0.06)
    job.slow("data_loading", 20.0)
    job.slow("forward", 1.5 * rng.lognormal(0, 0.2, (16, 160)))
    played = job.play()
    seen = Exporters(played, gpu="A100")
    everyone = slice(None)
    seen.set("node_pressure_memory_waiting_seconds_total", 0.7, node=everyone, noise=0.05)
    seen.set("node_vmstat_pswpin", 40_000, node=everyone, noise=0.2)
    seen.set("node_vmstat_pgmajfault", 11_000, node=everyone, noise=0.2)
    seen.set("node_memory_MemAvailable_bytes", 2.5e9, node=everyone, noise=0.1)
    window = played.window("swapping-always", metrics=seen.table())
    return Retold(window, slow("memory_pressure", whole(16)))


@incident(
    "storage-always",
    "Machine Learning Engineering Open Book: a shared file system too slow for the job",
    "rich",
    "poor",
)
def storage_always(rng: np.random.Generator, variant: str) -> Retold:
    """Every step begins with 6 s of reading and 2.9 s of work, I/O pressure 0.9 on all nodes."""
    job = Job(rng, 24, 120, STEP | {"data_loading": 6.0}, noise=0.014)
    played = job.play()
    if variant == "poor":
        window = played.window("storage-always", ("data_loading", "forward"), waiting="untimed")
        return Retold(window, slow("storage_degradation data_loader_stall unknown", whole(24)))
    seen = Exporters(played, gpu="A100", processes=True)
    everyone = slice(None)
    seen.set("node_pressure_io_waiting_seconds_total", 0.9, node=everyone, noise=0.02)
    seen.set("container_pressure_io_waiting_seconds_total", 0.64, rank=everyone, noise=0.04)
    seen.set("node_cpu_seconds_total", 28, node=everyone, device="iowait", noise=0.1)
    seen.set("node_nfs_rpc_retransmissions_total", 22, node=everyone, noise=0.3)
    window = played.window("storage-always", metrics=seen.table())
    return Retold(window, slow("storage_degradation data_loader_stall", whole(24)))


@incident(
    "nvlink-off",
    "NCCL issues: peer access over NVLink is off for one GPU, which goes through the host",
    "rich",
)
def nvlink_off(rng: np.random.Generator, _: str) -> Retold:
    """GPU 6 of 8 moves everything over PCIe, nothing over NVLink; exchanges take three times as long."""
    job = Job(rng, 8, 260, STEP)
    job.slow("transfer", 3.0)
    played = job.play()
    seen = Exporters(played, gpu="A100")
    for name in ("TX", "RX"):
        seen.set(f"DCGM_FI_PROF_NVLINK_{name}_BYTES", 0.0, rank=[6])
        seen.set(f"DCGM_FI_PROF_PCIE_{name}_BYTES", 1.9e10, rank=[6], noise=0.05)
    causes = "nvlink_degradation communication_misconfiguration unknown pcie_degradation"
    window = played.window("nvlink-off", metrics=seen.table())
    return Retold(window, slow(causes, between([6], range(8))).or_abstains())


@incident("ten-percent-machine", "MegaScale: one machine in two hundred is 10 % slower", "rich", "poor")
def ten_percent_machine(rng: np.random.Generator, variant: str) -> Retold:
    """The eight ranks of node 13 compute 10 % longer in every step; no counter shows why."""
    job = Job(rng, 128, 140, STEP)
    ranks = job.of_node(13)
    job.slow("compute", 1.1, ranks)
    played = job.play()
    if variant == "poor":
        window = played.window("ten-percent-machine", ("forward", "backward"), waiting="joint")
    else:
        window = played.window("ten-percent-machine", metrics=Exporters(played, every=20).table())
    return Retold(window, slow(COMPUTE, exactly(*ranks)))


@incident(
    "congested-always",
    "Alibaba C4: collisions of paths leave 60 % of the bandwidth in every job",
    "rich",
    "earlier",
)
def congested_always(rng: np.random.Generator, variant: str) -> Retold:
    """Exchanges take 1.7 to 2.6 times as long as on free paths, with notifications on all nodes."""
    job = Job(rng, 64, 160, STEP)
    job.slow("transfer", rng.uniform(1.7, 2.6, 160))
    played = job.play()
    if variant == "earlier":
        usual = Job(rng, 64, 160, STEP)
        usual.start = job.start - 80_000
        window = played.window("congested-always", ("forward", "backward"))
        earlier = usual.play().window("congested-always", ("forward", "backward"))
        return Retold(window, slow(EXCHANGE, whole(64)), earlier)
    seen = Exporters(played, roce=True)
    for port in range(8):
        for name in ("np_cnp_sent", "rp_cnp_handled"):
            seen.set(name, 3900, node=slice(None), device=f"mlx5_{port}/1", noise=0.3)
    window = played.window("congested-always", metrics=seen.table())
    expected = slow("network_congestion", whole(64))
    return Retold(window, expected.or_abstains())


@incident(
    "late-rank-chronic", "XPUTimer: a rank that computes as its peers and always arrives last", "poor", "rich"
)
def late_rank_chronic(rng: np.random.Generator, variant: str) -> Retold:
    """Rank 17 of 32 lingers for 0.5 s within each step outside of all timers: it alone never waits."""
    job = Job(rng, 32, 220, STEP)
    job.untimed[17] += rng.gamma(25, 0.02, 220)
    played = job.play()
    if variant == "poor":
        window = played.window("late-rank-chronic", ("forward", "backward"), waiting="split")
        return Retold(window, slow("unknown", exactly(17)).or_abstains())
    seen = Exporters(played, processes=True)
    window = played.window("late-rank-chronic", metrics=seen.table())
    return Retold(window, slow("unknown", exactly(17)))


@incident("slow-from-birth", "A user asks why a job is slow, with nothing to compare it with", "poor")
def slow_from_birth(rng: np.random.Generator, _: str) -> Retold:
    """All ranks alike, all phases in proportion, no machine data: nothing in the window is out of order."""
    window = Job(rng, 16, 200, STEP, noise=0.02).play().window("slow-from-birth", ("forward", "backward"))
    return Retold(window, Expected(frozenset({HEALTHY}), may_abstain=True))


@incident("exchange-eats-all", "Holmes: communication is 80 % of a step on slow links between sites", "poor")
def exchange_eats_all(rng: np.random.Generator, _: str) -> Retold:
    """Each step has 2.5 s of work and 12 s of exchange on every rank; who is at fault may be open."""
    job = Job(rng, 32, 120, STEP | {"transfer": 12.0}, noise=0.02)
    window = job.play().window("exchange-eats-all", ("forward", "backward"))
    return Retold(
        window, Expected(frozenset({SLOW}), (whole(32),), frozenset(EXCHANGE.split()), may_abstain=True)
    )
