"""Faults from the first step to the last: no change point, only peers, earlier days and a sound machine."""

from __future__ import annotations

from benchmarks.retold_incidents.accelerators import COMPUTE
from benchmarks.retold_incidents.expected import SOUND, Expected, between, exactly, slow, some_of, whole
from benchmarks.retold_incidents.exporters import PORTS
from benchmarks.retold_incidents.fabric import EXCHANGE
from benchmarks.retold_incidents.incident import RetoldReport, incident

STEP = {"data_loading": 0.01, "forward": 0.8, "backward": 1.6, "transfer": 0.4, "optimizer": 0.08}


@incident(
    "Meta, reliability of research clusters: 8 of 16 lanes since the last boot",
    "rich untimed", untimed="forward backward optimizer, split, exporters",
)  # fmt: skip
def lanes_chronic(report: RetoldReport) -> Expected:
    """A GPU's link has 4 of 16 lanes under load in every step, and no error is logged."""
    job = report.job(16, 220, STEP | {"host_to_device": 0.06})
    job.slow("host_to_device", 3.8, [2])
    job.slow("transfer", 1.5)
    job.seen.shows([2], PCIE_LINK_WIDTH=4, DCGM_FI_PROF_PCIE_RX_BYTES=(9e8, 0.1))
    job.seen.shows([2], DCGM_FI_PROF_PCIE_TX_BYTES=(9e8, 0.1))
    return slow("pcie_degradation", between([2], range(8)))


@incident("Azure SuperBench: one port of a node far below its rate in every job")
def port_waits_chronic(report: RetoldReport) -> Expected:
    """One port of node 2 waits for credits all the time, with a trickle of symbol errors."""
    job = report.job(32, 200, STEP, gpu="A100")
    job.slow("transfer", 2.6)
    job.seen.shows([2], device="mlx5_5/1", node_infiniband_port_transmit_wait_total=(2.4e8, 0.1))
    job.seen.shows([2], device="mlx5_5/1", node_infiniband_symbol_error_total=(1.2, 0.4))
    return slow("nic_degradation", some_of(job.of_node(2)))


@incident(
    "Llama 3 report: power of the data centre; all GPUs capped alike",
    "rich earlier", earlier="few, joint",
)  # fmt: skip
def capped_fleet(report: RetoldReport) -> Expected:
    """All 64 GPUs run at 1,170 of 1,980 MHz under a power brake, in every step."""
    job = report.job(64, 150, STEP)
    job.slow("compute", 1.6)
    if report.variant == "earlier":
        job.usual(80_000)
        return slow(COMPUTE, whole(64))
    job.seen.shows(SM_CLOCK=(1170, 0.015), CLOCKS_EVENT_REASONS=float(0x80 | 0x8), POWER_USAGE=(385, 0.02))
    job.seen.shows(POWER_VIOLATION=(9.1e8, 0.02))
    return slow("gpu_throttling", whole(64))


@incident("ByteRobust: host memory is exhausted by caches on every machine")
def swapping_always(report: RetoldReport) -> Expected:
    """All nodes reclaim memory all the time: memory pressure 0.7, 40,000 swapped pages per second."""
    job = report.job(16, 160, STEP, noise=0.06, gpu="A100")
    job.slow("data_loading", 20.0)
    job.slow("forward", 1.5 * report.rng.lognormal(0, 0.2, (16, 160)))
    job.seen.shows(node_pressure_memory_waiting_seconds_total=(0.7, 0.05), node_vmstat_pswpin=(40_000, 0.2))
    job.seen.shows(node_vmstat_pgmajfault=(11_000, 0.2), node_memory_MemAvailable_bytes=(2.5e9, 0.1))
    return slow("memory_pressure", whole(16))


@incident(
    "Machine Learning Engineering Open Book: a shared file system too slow for the job",
    "rich poor", poor="data_loading forward, untimed",
)  # fmt: skip
def storage_always(report: RetoldReport) -> Expected:
    """Every step begins with 6 s of reading and 2.9 s of work, I/O pressure 0.9 on all nodes."""
    job = report.job(24, 120, STEP | {"data_loading": 6.0}, noise=0.014, gpu="A100", processes=True)
    job.seen.shows(node_pressure_io_waiting_seconds_total=(0.9, 0.02))
    job.seen.shows(container_pressure_io_waiting_seconds_total=(0.64, 0.04))
    job.seen.shows(device="iowait", node_cpu_seconds_total=(28, 0.1))
    job.seen.shows(node_nfs_rpc_retransmissions_total=(22, 0.3))
    others = "" if report.variant == "rich" else " unknown"
    return slow("storage_degradation data_loader_stall" + others, whole(24))


@incident("NCCL issues: peer access over NVLink is off for one GPU, which goes through the host")
def nvlink_off(report: RetoldReport) -> Expected:
    """GPU 6 of 8 moves everything over PCIe, nothing over NVLink; exchanges take three times as long."""
    job = report.job(8, 260, STEP, gpu="A100")
    job.slow("transfer", 3.0)
    for name in ("TX", "RX"):
        job.seen.shows([6], **{f"DCGM_FI_PROF_NVLINK_{name}_BYTES": 0.0})
        job.seen.shows([6], **{f"DCGM_FI_PROF_PCIE_{name}_BYTES": (1.9e10, 0.05)})
    causes = "nvlink_degradation communication_misconfiguration unknown pcie_degradation"
    return slow(causes, between([6], range(8))).or_abstains()


@incident("MegaScale: one machine in two hundred is 10 % slower", "rich poor")
def ten_percent_machine(report: RetoldReport) -> Expected:
    """The eight ranks of node 13 compute 10 % longer in every step; no counter shows why."""
    job = report.job(128, 140, STEP, every=20)
    job.slow("compute", 1.1, job.of_node(13))
    return slow(COMPUTE, exactly(*job.of_node(13)))


@incident("Alibaba C4: collisions of paths leave 60 % of the bandwidth in every job", "rich earlier")
def congested_always(report: RetoldReport) -> Expected:
    """Exchanges take 1.7 to 2.6 times as long as on free paths, with notifications on all nodes."""
    job = report.job(64, 160, STEP, roce=True)
    job.slow("transfer", report.rng.uniform(1.7, 2.6, 160))
    if report.variant == "earlier":
        job.usual(80_000)
        return slow(EXCHANGE, whole(64))
    job.seen.shows(device=PORTS, np_cnp_sent=(3900, 0.3), rp_cnp_handled=(3900, 0.3))
    return slow("network_congestion", whole(64)).or_abstains()


@incident(
    "XPUTimer: a rank that computes as its peers and always arrives last",
    "poor rich", poor="few, split",
)  # fmt: skip
def late_rank_chronic(report: RetoldReport) -> Expected:
    """Rank 17 of 32 lingers for 0.5 s within each step outside of all timers: it alone never waits."""
    job = report.job(32, 220, STEP, processes=True)
    job.delay("untimed", report.rng.gamma(25, 0.02, 220), 17)
    return slow("unknown", exactly(17)).or_abstains(report.variant == "poor")


@incident("A user asks why a job is slow, with nothing to compare it with", "poor", poor="few, split")
def slow_from_birth(report: RetoldReport) -> Expected:
    """All ranks alike, all phases in proportion, no machine data: nothing in the window is out of order."""
    report.job(16, 200, STEP, noise=0.02)
    return SOUND.or_abstains()


@incident("Holmes: communication is 80 % of a step on slow links between sites", "poor", poor="few, split")
def exchange_eats_all(report: RetoldReport) -> Expected:
    """Each step has 2.5 s of work and 12 s of exchange on every rank; who is at fault may be open."""
    report.job(32, 120, STEP | {"transfer": 12.0}, noise=0.02)
    return slow(EXCHANGE, whole(32)).or_abstains()
