"""Per-rank counters: the process, its control group, its Python runtime."""

from __future__ import annotations

import numpy as np

from rca.arrays import FloatArray
from rca.lab.simulation.exporters.node import extra_cores, host_cores, page_wait_share
from rca.lab.simulation.finished_run import FinishedRun
from rca.lab.simulation.machine_differences import machine_level, machines_have
from rca.lab.simulation.scraping import MetricsScraper

# Bytes read back per major fault, on average: a page and what is read ahead of it.
BYTES_PER_MAJOR_FAULT = 6e3
# Share of time in pauses above which the garbage collector cannot keep up, so that memory grows.
GC_CANNOT_KEEP_UP = 0.05
# Share of the waiting for a core that the sampled process state shows: of hosts, of loaders.
SEEN_WAITING = (0.15, 0.8)

#: Part of the extra cores of the job's own processes that its loaders use; threads of the host use the rest.
LOADERS_OF_EXTRA = 0.7


def _queueing(run: FinishedRun) -> FloatArray:
    """Run-queue waiting per second, (n_ranks, n_segments).

    It follows the work done unless other processes take the core.
    """
    share = run.scenario.workload.run_queue_share
    calm = np.clip(_relative_pace(run), 0, 1.2) * _queue_factors(run)
    queue = run.state("run_queue")
    # Where other processes hold the core, a host waits nearly always, even with little work.
    crowded = np.clip((queue - share) / 0.25, 0, 1) * (1 - run.stalled)
    return np.clip((1 - crowded) * share * calm + crowded * queue + run.queued, 0, 1)


def _relative_pace(run: FinishedRun) -> FloatArray:
    """Work done per second relative to an undisturbed job, (n_segments,)."""
    return np.asarray(run.scenario.workload.step_seconds * run.pace)


def _queue_factors(run: FinishedRun) -> FloatArray:
    """Factors on the run-queue waiting of threads that do not delay the step, (n_ranks, n_segments)."""
    spread = run.scenario.benign.queue_spread * np.sqrt(0.5)
    rng = np.random.default_rng([run.scenario.seed, 6])
    lasting = rng.normal(0, spread, (run.scenario.world_size, 1))
    return np.asarray(np.exp(lasting + rng.normal(0, spread, (run.scenario.world_size, run.n_segments))))


def process(run: FinishedRun, out: MetricsScraper) -> None:
    """CPU time, run queue, switches, faults and state of host and loader processes."""
    user, system = host_cores(run)
    loader_cpu, calm = run.state("loader_cpu"), _relative_pace(run)
    ones = np.ones_like(user)
    for mode, rate in (("user", user - loader_cpu), ("system", system)):
        out.counter("process_cpu_seconds_total", "rank", rate, device=f"host/{mode}", quantum=0.01)
    loader_user = _decoding(run) + loader_cpu + LOADERS_OF_EXTRA * extra_cores(run)
    out.counter("process_cpu_seconds_total", "rank", loader_user, device="loader/user", quantum=0.01)
    running = "process_schedstat_running_seconds_total"
    out.counter(running, "rank", user - loader_cpu + system, device="host", quantum=1e-6)
    out.counter(running, "rank", loader_user, device="loader", quantum=1e-6)
    queued = "process_schedstat_waiting_seconds_total"
    out.counter(queued, "rank", _queueing(run), device="host", quantum=1e-6, noise=0.1)
    out.counter(queued, "rank", _loader_queueing(run), device="loader", quantum=1e-6, noise=0.1)
    switches, read_back = "process_context_switches_total", run.state("major_faults")
    forced, asked = (
        machine_level(run, "forced", 250, 2500) * calm,
        machine_level(run, "asked", 350, 3500) * calm,
    )
    out.counter(switches, "rank", forced * ones, device="host/nonvoluntary", quantum=1)
    out.counter(switches, "rank", asked + read_back, device="host/voluntary", quantum=1)
    reading = _read_bytes_per_second(run) * ones
    out.counter("process_io_read_bytes_total", "rank", reading, device="loader", quantum=512)
    out.counter(
        "process_io_read_bytes_total", "rank", BYTES_PER_MAJOR_FAULT * read_back, device="host", quantum=512
    )
    _memory(run, out)
    _running(run, out, user - loader_cpu + system, loader_user)
    out.gauge("process_state_stopped", "rank", _stopped(run), device="host", noise=0.0, dead=0.0)


def _decoding(run: FinishedRun) -> FloatArray:
    """Cores that loaders use without any fault, (n_ranks, n_segments): on clusters one feeds a whole GPU."""
    testbed = run.scenario.dialect == "cpu_testbed"
    usual = machine_level(run, "loader", 0.002, 0.02 if testbed else 2.0)
    rng = np.random.default_rng([run.scenario.seed, 12])
    unequal = np.exp(rng.normal(0, 0.05 if testbed else 0.2, (run.scenario.world_size, 1)))
    return np.asarray(usual * unequal * _relative_pace(run) * run.alive)


def _loader_queueing(run: FinishedRun) -> FloatArray:
    """Run-queue waiting of loaders; quotas and other processes delay them as well, unless they sleep."""
    share, decoding = run.scenario.workload.run_queue_share, np.minimum(run.state("loader_cpu"), 1)
    held = 0.15 * np.clip(run.state("quota"), 0, 1) + 0.1 * np.maximum(run.state("run_queue") - share, 0)
    awake = 1 - run.share("data_loading")
    usual = machine_level(run, "loader wait", 0.012, 0.08) * _relative_pace(run) * _queue_factors(run) ** 2
    crowded = 0.9 * run.state("crowding") * (1 - run.stalled)
    return np.asarray(usual * awake**2 + 0.35 * decoding + held + crowded)


def _read_bytes_per_second(run: FinishedRun) -> FloatArray:
    """Bytes per second that loaders read, (n_segments,)."""
    return np.asarray(machine_level(run, "read", 2e6, 2e7) * _relative_pace(run))


def _memory(run: FinishedRun, out: MetricsScraper) -> None:
    """Page faults, of which a starting job has many, and resident memory."""
    pauses = run.state("gc") / run.duration
    fading = machine_level(run, "new pages", 30, 1500) * np.exp(-np.arange(run.n_segments) / 8)
    minor = machine_level(run, "minor", 8, 80) * _relative_pace(run) + 15000 * pauses
    if run.scenario.first_step_number == 0:
        minor = minor + fading
    out.counter("process_minor_page_faults_total", "rank", minor, device="host", quantum=1, noise=0.3)
    major = 40 * np.clip(run.state("memory_stall"), 0, 1)[run.node_of] + run.state("major_faults")
    out.counter("process_major_page_faults_total", "rank", major, device="host", quantum=1, noise=0.4)
    collecting = np.where(pauses > GC_CANNOT_KEEP_UP, 1.0, 0.0)
    grown = 1 + 0.3 * np.cumsum(collecting, axis=1) / max(1, run.n_segments)
    grown *= machine_level(run, "resident", 1.5e8, 3e9)
    out.gauge(
        "process_resident_memory_bytes", "rank", grown, device="host", quantum=4096, noise=2e-4, dead=0.0
    )


def _running(run: FinishedRun, out: MetricsScraper, host: FloatArray, loader: FloatArray) -> None:
    """Whether processes exist, or how often a sample finds them running or runnable."""
    sampled = run.scenario.telemetry.states_sampled
    seen = {
        "host": host + SEEN_WAITING[0] * _queueing(run),
        "loader": loader + SEEN_WAITING[1] * _loader_queueing(run),
    }
    for process, share in seen.items():
        found, noise = (np.clip(share, 0, 1), 0.4) if sampled else (np.ones_like(share), 0.0)
        out.gauge("process_state_running", "rank", found, device=process, noise=noise, dead=0.0)


def _stopped(run: FinishedRun) -> FloatArray:
    """1 for hung processes that a signal stopped; a deadlocked process is not stopped."""
    stopped = np.zeros_like(run.waiting)
    stop = run.resources.stop
    if stop is not None and stop.kind == "hang" and stop.variant == "stopped":
        stopped[list(stop.ranks), run.n_run :] = 1.0
    return stopped


def container(run: FinishedRun, out: MetricsScraper) -> None:
    """Record the control group: quota, pressure, reads."""
    user, system = host_cores(run)
    waiting, calm = _queueing(run), _relative_pace(run)
    quota, foreign = np.clip(run.state("quota"), 0, 1), run.state("group_cpu")
    used = user + system + foreign
    out.counter("container_cpu_usage_seconds_total", "rank", used, quantum=1e-6)
    out.counter("container_cpu_cfs_throttled_seconds_total", "rank", quota, quantum=1e-6, noise=0.1)
    periods = 50 * (quota > 0) * np.ones_like(quota)
    out.counter("container_cpu_cfs_throttled_periods_total", "rank", periods, quantum=1, noise=0.05)
    pressed = np.clip(0.78 * waiting + quota + 0.5 * np.minimum(foreign, 1), 0, 1)
    pressed = np.maximum(pressed, run.state("crowding") * (1 - run.stalled))
    out.counter("container_pressure_cpu_waiting_seconds_total", "rank", pressed, quantum=1e-6, noise=0.1)
    out.counter("container_pressure_cpu_stalled_seconds_total", "rank", 0.85 * pressed, quantum=1e-6)
    slow_disk = np.clip(run.state("disk_stall") + run.state("remote_stall"), 0, 1)[run.node_of]
    # A throttled reader is under pressure while it needs data, which is nearly always.
    held, waited = run.state("read_held"), page_wait_share(run)
    writing = machine_level(run, "writing", 0.05, 0.8) * run.share("checkpoint")
    io = np.clip(
        machine_level(run, "io", 0.003, 0.02) * calm + slow_disk + held + 0.5 * waited + writing, 0, 1
    )
    out.counter("container_pressure_io_waiting_seconds_total", "rank", io, quantum=1e-6, noise=0.2)
    short = np.clip(np.clip(run.state("memory_stall"), 0, 1)[run.node_of] + 0.03 * waited, 0, 1)
    out.counter("container_pressure_memory_waiting_seconds_total", "rank", short, quantum=1e-6, noise=0.2)
    reading = _read_bytes_per_second(run) + BYTES_PER_MAJOR_FAULT * run.state("major_faults")
    out.counter("container_fs_reads_bytes_total", "rank", reading, device="254:0", quantum=512)


def python(run: FinishedRun, out: MetricsScraper) -> None:
    """Record the garbage collector's statistics; many trainers turn it off between steps."""
    pauses, calm = run.state("gc") / run.duration, _relative_pace(run)
    usual = (
        0.0
        if machines_have(run, "collector off", 0.6)
        else machine_level(run, "collections", 0.1, 1.5) * calm
    )
    out.counter("python_gc_pause_seconds_total", "rank", 1.5e-4 * usual + pauses, quantum=1e-6, noise=0.1)
    runs = usual + machine_level(run, "collections per second of pause", 8, 600) * pauses
    out.counter("python_gc_collections_total", "rank", runs, quantum=1, noise=0.1)
    out.counter("python_gc_objects_collected_total", "rank", 740 * usual + 0 * pauses, quantum=1)
