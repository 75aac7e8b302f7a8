"""CPUs and memory of the hosts: quotas, strangers, the job's own threads, swapping."""

from __future__ import annotations

import numpy as np

from benchmarks.retold_incidents.accelerators import COMPUTE
from benchmarks.retold_incidents.exporters import Exporters
from benchmarks.retold_incidents.incident import Retold, between, exactly, incident, slow, some_of, whole
from benchmarks.retold_incidents.jobs import Job

STARVED = "cpu_contention data_loader_stall"
STEP = {"data_loading": 0.006, "forward": 0.32, "backward": 0.64, "transfer": 0.1, "optimizer": 0.04}


@incident("one-core-per-task", "Lightning issue 18650: Slurm binds each task to one core", "rich", "poor")
def one_core_per_task(rng: np.random.Generator, variant: str) -> Retold:
    """Loaders of every rank share one core with training: 87 % of each step is loading, pressure 0.97."""
    seconds = {"data_loading": 2.9, "host_to_device": 0.012, "forward": 0.13, "backward": 0.2}
    seconds |= {"transfer": 0.05, "optimizer": 0.03}
    job = Job(rng, 16, 140, seconds, noise=0.006)
    played = job.play()
    if variant == "poor":
        window = played.window("one-core-per-task", ("data_loading",), waiting="untimed")
        expected = slow(f"{STARVED} storage_degradation unknown", whole(16))
        return Retold(window, expected)
    seen = Exporters(played, gpu="A100", every=10, processes=True)
    everyone = slice(None)
    seen.set("container_pressure_cpu_waiting_seconds_total", 0.97, rank=everyone, noise=0.01)
    seen.set("process_schedstat_waiting_seconds_total", 5.6, rank=everyone, device="loader", noise=0.05)
    seen.set("process_schedstat_waiting_seconds_total", 0.4, rank=everyone, device="host", noise=0.1)
    seen.set("process_cpu_seconds_total", 0.86, rank=everyone, device="loader/user", noise=0.03)
    seen.set("process_cpu_seconds_total", 0.11, rank=everyone, device="host/user", noise=0.1)
    seen.set("node_load1", 68.0, node=everyone, noise=0.05)
    seen.set("node_pressure_cpu_waiting_seconds_total", 0.93, node=everyone, noise=0.02)
    return Retold(played.window("one-core-per-task", metrics=seen.table()), slow(STARVED, whole(16)))


@incident(
    "hogs-on-node",
    "FALCON: CPU contention of a neighbour, four of its single-node cases",
    "rich",
    "poor",
    "overlapped",
)
def hogs_on_node(rng: np.random.Generator, variant: str) -> Retold:
    """Another job takes the CPUs of a node for a third of the window: launches are late on its ranks."""
    job = Job(rng, 32, 420, STEP)
    first, last = 150, 300
    ranks = job.of_node(2)
    shaken = rng.uniform(1.25, 1.9, (8, 420))
    shaken[:, :first] = shaken[:, last:] = 1.0
    job.slow("forward", shaken, ranks)
    job.slow("optimizer", shaken**1.5, ranks)
    played = job.play()
    if variant == "overlapped":
        window = played.window("hogs-on-node", ("forward", "backward"), waiting="backward")
        return Retold(window, slow(COMPUTE, exactly(*ranks)))
    if variant == "poor":
        window = played.window("hogs-on-node", ("forward", "backward", "optimizer"), waiting="joint")
        return Retold(window, slow(COMPUTE, exactly(*ranks)).or_abstains())
    seen = Exporters(played, gpu="A100", every=10, processes=True)
    span = slice(seen.since(first), seen.since(last))
    seen.set("node_load1", 212, node=[2], span=span, noise=0.05)
    seen.set("node_cpu_seconds_total", 78, node=[2], device="user", span=span, noise=0.02)
    seen.set("node_cpu_seconds_total", 2, node=[2], device="idle", span=span, noise=0.1)
    seen.set("node_pressure_cpu_waiting_seconds_total", 0.71, node=[2], span=span, noise=0.05)
    seen.set("process_schedstat_waiting_seconds_total", 0.34, rank=ranks, device="host", span=span, noise=0.1)
    seen.set(
        "process_context_switches_total", 900, rank=ranks, device="host/nonvoluntary", span=span, noise=0.1
    )
    return Retold(
        played.window("hogs-on-node", metrics=seen.table()), slow("cpu_contention", exactly(*ranks))
    )


@incident("quota", "Kubernetes issues: a CPU limit throttles one pod of a job", "rich")
def quota(rng: np.random.Generator, _: str) -> Retold:
    """One pod of four ranks has a lower CPU limit than its peers, from the first step to the last."""
    job = Job(rng, 16, 260, STEP, per_node=4)
    ranks = job.of_node(1)
    for phase, factor in (("forward", 1.34), ("data_loading", 9.0), ("optimizer", 1.5)):
        job.slow(phase, factor * rng.lognormal(0, 0.08, (4, 260)), ranks)
    played = job.play()
    seen = Exporters(played, gpu="V100", every=10, ports=0, processes=True)
    seen.set("container_cpu_cfs_throttled_seconds_total", 1.6, rank=ranks, noise=0.05)
    seen.set("container_pressure_cpu_waiting_seconds_total", 0.62, rank=ranks, noise=0.04)
    window = played.window("quota", metrics=seen.table())
    return Retold(window, slow("cpu_contention", exactly(*ranks)))


@incident(
    "own-threads", "PyTorch issues: OMP_NUM_THREADS unset, 8 ranks with 96 threads each", "rich", "earlier"
)
def own_threads(rng: np.random.Generator, variant: str) -> Retold:
    """The job's own threads fight for the CPUs: every phase of every rank is 2.7 times as long."""
    job = Job(rng, 8, 300, STEP, noise=0.012)
    for phase in ("data_loading", "forward", "backward", "optimizer"):
        job.slow(phase, 2.7 * rng.lognormal(0, 0.13, (8, 300)))
    played = job.play()
    expected = slow("cpu_contention unknown", whole(8))
    if variant == "earlier":
        usual = Job(rng, 8, 300, STEP)
        usual.start = job.start - 90_000
        earlier = usual.play().window("own-threads", ("data_loading", "forward"), waiting="untimed")
        window = played.window("own-threads", ("data_loading", "forward"), waiting="untimed")
        return Retold(window, expected, earlier)
    seen = Exporters(played, every=10, processes=True)
    everyone = slice(None)
    seen.set("node_load1", 702, node=everyone, noise=0.03)
    seen.set("node_cpu_seconds_total", 94.5, node=everyone, device="user", noise=0.003)
    seen.set("node_cpu_seconds_total", 0.2, node=everyone, device="idle", noise=0.3)
    seen.set("node_pressure_cpu_waiting_seconds_total", 0.98, node=everyone, noise=0.003)
    seen.set("process_cpu_seconds_total", 11.6, rank=everyone, device="host/user", noise=0.03)
    seen.set("process_schedstat_waiting_seconds_total", 74, rank=everyone, device="host", noise=0.05)
    window = played.window("own-threads", metrics=seen.table())
    return Retold(window, slow("cpu_contention", whole(8)))


@incident("pressure-everywhere", "ByteRobust: CPU overload of all machines of a job", "rich")
def pressure_everywhere(rng: np.random.Generator, _: str) -> Retold:
    """Every node at CPU pressure near 1 from the first step on; launches take 40 % of an 11 s step."""
    seconds = {"data_loading": 0.9, "forward": 3.6, "backward": 5.2, "transfer": 0.8, "optimizer": 0.9}
    job = Job(rng, 64, 90, seconds, noise=0.05)
    played = job.play()
    seen = Exporters(played, gpu="H800", every=30)
    everyone = slice(None)
    seen.set("node_load1", 540, node=everyone, noise=0.06)
    seen.set("node_pressure_cpu_waiting_seconds_total", 0.96, node=everyone, noise=0.01)
    seen.set("node_cpu_seconds_total", 95, node=everyone, device="user", noise=0.002)
    seen.set("node_cpu_seconds_total", 0.4, node=everyone, device="idle", noise=0.2)
    seen.set("DCGM_FI_DEV_GPU_UTIL", 58, rank=everyone, noise=0.06)
    window = played.window("pressure-everywhere", metrics=seen.table())
    return Retold(window, slow("cpu_contention", whole(64)))


@incident("steal", "Public cloud issues: a virtual machine whose host is overbooked", "rich")
def steal(rng: np.random.Generator, _: str) -> Retold:
    """The hypervisor takes a third of the CPU time of one machine of two ranks."""
    seconds = {"data_loading": 0.03, "forward": 0.09, "backward": 0.18, "transfer": 0.05, "optimizer": 0.02}
    job = Job(rng, 8, 900, seconds, per_node=2)
    since = 420
    ranks = job.of_node(3)
    for phase in ("data_loading", "forward", "backward", "optimizer"):
        job.slow(phase, rng.uniform(1.2, 1.7, (2, 900 - since)), ranks, since)
    played = job.play()
    seen = Exporters(played, gpu="L4", every=5, ports=0)
    span = slice(seen.since(since), None)
    seen.set("node_cpu_seconds_total", 30, node=[3], device="steal", span=span, noise=0.05)
    seen.set("node_cpu_seconds_total", 20, node=[3], device="idle", span=span, noise=0.1)
    seen.set("node_pressure_cpu_waiting_seconds_total", 0.36, node=[3], span=span, noise=0.1)
    return Retold(played.window("steal", metrics=seen.table()), slow("cpu_contention", exactly(*ranks)))


@incident(
    "swapping", "PyTorch issue 13246: workers copy their data set page by page until memory ends", "rich"
)
def swapping(rng: np.random.Generator, _: str) -> Retold:
    """Memory of a node leaks away over 200 steps; then it swaps, and its ranks are slower and slower."""
    seconds = {"data_loading": 0.05, "forward": 0.8, "backward": 1.5, "transfer": 0.25, "optimizer": 0.1}
    job = Job(rng, 24, 330, seconds)
    since = 205
    ranks = job.of_node(1)
    rising = np.linspace(1.15, 2.1, 330 - since) * rng.lognormal(0, 0.12, (8, 330 - since))
    for phase in ("data_loading", "forward", "optimizer"):
        job.slow(phase, rising, ranks, since)
    played = job.play()
    seen = Exporters(played, gpu="A100", every=15)
    n, at = seen.times.size, seen.since(since)
    left = np.concatenate([np.linspace(9e11, 6e9, at), np.full(n - at, 3.5e9)])
    seen.set("node_memory_MemAvailable_bytes", left, node=[1], noise=0.02)
    span = slice(at, None)
    seen.set("node_vmstat_pswpin", 21_000, node=[1], span=span, noise=0.3)
    seen.set("node_vmstat_pgmajfault", 6_500, node=[1], span=span, noise=0.3)
    seen.set("node_pressure_memory_waiting_seconds_total", 0.48, node=[1], span=span, noise=0.2)
    seen.set("node_pressure_io_waiting_seconds_total", 0.3, node=[1], span=span, noise=0.2)
    return Retold(played.window("swapping", metrics=seen.table()), slow("memory_pressure", exactly(*ranks)))


@incident(
    "launch-bound-rank",
    "XPUTimer: one process is late with its kernels, hardware counters are normal",
    "rich",
)
def launch_bound_rank(rng: np.random.Generator, _: str) -> Retold:
    """A profiler left on in one process: its forward is half as long again, and no counter moves."""
    job = Job(rng, 16, 300, STEP)
    since = 90
    job.slow("forward", rng.uniform(1.45, 1.6, 300 - since), [10], since)
    job.slow("optimizer", 1.5, [10], since)
    played = job.play()
    seen = Exporters(played, every=10, processes=True)
    expected = slow("unknown runtime_gc cpu_contention", exactly(10))
    return Retold(played.window("launch-bound-rank", metrics=seen.table()), expected.or_abstains())


@incident("numa-remote", "Hostping: memory of the other socket, half of the host bandwidth", "rich", "poor")
def numa_remote(rng: np.random.Generator, variant: str) -> Retold:
    """Four ranks of a node copy from the memory of the other socket in every step: 2.3 times as long."""
    seconds = {
        "data_loading": 0.02,
        "host_to_device": 0.21,
        "forward": 0.4,
        "backward": 0.8,
        "transfer": 0.15,
    }
    job = Job(rng, 16, 350, seconds | {"optimizer": 0.04})
    ranks = [12, 13, 14, 15]
    job.slow("host_to_device", 2.3, ranks)
    played = job.play()
    causes = "unknown pcie_degradation cpu_contention data_loader_stall communication_misconfiguration"
    expected = slow(causes, exactly(*ranks), between(ranks, job.of_node(1))).or_abstains()
    if variant == "poor":
        window = played.window("numa-remote", ("host_to_device", "forward", "backward"), waiting="split")
        return Retold(window, slow(causes, some_of(ranks), between(ranks, job.of_node(1))))
    return Retold(played.window("numa-remote", metrics=Exporters(played, every=10).table()), expected)
