"""CPUs and memory of the hosts: quotas, strangers, the job's own threads, swapping."""

from __future__ import annotations

import numpy as np

from benchmarks.retold_incidents.accelerators import COMPUTE
from benchmarks.retold_incidents.expected import Expected, between, exactly, slow, some_of, whole
from benchmarks.retold_incidents.incident import RetoldReport, incident

STARVED = "cpu_contention data_loader_stall"
STEP = {"data_loading": 0.006, "forward": 0.32, "backward": 0.64, "transfer": 0.1, "optimizer": 0.04}


@incident(
    "Lightning issue 18650: Slurm binds each task to one core", "rich poor", poor="data_loading, untimed"
)
def one_core_per_task(report: RetoldReport) -> Expected:
    """Loaders of every rank share one core with training: 87 % of each step is loading, pressure 0.97."""
    seconds = {"data_loading": 2.9, "host_to_device": 0.012, "forward": 0.13, "backward": 0.2}
    seconds |= {"transfer": 0.05, "optimizer": 0.03}
    job = report.job(16, 140, seconds, noise=0.006, gpu="A100", every=10, processes=True)
    job.seen.shows(container_pressure_cpu_waiting_seconds_total=(0.97, 0.01))
    job.seen.shows(device="loader", process_schedstat_waiting_seconds_total=(5.6, 0.05))
    job.seen.shows(device="host", process_schedstat_waiting_seconds_total=(0.4, 0.1))
    job.seen.shows(device="loader/user", process_cpu_seconds_total=(0.86, 0.03))
    job.seen.shows(device="host/user", process_cpu_seconds_total=(0.11, 0.1))
    job.seen.shows(node_load1=(68.0, 0.05), node_pressure_cpu_waiting_seconds_total=(0.93, 0.02))
    others = "" if report.variant == "rich" else " storage_degradation unknown"
    return slow(STARVED + others, whole(16))


@incident(
    "FALCON: CPU contention of a neighbour, four of its single-node cases",
    "rich poor overlapped", poor="forward backward optimizer, joint",
)  # fmt: skip
def hogs_on_node(report: RetoldReport) -> Expected:
    """Another job takes the CPUs of a node for a third of the window: launches are late on its ranks."""
    job = report.job(32, 420, STEP, gpu="A100", every=10, processes=True)
    ranks, turn = job.of_node(2), {"since": 150, "until": 300}
    shaken = report.rng.uniform(1.25, 1.9, (8, 420))[:, 150:300]
    job.slow("forward", shaken, ranks, **turn)
    job.slow("optimizer", shaken**1.5, ranks, **turn)
    job.seen.shows([2], **turn, node_load1=(212, 0.05))
    job.seen.shows([2], **turn, device="user", node_cpu_seconds_total=(78, 0.02))
    job.seen.shows([2], **turn, device="idle", node_cpu_seconds_total=(2, 0.1))
    job.seen.shows([2], **turn, node_pressure_cpu_waiting_seconds_total=(0.71, 0.05))
    job.seen.shows(ranks, **turn, device="host", process_schedstat_waiting_seconds_total=(0.34, 0.1))
    switches = {"device": "host/nonvoluntary", "process_context_switches_total": (900, 0.1)}
    job.seen.shows(ranks, **turn, **switches)
    causes = "cpu_contention" if report.variant == "rich" else COMPUTE
    return slow(causes, exactly(*ranks)).or_abstains(report.variant == "poor")


@incident("Kubernetes issues: a CPU limit throttles one pod of a job")
def quota(report: RetoldReport) -> Expected:
    """One pod of four ranks has a lower CPU limit than its peers, from the first step to the last."""
    job = report.job(16, 260, STEP, per_node=4, gpu="V100", every=10, ports=0, processes=True)
    ranks = job.of_node(1)
    for phase, factor in (("forward", 1.34), ("data_loading", 9.0), ("optimizer", 1.5)):
        job.slow(phase, factor * report.rng.lognormal(0, 0.08, (4, 260)), ranks)
    job.seen.shows(ranks, container_cpu_cfs_throttled_seconds_total=(1.6, 0.05))
    job.seen.shows(ranks, container_pressure_cpu_waiting_seconds_total=(0.62, 0.04))
    return slow("cpu_contention", exactly(*ranks))


@incident(
    "PyTorch issues: OMP_NUM_THREADS unset, 8 ranks with 96 threads each",
    "rich earlier", earlier="data_loading forward, untimed",
)  # fmt: skip
def own_threads(report: RetoldReport) -> Expected:
    """The job's own threads fight for the CPUs: every phase of every rank is 2.7 times as long."""
    job = report.job(8, 300, STEP, noise=0.012, every=10, processes=True)
    for phase in ("data_loading", "forward", "backward", "optimizer"):
        job.slow(phase, 2.7 * report.rng.lognormal(0, 0.13, (8, 300)))
    if report.variant == "earlier":
        job.usual(90_000, noise=0.01)
        return slow("cpu_contention unknown", whole(8))
    job.seen.shows(node_load1=(702, 0.03))
    job.seen.shows(device="user", node_cpu_seconds_total=(94.5, 0.003))
    job.seen.shows(device="idle", node_cpu_seconds_total=(0.2, 0.3))
    job.seen.shows(node_pressure_cpu_waiting_seconds_total=(0.98, 0.003))
    job.seen.shows(device="host/user", process_cpu_seconds_total=(11.6, 0.03))
    job.seen.shows(device="host", process_schedstat_waiting_seconds_total=(74, 0.05))
    return slow("cpu_contention", whole(8))


@incident("ByteRobust: CPU overload of all machines of a job")
def pressure_everywhere(report: RetoldReport) -> Expected:
    """Every node at CPU pressure near 1 from the first step on; launches take 40 % of an 11 s step."""
    seconds = {"data_loading": 0.9, "forward": 3.6, "backward": 5.2, "transfer": 0.8, "optimizer": 0.9}
    job = report.job(64, 90, seconds, noise=0.05, gpu="H800", every=30)
    job.seen.shows(node_load1=(540, 0.06), node_pressure_cpu_waiting_seconds_total=(0.96, 0.01))
    job.seen.shows(device="user", node_cpu_seconds_total=(95, 0.002))
    job.seen.shows(device="idle", node_cpu_seconds_total=(0.4, 0.2))
    job.seen.shows(GPU_UTIL=(58, 0.06))
    return slow("cpu_contention", whole(64))


@incident("Public cloud issues: a virtual machine whose host is overbooked")
def steal(report: RetoldReport) -> Expected:
    """The hypervisor takes a third of the CPU time of one machine of two ranks."""
    seconds = {"data_loading": 0.03, "forward": 0.09, "backward": 0.18, "transfer": 0.05, "optimizer": 0.02}
    job = report.job(8, 900, seconds, per_node=2, gpu="L4", every=5, ports=0)
    for phase in ("data_loading", "forward", "backward", "optimizer"):
        job.slow(phase, report.rng.uniform(1.2, 1.7, (2, 480)), job.of_node(3), 420)
    job.seen.shows([3], since=420, device="steal", node_cpu_seconds_total=(30, 0.05))
    job.seen.shows([3], since=420, device="idle", node_cpu_seconds_total=(20, 0.1))
    job.seen.shows([3], since=420, node_pressure_cpu_waiting_seconds_total=(0.36, 0.1))
    return slow("cpu_contention", exactly(*job.of_node(3)))


@incident("PyTorch issue 13246: workers copy their data set page by page until memory ends")
def swapping(report: RetoldReport) -> Expected:
    """Memory of a node leaks away over 200 steps; then it swaps, and its ranks are slower and slower."""
    seconds = {"data_loading": 0.05, "forward": 0.8, "backward": 1.5, "transfer": 0.25, "optimizer": 0.1}
    job = report.job(24, 330, seconds, gpu="A100")
    ranks = job.of_node(1)
    rising = np.linspace(1.15, 2.1, 125) * report.rng.lognormal(0, 0.12, (8, 125))
    for phase in ("data_loading", "forward", "optimizer"):
        job.slow(phase, rising, ranks, 205)
    n, at = job.seen.times.size, job.seen.since(205)
    left = np.concatenate([np.linspace(9e11, 6e9, at), np.full(n - at, 3.5e9)])
    job.seen.shows([1], node_memory_MemAvailable_bytes=(left, 0.02))
    job.seen.shows([1], since=205, node_vmstat_pswpin=(21_000, 0.3), node_vmstat_pgmajfault=(6_500, 0.3))
    job.seen.shows([1], since=205, node_pressure_memory_waiting_seconds_total=(0.48, 0.2))
    job.seen.shows([1], since=205, node_pressure_io_waiting_seconds_total=(0.3, 0.2))
    return slow("memory_pressure", exactly(*ranks))


@incident("XPUTimer: one process is late with its kernels, hardware counters are normal")
def launch_bound_rank(report: RetoldReport) -> Expected:
    """A profiler left on in one process: its forward is half as long again, and no counter moves."""
    job = report.job(16, 300, STEP, every=10, processes=True)
    job.slow("forward", report.rng.uniform(1.45, 1.6, 210), [10], 90)
    job.slow("optimizer", 1.5, [10], 90)
    return slow("unknown runtime_gc cpu_contention", exactly(10)).or_abstains()


@incident(
    "Hostping: memory of the other socket, half of the host bandwidth",
    "rich poor", poor="host_to_device forward backward, split",
)  # fmt: skip
def numa_remote(report: RetoldReport) -> Expected:
    """Four ranks of a node copy from the memory of the other socket in every step: 2.3 times as long."""
    seconds = {"data_loading": 0.02, "host_to_device": 0.21, "forward": 0.4, "backward": 0.8}
    job = report.job(16, 350, seconds | {"transfer": 0.15, "optimizer": 0.04}, every=10)
    ranks = [12, 13, 14, 15]
    job.slow("host_to_device", 2.3, ranks)
    causes = "unknown pcie_degradation cpu_contention data_loader_stall communication_misconfiguration"
    poor = report.variant == "poor"
    place = some_of(ranks) if poor else exactly(*ranks)
    return slow(causes, place, between(ranks, job.of_node(1))).or_abstains(not poor)
