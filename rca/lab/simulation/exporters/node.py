"""Signals of node_exporter about cores, memory and disks.

Where several "nodes" share one machine (the CPU testbed) the machine's own counters carry no node label and
those of each node's control group do.
"""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.lab.simulation.finished_run import FinishedRun
from rca.lab.simulation.machine_differences import lasting_factors, machine_level, machines_have
from rca.lab.simulation.scraping import MetricsScraper, Scope


def cores_of_node(run: FinishedRun) -> float:
    if run.scenario.dialect == "cpu_testbed":
        return 2.0
    return float((32, 64, 96, 128, 192)[run.scenario.seed % 5])


def _harmless_nodes(run: FinishedRun, kind: str) -> FloatArray:
    marked = np.zeros((run.scenario.n_nodes, 1))
    for signal in run.scenario.benign.harmless:
        if signal.kind == kind:
            marked[run.node_of[signal.rank % run.scenario.world_size]] = 1.0
    return marked


def host_cores(run: FinishedRun) -> tuple[FloatArray, FloatArray]:
    """User and system cores used by each rank's host process and loader, (n_ranks, n_segments)."""
    load = run.scenario.workload
    if run.scenario.dialect == "cpu_testbed":
        # Around 2.6 ms of user and 7 ms of system time per step of 116 ms in healthy captures.
        scale = load.step_seconds * run.pace
        pauses = run.state("gc") / run.duration
        user = machine_level(run, "user", 0.008, 0.05) * scale + 0.45 * pauses
        reading_back = 3e-5 * run.state("major_faults")
        system = machine_level(run, "system", 0.02, 0.09) * scale + reading_back
        idle = machine_level(run, "idle", 3e-4, 6e-3)
        there = _process_present(run)
        busy = run.state("loader_cpu") + extra_cores(run)
        return (user + busy + idle) * there + _cores_of_failing_peers(run), system * there
    # Waiting for a collective spins: the more a rank waits, the busier its core looks.
    user = 0.8 + 0.35 * run.waiting + 1.5 * load.step_seconds * run.pace + run.state("loader_cpu") * 4
    user = user + extra_cores(run)
    system = 0.15 + 0.3 * run.share("host_to_device") + np.zeros(run.waiting.shape)
    return run.alive * user, run.alive * system


def extra_cores(run: FinishedRun) -> FloatArray:
    """Cores that a rank's own loaders and threads use more than usual, (n_ranks, n_segments)."""
    return run.state("own_cores") * cores_of_node(run) / run.scenario.ranks_per_node * (1 - run.stalled)


def _process_present(run: FinishedRun) -> FloatArray:
    """Share of each segment in which the process of a crashed rank was running; 1 for other ranks."""
    there = np.ones(run.alive.shape)
    stop = run.resources.stop
    if stop is not None and stop.kind == "crash":
        there[list(stop.ranks)] = run.alive[list(stop.ranks)]
    return there


def _cores_of_failing_peers(run: FinishedRun) -> FloatArray:
    """Cores used by ranks that lost a peer, (n_ranks, n_segments): they raise, print and retry."""
    cores = np.zeros(run.waiting.shape)
    stop = run.resources.stop
    if stop is not None and stop.kind == "crash":
        rng = np.random.default_rng([run.scenario.seed, 3])
        # Peers that do not notice the crash keep waiting.
        if np.isfinite(run.process_end).all():
            cores[:, run.n_run :] = 0.08 * rng.uniform(0, 1.2, (run.scenario.world_size, 1))
        cores[list(stop.ranks), run.n_run :] = 0.0
    return cores


def page_wait_share(run: FinishedRun) -> FloatArray:
    """Share of time a rank waits for pages that a memory limit had pushed out, (n_ranks, n_segments)."""
    waited = (run.state("table_stall") + run.state("host_stall")) / run.duration
    return np.where(run.state("major_faults") > 0, np.clip(waited, 0, 1), 0.0)


def cpu(run: FinishedRun, out: MetricsScraper) -> None:
    """CPU seconds by mode, load, context switches."""
    cores = cores_of_node(run)
    user, system = host_cores(run)
    testbed = run.scenario.dialect == "cpu_testbed"
    # In the testbed other processes fill the rest of one pinned core; elsewhere they take a part of all
    # cores.
    foreign = run.state("foreign_cpu") * (1.0 if testbed else _foreign_core_share(run) * cores)
    node_user = run.by_node(user) + foreign
    node_system = run.by_node(system) + 0.01 * cores + 0.1 * foreign
    load_extra = _harmless_nodes(run, "load") * 0.2 * cores
    if testbed:
        out.counter("node_cpu_seconds_total", "node", node_user + 0.015, device="user", quantum=0.01)
        out.counter("node_cpu_seconds_total", "node", node_system - 0.02, device="system", quantum=0.01)
        _machine(run, out, node_user.sum(axis=0, keepdims=True), node_system.sum(axis=0, keepdims=True))
        return
    waiting_disk = (
        machine_level(run, "io wait", 0.02, 0.25)
        * cores
        * np.clip(run.state("disk_stall") + 0.3 * _harmless_nodes(run, "io_pressure"), 0, 1)
    )
    steal = _steal(run) * cores
    # Load on cores that no rank uses does not slow the ranks.
    elsewhere = machine_level(run, "elsewhere", 0.2, 1.0) * load_extra
    idle = np.maximum(cores - node_user - elsewhere - node_system - waiting_disk - steal, 0.0)
    modes = {
        "user": np.minimum(node_user + elsewhere, cores),
        "system": node_system,
        "iowait": waiting_disk,
        "steal": steal,
        "idle": idle,
    }
    for mode, rate in modes.items():
        out.counter("node_cpu_seconds_total", "node", rate, device=mode, quantum=0.01, noise=0.02)
    tasks = node_user + node_system + load_extra + 0.6 * foreign + waiting_disk * 10
    out.gauge("node_load1", "node", tasks, quantum=0.01, noise=0.05)
    switches = 2e4 + 4e3 * run.by_node(run.pace + np.zeros(user.shape)) + 3e3 * foreign
    out.counter("node_context_switches_total", "node", switches, quantum=1)


def _foreign_core_share(run: FinishedRun) -> float:
    """Share of a node's cores that other processes take: from few more than the ranks' to nearly all."""
    return machine_level(run, "crowded", 0.08, 0.85)


def _steal(run: FinishedRun) -> FloatArray:
    """Other processes may be other virtual machines: some contended nodes show steal."""
    contended = run.state("foreign_cpu")
    return contended * (0.1 if run.scenario.seed % 3 == 0 else 0.0)


def _machine(run: FinishedRun, out: MetricsScraper, user: FloatArray, system: FloatArray) -> None:
    # The processes that replace devices keep the pinned cores mostly busy.
    kernels = machine_level(run, "kernels", 0.5, 1.7) * run.share("forward", "backward").mean(axis=0)[None]
    for core in range(2):
        busy = np.clip(0.5 * (user + kernels), 0, 0.8)
        rest = np.clip(0.5 * system + 0.08, 0, 0.3)
        out.counter("node_cpu_seconds_total", "job", busy, device=f"{core}/user", quantum=0.01, fresh=False)
        out.counter("node_cpu_seconds_total", "job", rest, device=f"{core}/system", quantum=0.01, fresh=False)
        idle = np.maximum(1 - busy - rest, 0.0)
        out.counter("node_cpu_seconds_total", "job", idle, device=f"{core}/idle", quantum=0.01, fresh=False)
    base = 2 + 12 * out.rng.random()
    tasks = base + 2 * user + 4 * _harmless_nodes(run, "load").max()
    # A one-minute average hardly moves within a window of seconds.
    out.gauge("node_load1", "job", tasks.mean(axis=1, keepdims=True) + 0 * tasks, quantum=0.01, noise=0.02)
    switches = 3.1e4 * run.scenario.workload.step_seconds * run.pace[None]
    out.counter("node_context_switches_total", "job", switches, quantum=1, fresh=False)


def pressure(run: FinishedRun, out: MetricsScraper) -> None:
    """Pressure stall information of each node."""
    testbed = run.scenario.dialect == "cpu_testbed"
    calm = run.scenario.workload.step_seconds * run.pace
    # Ranks wait for a core in proportion to their work, so a longer step has a smaller share of waiting.
    queue = run.state("run_queue") - run.scenario.workload.run_queue_share * np.maximum(1 - calm, 0.0)
    per_node = np.maximum.reduceat(queue, np.arange(0, queue.shape[0], run.scenario.ranks_per_node), axis=0)
    crowd = run.state("foreign_cpu")
    cpu_wait = np.clip(1.04 * per_node + (0.5 * crowd if testbed else 0.2 * crowd), 0, 1)
    first = np.arange(0, run.scenario.world_size, run.scenario.ranks_per_node)
    own = np.maximum.reduceat(run.state("crowding"), first, axis=0) * (1 - run.stalled)
    cpu_wait = np.maximum(cpu_wait, np.clip(own, 0, 1))
    held = np.maximum.reduceat(run.state("read_held"), first, axis=0)
    waited = np.maximum.reduceat(page_wait_share(run), first, axis=0)
    memory = np.clip(run.state("memory_stall") + 0.03 * waited, 0, 1)
    slow = run.state("disk_stall") + run.state("remote_stall") + 0.25 * _harmless_nodes(run, "io_pressure")
    usual = machine_level(run, "node io", 0.006, 0.04)
    disk = np.clip(slow + np.maximum(held, 0.5 * waited), 0, 1) * 0.95 + usual
    signals = {
        "cpu_waiting": cpu_wait,
        "memory_waiting": memory,
        "memory_stalled": 0.5 * memory,
        "io_waiting": np.clip(disk + 0.2 * memory, 0, 1),
        "io_stalled": 0.3 * np.clip(disk - 0.8 * usual, 0, 1),
    }
    if testbed:
        signals["cpu_stalled"] = 0.66 * cpu_wait * np.where(crowd > 0, 0.5, 1.0)
    for name, rate in signals.items():
        noise = 0.4 if name.startswith("io") else 0.12
        out.counter(f"node_pressure_{name}_seconds_total", "node", rate, quantum=1e-6, noise=noise)
    if testbed:
        whole = np.clip(per_node.mean(axis=0, keepdims=True) + 0.35, 0, 1)
        out.counter("node_pressure_cpu_waiting_seconds_total", "job", whole, fresh=False)


def memory(run: FinishedRun, out: MetricsScraper) -> None:
    """Available memory, faults, swapping."""
    scope: Scope = "job" if run.scenario.dialect == "cpu_testbed" else "node"
    total = 2.5e10 if scope == "job" else 1e12
    stall = np.clip(run.state("memory_stall"), 0, 1)
    if scope == "job":
        stall = stall.max(axis=0, keepdims=True)
    free = total * np.where(stall > 0.02, 0.02 + 0.03 * (1 - stall), 1 - _memory_in_use(run, stall.shape[0]))
    out.gauge("node_memory_MemAvailable_bytes", scope, free, quantum=4096, noise=0.004)
    out.gauge("node_memory_MemTotal_bytes", scope, np.full_like(free, total), noise=0.0)
    read_back = run.by_node(run.state("major_faults"))
    faults = 0.2 + 900 * stall + (read_back.sum(axis=0, keepdims=True) if scope == "job" else read_back)
    out.counter("node_vmstat_pgmajfault", scope, faults, quantum=1, noise=0.4, fresh=False)
    out.counter("node_vmstat_pswpin", scope, 2000 * stall, quantum=1, noise=0.4, fresh=False)


def _memory_in_use(run: FinishedRun, n: int) -> FloatArray:
    """Share of the memory in use, (n, 1), including that of other programs on the node."""
    in_use = machine_level(run, "in use", 0.02, 0.6) * lasting_factors(run, "memory", 0.01, 0.8, n)
    return np.clip(in_use, 0.01, 0.93)


def disk(run: FinishedRun, out: MetricsScraper) -> None:
    """Record the data disk: time busy, bytes, latency."""
    testbed = run.scenario.dialect == "cpu_testbed"
    scope: Scope = "job" if testbed else "node"
    device = "vda" if testbed else "nvme0n1"
    stall, remote = (np.clip(run.state(name), 0, 1) for name in ("disk_stall", "remote_stall"))
    # A read limit above the disk reduces the disk's work.
    work = run.scenario.workload.step_seconds * run.pace * np.ones_like(stall)
    read_back = run.by_node(run.state("major_faults"))
    if testbed:
        stall, work = stall.mean(axis=0, keepdims=True), work.mean(axis=0, keepdims=True)
        read_back = read_back.sum(axis=0, keepdims=True)
    harmless = 0.2 * _harmless_nodes(run, "io_pressure") if not testbed else 0.0
    usual = machine_level(run, "disk busy", 0.015, 0.12) * work
    writing = np.broadcast_to(run.share("checkpoint").mean(axis=0), work.shape)
    written = machine_level(run, "checkpoints written", 0.05, 1.0) * writing
    busy = np.clip(usual + 3e-5 * read_back + 0.9 * stall + written + harmless, 0, 1)
    wanted = machine_level(run, "disk reads", 1.5e7, 8e7) * work
    reads = wanted / 5e5 + read_back
    wanted = wanted + 4096 * read_back
    out.counter(
        "node_disk_io_time_seconds_total", scope, busy, device=device, quantum=1e-3, noise=0.3, fresh=False
    )
    out.counter("node_disk_read_bytes_total", scope, wanted, device=device, quantum=512, fresh=False)
    out.counter("node_disk_reads_completed_total", scope, reads, device=device, quantum=1, fresh=False)
    waited = (reads - read_back) * (0.001 + 0.08 * stall) + 5e-5 * read_back
    out.counter(
        "node_disk_read_time_seconds_total",
        scope,
        waited,
        device=device,
        quantum=1e-3,
        noise=0.3,
        fresh=False,
    )
    if machines_have(run, "network file system", 0.6):
        resent = 12 * (remote.mean(axis=0, keepdims=True) if testbed else remote)
        out.counter("node_nfs_rpc_retransmissions_total", scope, resent, quantum=1, fresh=False)
